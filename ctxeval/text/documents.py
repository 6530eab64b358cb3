"""Documents: windows of the corpus that no other document overlaps, as token ids with text offsets."""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from ctxeval.errors import UsageError
from ctxeval.text.corpus import Corpus
from ctxeval.text.sentences import sentence_positions, sentence_tokens
from ctxeval.wording import counted

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

JOINT = "\n\n"
#: Characters beyond a document that are tokenised with it, so that where the text is cut changes none of its tokens.
MARGIN = 256
#: Successive seeds rotate the choice of documents by this share of their spacing: an even, never repeating sequence.
GOLDEN = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True, eq=False)
class Document:
    """A window of the corpus, cut into exactly as many tokens as were asked for, without special tokens.

    `ids` int32 `(length,)`; `starts`, `ends` int64 `(length,)`: the characters of `text` that each token covers. The
    spans tile the text (white space before a word belongs to the word's token); tokens that share a multi-byte
    character share its span. `sentence_starts` int64, ascending: tokens before which a sentence may be inserted.
    """

    index: int
    name: str
    text: str
    ids: npt.NDArray[np.int32]
    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    sentence_starts: npt.NDArray[np.int64]

    def bytes_between(self, i: int, j: int) -> int:
        """Return the UTF-8 bytes of tokens i to j-1; adds up over adjoining ranges and over the whole to the text."""
        return int(self._byte_at[self._char_at(j)] - self._byte_at[self._char_at(i)])

    def _char_at(self, token: int) -> int:
        if not 0 <= token <= len(self.ids):
            raise IndexError(f"token {token} of a document of {len(self.ids)}")
        return int(self.starts[token]) if token < len(self.ids) else len(self.text)

    @cached_property
    def _byte_at(self) -> npt.NDArray[np.int64]:
        codes = np.frombuffer(self.text.encode("utf-32-le"), dtype=np.uint32)
        widths = 1 + (codes >= 0x80).astype(np.int64) + (codes >= 0x800) + (codes >= 0x10000)
        return np.concatenate(([0], np.cumsum(widths)))


class _Window(NamedTuple):
    """Where a document lies: from a character of one file to a character of the same or a later one."""

    file: int
    start: int
    last_file: int
    end: int  # in the last file
    text: str
    ids: npt.NDArray[np.int32]
    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]


def cut_documents(
    corpus: Corpus, tokenizer: PreTrainedTokenizerBase, *, count: int, length: int, seed: int
) -> tuple[Document, ...]:
    """Cut `count` documents of `length` tokens, spread evenly over the corpus and in its order.

    A document starts where a file starts; files too short for one are joined with a blank line. A further document
    starts inside a file only where a whole one still fits. `seed` rotates the choice; the same arguments give the same
    documents, none overlaps another and no text is repeated.

    Raises:
        UsageError: too little text, a tokenizer without offsets, or `count` or `length` below 1.
    """
    if count < 1 or length < 1:
        raise UsageError(f"{count} documents of {length} tokens", "both must be at least 1")
    if not getattr(tokenizer, "is_fast", False):
        raise UsageError(
            f"tokenizer {type(tokenizer).__name__} gives no text offsets", "a fast tokenizer (tokenizer.json) is needed"
        )
    cutter = _Cutter(corpus, tokenizer, length)
    share = (seed * GOLDEN) % 1.0
    windows = cutter.spread(count, share)
    if windows is None:
        every = list(cutter.every())
        if len(every) < count:
            raise _too_little(corpus, cutter, len(every), count)
        windows = [every[int((k + share) * len(every) / count)] for k in range(count)]
    return tuple(cutter.document(index, window) for index, window in enumerate(windows))


def _too_little(corpus: Corpus, cutter: _Cutter, fit: int, count: int) -> UsageError:
    total = cutter.total_tokens()
    return UsageError(
        f"corpus {corpus.name!r} has {counted(total, 'token')} in {counted(len(cutter.texts), 'file')}, "
        f"enough for {counted(fit, 'document')} of {cutter.length:,} tokens, {count} wanted",
        "ask for fewer documents or a shorter length, or give a larger --corpus; text is never repeated",
    )


class _Cutter:
    """Finds windows in the files of a corpus, and tokenises little more than what it returns."""

    def __init__(self, corpus: Corpus, tokenizer: PreTrainedTokenizerBase, length: int) -> None:
        files = [(name, text.strip()) for name, text in zip(corpus.names, corpus.texts, strict=True)]
        self.names = [name for name, text in files if text]
        self.texts = [text for _, text in files if text]
        self.tokenizer = tokenizer
        self.length = length
        self.chars_per_token = 4.5  # a first guess; only decides how much text is tokenised at a time
        self._windows: dict[tuple[int, int, bool], _Window | None] = {}
        self._sentences: dict[int, list[int]] = {}
        self.special = set(tokenizer.all_special_ids) - {getattr(tokenizer, "unk_token_id", None)}

    def spread(self, count: int, share: float) -> list[_Window] | None:
        """Return windows that start at files spread evenly over the characters; None where text is too scarce."""
        if not self.texts or (first := self.window(0, 0)) is None:
            return None
        offsets = np.concatenate(([0], np.cumsum([len(text) for text in self.texts])))
        usable = offsets[-1] - len(first.text) * 1.2
        windows: list[_Window] = []
        free = 0  # the first file that no window touches
        for k in range(count):
            anchor = (k + share) / count * usable
            file = max(free, bisect.bisect_left(offsets, anchor))
            window = self.window(file, 0) if usable > 0 and file < len(self.texts) else None
            if window is None:
                return None
            windows.append(window)
            free = window.last_file + 1
        return windows

    def every(self) -> Iterator[_Window]:
        """Yield all windows from the first file on, each as early as it can start."""
        file, start = 0, 0
        while file < len(self.texts):
            window = self.window(file, start, within_file=start > 0)
            if window is not None:
                yield window
                file, start = window.last_file, self._next_sentence(window.last_file, window.end)
            elif start == 0:
                return  # the text from here to the end of the corpus is too short
            else:
                start = 0
            if start == 0:
                file += 1

    def _next_sentence(self, file: int, position: int) -> int:
        """Return the first sentence start at or after `position` in the file, or 0 for none."""
        if file not in self._sentences:
            self._sentences[file] = sentence_positions(self.texts[file])
        starts = self._sentences[file]
        index = bisect.bisect_left(starts, position)
        return starts[index] if index < len(starts) else 0

    def window(self, file: int, start: int, within_file: bool = False) -> _Window | None:
        """Return the window that starts at a character of a file; None if the text ends before `length` tokens."""
        key = (file, start, within_file)
        if key not in self._windows:
            self._windows[key] = self._find_window(*key)
        return self._windows[key]

    def _find_window(self, file: int, start: int, within_file: bool) -> _Window | None:
        while True:
            wanted = int(self.length * self.chars_per_token) + MARGIN
            text, files, complete = self._gather(file, start, wanted, within_file)
            ids, starts, ends = self._encode(text)
            enough = len(ids) >= self.length and (complete or len(text) - int(ends[self.length - 1]) >= MARGIN)
            if enough:
                break
            if complete:
                return None
            self.chars_per_token *= 1.25
        end = int(ends[self.length - 1])
        self.chars_per_token = max(0.1, 1.05 * end / self.length)
        last_file, last_end = self._locate(file, start, end, files)
        cut = slice(0, self.length)
        return _Window(file, start, last_file, last_end, text[:end], ids[cut], starts[cut], ends[cut])

    def _gather(self, file: int, start: int, wanted: int, within_file: bool) -> tuple[str, int, bool]:
        """Join files from `start` on to `wanted` characters; returns text, number of files, whether it is all."""
        pieces = [self.texts[file][start : start + wanted + 1]]
        size = len(pieces[0])
        files_left = 0 if within_file else len(self.texts) - file - 1
        while size < wanted and len(pieces) <= files_left:
            pieces.append(self.texts[file + len(pieces)])
            size += len(JOINT) + len(pieces[-1])
        complete = size <= wanted and len(pieces) > files_left
        return JOINT.join(pieces)[:wanted], len(pieces), complete

    def _locate(self, file: int, start: int, end: int, files: int) -> tuple[int, int]:
        """Return the file in which character `end` of a joined text lies, and its place there."""
        for last in range(file, file + files):
            size = len(self.texts[last]) - (start if last == file else 0)
            if end <= size or last == file + files - 1:
                return last, end + (start if last == file else 0)
            end = max(0, end - size - len(JOINT))
        raise AssertionError("a text is joined from at least one file")

    def _encode(self, text: str) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Tokenise without special tokens; the spans of the tokens are made to tile the text."""
        encoding = self.tokenizer(
            text,
            add_special_tokens=False,
            split_special_tokens=True,  # "<eos>" in a text is five letters, not the end
            return_offsets_mapping=True,
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,  # no warning about max length: the whole point is to go beyond it
        )
        ids = np.asarray(encoding["input_ids"], dtype=np.int32)
        offsets = np.asarray(encoding["offset_mapping"], dtype=np.int64).reshape(-1, 2)
        found = self.special.intersection(ids.tolist())
        if found:
            token = self.tokenizer.convert_ids_to_tokens(min(found))
            raise UsageError(
                f"the corpus contains {token!r}, and this tokenizer reads it as a special token",
                "remove it from the text",
            )
        ends = np.maximum.accumulate(offsets[:, 1]) if len(ids) else offsets[:, 1]
        # Some tokenizers leave the white space that a token holds out of its span: give it back.
        starts = np.minimum(offsets[:, 0], np.concatenate(([0], ends[:-1]))) if len(ids) else offsets[:, 0]
        return ids, starts, ends

    def document(self, index: int, window: _Window) -> Document:
        """Make the document of a window: its name, and the tokens at which its sentences begin."""
        name = self.names[window.file] + (f"@{window.start}" if window.start else "")
        if window.last_file != window.file:
            name += f"..{self.names[window.last_file]}"
        starts = sentence_tokens(window.text, window.starts, window.ends)
        return Document(index, name, window.text, window.ids, window.starts, window.ends, starts)

    def total_tokens(self) -> int:
        """Count the tokens of all files, each on its own."""
        return sum(len(self._encode(text)[0]) for text in self.texts)
