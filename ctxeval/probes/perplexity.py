"""The perplexity probe: summed loss on chosen tokens, beside the unpatched model's on the same tokens.

Protocols (each row names its own):
  tail     the last K = min(1024, native/4) tokens before L. The model reads [0, L); the unpatched model reads the last
           native window before L. Text difficulty cancels in the ratio; the ratio says what the *extra* context does.
  all      every token of one window of L tokens (as in tables 1, 2 and 6 of the YaRN paper, arXiv:2309.00071).
  strided  the whole document through windows of L tokens that advance by `stride`; only new tokens are scored, each
           exactly once. Every L is measured on the same tokens.
Losses are summed in nats and tokens are counted; nothing is averaged before the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ctxeval.engine.plan import Prompt, TokenIds
from ctxeval.model.scores import TokenScores
from ctxeval.probes.measurement import Measurement
from ctxeval.text.assemble import Frame
from ctxeval.text.documents import Document

MAX_TAIL = 1024

#: Marks the rows of the unpatched model that others are compared with.
BASELINE = "native-window"


def tail_tokens(native_window: int) -> int:
    """Return K, the number of tokens that the `tail` protocol scores: min(1024, native / 4)."""
    return min(MAX_TAIL, native_window // 4)


@dataclass(frozen=True)
class Window:
    """The model reads positions [start, stop) of the document and is scored on [score_start, stop)."""

    start: int
    stop: int
    score_start: int


def sliding(first: int, stop: int, window: int, stride: int) -> Iterator[Window]:
    """Cover the tokens [first, stop), first >= 1, exactly once, by windows that begin at 0 and advance by `stride`.

    The first window scores all of its tokens; later ones only what is new, at most `stride` tokens, each with at
    least window - stride tokens of context.
    """
    end = min(stop, window)
    if end > first:
        yield Window(0, end, first)
    done = max(end, first)
    while done < stop:
        end = min(done + stride, stop)
        yield Window(max(end - window, 0), end, done)
        done = end


@dataclass(frozen=True, eq=False)
class PerplexityProbe:
    """Builds the measurements of the perplexity probe for one tokenizer."""

    frame: Frame
    lengths: tuple[int, ...]
    native_window: int
    protocol: str
    stride: int | None = None

    def measure(self, document: Document) -> list[Measurement]:
        """One row a length for a model that reads it all."""
        return [self._row(document, length, "", self._windows(length)) for length in self.lengths]

    def baseline(self, document: Document) -> list[Measurement]:
        """One row a length for the unpatched model, which reads no more than its native window at a time."""
        return [self._row(document, length, BASELINE, self._baseline_windows(length)) for length in self.lengths]

    def _windows(self, length: int) -> list[Window]:
        if self.protocol == "tail":
            return [Window(0, length, max(length - tail_tokens(self.native_window), 1))]
        if self.protocol == "all":
            return [Window(0, length, 1)]
        return list(sliding(1, max(self.lengths), length, self._stride(length)))

    def _baseline_windows(self, length: int) -> list[Window]:
        if length <= self.native_window:
            return self._windows(length)
        if self.protocol == "tail":
            return [Window(length - self.native_window, length, length - tail_tokens(self.native_window))]
        stop = length if self.protocol == "all" else max(self.lengths)
        return list(sliding(1, stop, self.native_window, self._stride(self.native_window)))

    def _stride(self, window: int) -> int:
        """Return how far a window advances: what was asked for, or a quarter.

        Never so far that a token is left without context: the first one of a window is read, and not scored.
        """
        most = window - max(len(self.frame.prefix), 1)
        return min(self.stride or max(window // 4, 1), most)

    def _row(self, document: Document, length: int, control: str, windows: Sequence[Window]) -> Measurement:
        prompts = tuple(self._prompt(document.ids, window) for window in windows)
        # Scores begin at the first text token: the prefix (BOS) is read but never scored.
        first = max(windows[0].score_start - len(self.frame.prefix), 0)
        last = windows[-1].stop - len(self.frame.prefix)
        read = max(window.stop - window.start for window in windows)
        slides = self.protocol == "strided" or len(windows) > 1
        columns = {
            "probe": "perplexity",
            "task": self.protocol,
            "control": control,
            "plan": "exact",
            "context_length": length,
            "depth_percent": None,
            "document": document.index,
            "trial": 0,
            "protocol": self.protocol,
            "window": read,
            "stride": self._stride(read) if slides else 0,
            "n_tokens": sum(prompt.score_stop - prompt.score_start for prompt in prompts),
            "bytes": document.bytes_between(first, last),
        }
        return Measurement(columns, prompts, _sum_nll)

    def _prompt(self, text: TokenIds, window: Window) -> Prompt:
        """Build the prompt of one window; positions count the prefix, which every window begins with."""
        prefix = self.frame.prefix
        ids = np.concatenate([prefix, text[window.start : window.stop - len(prefix)]]).astype(np.int32)
        if len(ids) != window.stop - window.start:
            raise AssertionError(f"window of {window.stop - window.start} tokens became {len(ids)}")
        start = window.score_start - window.start
        if start < max(len(prefix), 1) and window.start:
            raise AssertionError(f"token {window.score_start} has no context in the window from {window.start}")
        return Prompt(ids, max(start, len(prefix), 1), len(ids))


def _sum_nll(scores: Sequence[TokenScores]) -> Mapping[str, Any]:
    total = float(sum(score.nll.sum() for score in scores))
    if not np.isfinite(total):
        return {"status": "nan", "reason": "the loss is not finite"}
    return {"nll": total}
