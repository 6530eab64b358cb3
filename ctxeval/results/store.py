"""The run folder: `cells.jsonl`, one line a measurement as it happens, and `run.json`, the manifest."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, Self

from ctxeval.errors import RunError, UsageError
from ctxeval.results.checks import check_run, check_values
from ctxeval.results.files import plain, write_whole
from ctxeval.results.schema import CELL_TYPES, Cell, Status, cell_from_row

if TYPE_CHECKING:
    import pandas as pd

    from ctxeval.analysis.headline import Headline

CELLS = "cells.jsonl"
MANIFEST = "run.json"
#: Rows of this status are measured again when a run is resumed: a bigger or emptier machine may have the memory. The
#: new row follows the old one in the file, and is the one that counts.
RETRIED: Status = "oom"
#: At least this often, rows that were written are brought to the disk.
SYNC_SECONDS = 1.0
COLUMNS = tuple(dict.fromkeys(field.name for kind in CELL_TYPES.values() for field in fields(kind)))


@dataclass(frozen=True, eq=False)
class Run:
    """A finished or unfinished run as read from its folder; `cells` has one row a measurement."""

    path: Path
    manifest: dict[str, Any]
    cells: pd.DataFrame

    @property
    def done(self) -> set[str]:
        """The ids of the cells that resuming leaves as they are."""
        return set(self.cells.loc[self.cells["status"] != RETRIED, "cell_id"])

    def headline(self) -> Headline:
        """Summarise the cells on the run's own grid."""
        from ctxeval.analysis.headline import from_manifest

        return from_manifest(self.cells, self.manifest)


class RunStore:
    """A run folder open for writing, by one process at a time. Use `create` or `resume`, as a context manager."""

    def __init__(self, path: Path, handle: BinaryIO, ids: set[str]) -> None:
        self.path = path
        self.ids = ids
        self._handle = handle
        self._synced = time.monotonic()

    @classmethod
    def create(cls, path: Path | str, manifest: Mapping[str, Any]) -> Self:
        """Start a run in a folder that is new or empty; its parents are made.

        Raises:
            UsageError: the folder holds something already, or cannot be written.
        """
        folder = Path(path)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if any(folder.iterdir()):
                raise UsageError(
                    f"output folder {folder} is not empty", "choose a new one, or continue it with --resume"
                )
            store = cls(folder, _locked(folder, "xb"), set())
        except FileExistsError:
            raise UsageError(f"output {folder} is taken by a file or by another run", "choose a new folder") from None
        except OSError as error:
            raise UsageError(f"cannot write output folder {folder}: {error.strerror}", "choose another") from None
        store.write_manifest(manifest)
        return store

    @classmethod
    def resume(cls, path: Path | str, manifest: Mapping[str, Any]) -> Self:
        """Continue a run: what is there is loaded, and a torn last line is cut off. `ids` lacks rows to measure again.

        Raises:
            UsageError: no run, a damaged one, one that another process writes, or one whose identity differs.
        """
        folder = Path(path)
        same_identity(_read_manifest(folder), manifest)
        try:
            handle = _locked(folder, "r+b")
        except OSError as error:
            raise UsageError(f"cannot open {folder / CELLS}: {error.strerror}", "choose a folder to resume") from None
        try:
            content = handle.read()
            whole = content[: content.rfind(b"\n") + 1]
            cells = _parse(whole, folder / CELLS)
            handle.truncate(len(whole))
            handle.seek(len(whole))
        except BaseException:
            handle.close()
            raise
        return cls(folder, handle, {cell.cell_id for cell in cells if cell.status != RETRIED})

    def append(self, cells: Sequence[Cell]) -> None:
        """Write cells as whole lines, in one write.

        What is written survives the death of this process at once, and that of the machine within `SYNC_SECONDS`:
        short rows come faster than a disk can confirm them.

        Raises:
            RunError: the disk refuses, or a cell is there already.
        """
        new = [cell.cell_id for cell in cells]
        again = sorted({name for name in new if name in self.ids or new.count(name) > 1})
        if again:
            raise RunError(f"cell {again[0]} is measured twice", f"{len(again)} such cells for {self.path / CELLS}")
        data = "".join(_line(cell) for cell in cells).encode()
        start = self._handle.tell()
        try:
            # Unbuffered, so that nothing refused now is written later; a nearly full disk takes a part first.
            while data:
                data = data[self._handle.write(data) :]
            if time.monotonic() - self._synced >= SYNC_SECONDS:
                self._sync()
        except OSError as error:
            self._roll_back(start)
            raise RunError(
                f"cannot write {self.path / CELLS}: {error.strerror}", "make room, then continue with --resume"
            ) from None
        self.ids.update(new)

    def write_manifest(self, manifest: Mapping[str, Any]) -> None:
        """Replace run.json as a whole; the rows that it speaks of reach the disk first.

        Raises:
            RunError: the disk refuses.
        """
        self._confirm()
        text = json.dumps(plain(manifest), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        write_whole(self.path / MANIFEST, text.encode())

    def close(self) -> None:
        """Bring everything to the disk and release the folder.

        Raises:
            RunError: the disk refuses.
        """
        try:
            self._confirm()
        finally:
            self._handle.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _confirm(self) -> None:
        try:
            self._sync()
        except OSError as error:
            raise RunError(f"cannot write {self.path / CELLS}: {error.strerror}", "continue with --resume") from None

    def _sync(self) -> None:
        os.fsync(self._handle.fileno())
        self._synced = time.monotonic()

    def _roll_back(self, start: int) -> None:
        # Half a batch must not be followed by other lines. If this fails too, the torn line is cut off on resume.
        try:
            self._handle.seek(start)
            self._handle.truncate()
        except OSError:
            pass


def load_run(path: Path | str) -> Run:
    """Read a run folder, also while it is being written (a torn last line is left out).

    Raises:
        UsageError: not a run folder, unreadable, or damaged (with the line number where there is one), or with more
            rows than were planned. One with fewer is read: see `analysis.completeness`.
    """
    folder = Path(path)
    manifest = _read_manifest(folder)
    content = _read(folder / CELLS)
    cells = _parse(content[: content.rfind(b"\n") + 1], folder / CELLS)
    _check_planned(folder, manifest, len(cells))
    try:
        check_run(manifest, cells)
    except UsageError as error:
        raise UsageError(f"{folder}: {error.message}", error.hint) from None
    return Run(folder, manifest, to_frame(cells))


def _check_planned(folder: Path, manifest: Mapping[str, Any], rows: int) -> None:
    planned = manifest.get("planned_rows")
    if planned is None:
        return
    if not isinstance(planned, int) or isinstance(planned, bool) or planned < 0:
        raise UsageError(f"{folder / MANIFEST} has planned_rows {planned!r}", "it must be a number of rows")
    if rows > planned:
        raise UsageError(
            f"{folder / CELLS} has {rows} rows, {planned} were planned", "were rows of another run put into it?"
        )


def to_frame(cells: Sequence[Cell]) -> pd.DataFrame:
    """Return the table of cells: every column of every probe, nan or NA where a probe has no such column."""
    import pandas as pd

    return typed(pd.DataFrame([cell.to_row() for cell in cells], columns=list(COLUMNS)))


def typed(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the table with the types that its columns have even where they are empty."""
    numbers = ("depth_percent", "needle_position", "needle_distance", "answer_logprob", "margin", "nll", "baseline_nll")
    return frame.astype({**dict.fromkeys(numbers, "float64"), "correct": "boolean"})


def _locked(folder: Path, mode: str) -> BinaryIO:
    handle: BinaryIO = (folder / CELLS).open(mode, buffering=0)  # type: ignore[assignment]
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        handle.close()
        raise UsageError(f"{folder} is being written by another process", "wait for it to end") from None
    return handle


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", "give the folder of a run") from None


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    try:
        manifest = json.loads(_read(path))
    except ValueError:
        raise UsageError(f"{path} is not JSON", "was it edited or copied in part?") from None
    if not isinstance(manifest, dict) or not isinstance(manifest.get("identity"), dict):
        raise UsageError(f"{path} is not the manifest of a run", "it has no object 'identity'")
    for key in ("spec", "resolved", "model", "versions", "proofs"):
        if not isinstance(manifest.get(key, {}), dict):
            raise UsageError(f"{path} has {key} {manifest[key]!r}, which is no object", "was it edited?")
    return manifest


def _parse(content: bytes, path: Path) -> list[Cell]:
    """Return the cells of whole lines in their order; one that was measured again stands where it last was."""
    cells: dict[str, Cell] = {}
    for number, line in enumerate(content.split(b"\n")[:-1], start=1):
        try:
            row = json.loads(line, parse_constant=_refuse)
        except ValueError:
            raise UsageError(f"{path}, line {number} is not JSON", "the file is damaged; measure again") from None
        if not isinstance(row, dict):
            raise UsageError(f"{path}, line {number} is not a row", "the file is damaged; measure again")
        try:
            cell = cell_from_row(row)
            check_values(row)
        except UsageError as error:
            raise UsageError(f"{path}, line {number}: {error.message}", error.hint) from None
        earlier = cells.pop(cell.cell_id, None)
        if earlier and earlier.status != RETRIED:
            raise UsageError(f"{path}, line {number} repeats cell {cell.cell_id}", "each cell is measured once")
        cells[cell.cell_id] = cell
    return list(cells.values())


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not standard JSON")


def _line(cell: Cell) -> str:
    return json.dumps(plain(cell.to_row()), ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n"


def same_identity(stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Refuse to go on with a run whose manifest has another identity than the one that is wanted now.

    Raises:
        UsageError: naming what differs.
    """
    # Compared as JSON has them: a tuple and a list are the same there.
    old, new = stored["identity"], json.loads(json.dumps(plain(wanted["identity"])))
    if old == new:
        return
    keys = sorted(key for key in {*old, *new} if old.get(key) != new.get(key))
    shown = "; ".join(f"{key}: {json.dumps(old.get(key))} there, {json.dumps(new.get(key))} asked for" for key in keys)
    raise UsageError(f"the run to resume differs: {shown}", "resume with the same options, or start a new run")
