"""`samples.jsonl`: the text around some needles of a run, so that a report can show what was asked and missed.

Rows hold no text, so that they stay small and comparable. This file beside them is capped, and may be deleted.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from ctxeval.errors import RunError, UsageError
from ctxeval.results.schema import Cell, NeedleCell

SAMPLES = "samples.jsonl"
#: Kept of each scaling and length: this many misses, and this many hits to compare them with.
MISSES, HITS = 3, 1


@dataclass(frozen=True)
class Excerpt:
    """A needle in its place: the corpus's own text on both sides, as far as the context shows it, and the question."""

    before: str
    needle: str
    after: str
    question: str
    lead: str


@dataclass(frozen=True)
class Sample:
    """The excerpt of one row of cells.jsonl, by its `cell_id`."""

    cell_id: str
    scale: str
    context_length: int
    correct: bool
    excerpt: Excerpt


class SampleStore:
    """The samples of a run folder, open for writing; use as a context manager.

    What is kept depends on the rows and their order alone, so a resumed run keeps what an uninterrupted one does.
    """

    def __init__(self, folder: Path) -> None:
        """Go on with what is there; a torn last line is cut off.

        Raises:
            UsageError: the file is damaged.
            RunError: it cannot be opened.
        """
        self.path = folder / SAMPLES
        self._handle: BinaryIO | None = None
        known: list[Sample] = []
        if self.path.exists():
            handle = self._open()
            content = handle.read()
            whole = content[: content.rfind(b"\n") + 1]
            handle.truncate(len(whole))
            known = list(_parse(whole, self.path))
        self._ids = {one.cell_id for one in known}
        self._counts = Counter((one.scale, one.context_length, one.correct) for one in known)

    def _open(self) -> BinaryIO:
        """Open the file for appending, at its beginning for reading; it is made with its first sample only."""
        if self._handle is None:
            try:
                self._handle = self.path.open("a+b", buffering=0)
            except OSError as error:
                raise RunError(f"cannot write {self.path}: {error.strerror}", "continue with --resume") from None
            self._handle.seek(0)
        return self._handle

    def offer(self, cell: Cell, excerpt: Excerpt | None) -> None:
        """Keep the excerpt of a measured row if there is room for its kind. To be called before the row is appended.

        Raises:
            RunError: the disk refuses.
        """
        if excerpt is None or not isinstance(cell, NeedleCell) or cell.status not in ("ok", "nan"):
            return
        kind = (cell.scale, cell.context_length, bool(cell.correct))
        if cell.cell_id in self._ids or self._counts[kind] >= (HITS if kind[2] else MISSES):
            return
        line = json.dumps(asdict(Sample(cell.cell_id, *kind, excerpt)), ensure_ascii=False) + "\n"
        data = line.encode(errors="replace")
        handle = self._open()
        try:
            while data:
                data = data[handle.write(data) :]
        except OSError as error:
            hint = "make room, then continue with --resume"
            raise RunError(f"cannot write {self.path}: {error.strerror}", hint) from None
        self._ids.add(cell.cell_id)
        self._counts[kind] += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._handle is not None:
            self._handle.close()


def load_samples(folder: Path) -> list[Sample]:
    """Read the samples of a run folder; none where there is no such file, as in runs of before it existed.

    Raises:
        UsageError: unreadable or damaged, with the line number.
    """
    path = folder / SAMPLES
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", "leave it out with --no-samples") from None
    return list(_parse(content[: content.rfind(b"\n") + 1], path))


def _parse(content: bytes, path: Path) -> Iterator[Sample]:
    for number, line in enumerate(content.splitlines(), start=1):
        try:
            row = json.loads(line)
            sample = Sample(**{**row, "excerpt": Excerpt(**row["excerpt"])})
        except (ValueError, TypeError, KeyError):
            raise UsageError(f"{path}, line {number} is not a sample", "the file is damaged: delete it") from None
        if not _typed(sample):
            raise UsageError(f"{path}, line {number} has a value of the wrong type", "the file is damaged: delete it")
        yield sample


def _typed(sample: Sample) -> bool:
    texts = [getattr(sample.excerpt, one.name) for one in fields(Excerpt)]
    return (
        all(isinstance(text, str) for text in (*texts, sample.cell_id, sample.scale))
        and type(sample.context_length) is int
        and type(sample.correct) is bool
    )
