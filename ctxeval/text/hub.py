"""Texts from a `datasets` data set: a Hub id, or a local parquet or JSON file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from ctxeval.errors import UsageError

FORM = "hf:NAME[:CONFIG]:SPLIT[:COLUMN]"
BUILDERS = {".parquet": "parquet", ".json": "json", ".jsonl": "json"}
#: A colon that is not inside the brackets of a slice such as train[:1000].
COLON = re.compile(r":(?![^\[]*\])")
USUAL_SPLITS = frozenset({"train", "validation", "valid", "val", "dev", "test", "all"})


class DatasetName(NamedTuple):
    """What `hf:NAME[:CONFIG]:SPLIT[:COLUMN]` names; empty CONFIG or COLUMN mean the data set's own."""

    name: str
    config: str
    split: str
    column: str

    @property
    def builder(self) -> str | None:
        """The builder for a local file, or None for a Hub id or a folder."""
        return BUILDERS.get(Path(self.name).suffix.lower())


def parse_name(spec: str) -> DatasetName:
    """Read `hf:NAME[:CONFIG]:SPLIT[:COLUMN]`.

    Three parts are NAME:SPLIT:COLUMN for a local file, or where the second is a usual split name (also sliced, as
    `train[:1000]`), else NAME:CONFIG:SPLIT. `hf:NAME::SPLIT:COLUMN` is never ambiguous.

    Raises:
        UsageError: too few or too many parts, or an empty NAME or SPLIT.
    """
    parts = COLON.split(spec.removeprefix("hf:"))
    local = Path(parts[0]).suffix.lower() in BUILDERS
    match parts:
        case [name, split]:
            found = DatasetName(name, "", split, "")
        case [name, second, third] if local or _is_split(second):
            found = DatasetName(name, "", second, third)
        case [name, config, split]:
            found = DatasetName(name, config, split, "")
        case [name, config, split, column]:
            found = DatasetName(name, config, split, column)
        case _:
            raise UsageError(f"corpus {spec!r} does not name a data set and a split", f"write {FORM}")
    if not found.name or not found.split:
        raise UsageError(f"corpus {spec!r} does not name a data set and a split", f"write {FORM}")
    return found


def _is_split(text: str) -> bool:
    return re.split(r"[\[+]", text)[0] in USUAL_SPLITS


def load_rows(spec: str) -> list[tuple[str, str]]:
    """Load the (name, text) pairs of `hf:NAME[:CONFIG]:SPLIT[:COLUMN]`, in the data set's order.

    Raises:
        UsageError: the data set, config, split or column cannot be had, or the column holds no strings.
    """
    wanted = parse_name(spec)
    if wanted.builder and not Path(wanted.name).expanduser().is_file():
        raise UsageError(f"no data file {wanted.name!r}", f"write {FORM}")
    rows = _load(spec, wanted)
    column = _text_column(spec, wanted, rows.features)
    return [(f"{wanted.split}[{i}]", text) for i, text in enumerate(rows[column]) if text is not None]


def _load(spec: str, wanted: DatasetName) -> Any:
    import datasets
    from datasets.exceptions import DatasetsError
    from huggingface_hub.errors import HfHubHTTPError

    if wanted.builder:
        base = re.split(r"[\[+]", wanted.split)[0]
        arguments: dict[str, Any] = {"path": wanted.builder, "data_files": {base: str(Path(wanted.name).expanduser())}}
    else:
        arguments = {"path": wanted.name, "name": wanted.config or None}
    try:
        with _quiet(datasets):
            return datasets.load_dataset(**arguments, split=wanted.split)
    # ValueError: unknown config or split, or a damaged file (pyarrow); OSError: no such data set, or no network.
    except (DatasetsError, HfHubHTTPError, OSError, ValueError) as error:
        reason = str(error.__cause__ or error).strip().splitlines()[0]
        raise UsageError(f"cannot load corpus {spec!r}: {reason}", f"write {FORM}") from error


@contextmanager
def _quiet(datasets: Any) -> Iterator[None]:
    """Keep the library's progress bars and chatter off the terminal; its exceptions carry the reason."""
    level = datasets.logging.get_verbosity()
    bars = datasets.are_progress_bars_disabled()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        datasets.logging.set_verbosity(level)
        if not bars:
            datasets.enable_progress_bars()


def _text_column(spec: str, wanted: DatasetName, features: Any) -> str:
    strings: list[str] = [
        name for name, kind in features.items() if getattr(kind, "dtype", "") in ("string", "large_string")
    ]
    if wanted.column:
        if wanted.column not in strings:
            raise UsageError(f"corpus {spec!r} has no text column {wanted.column!r}", f"text columns: {strings}")
        return wanted.column
    if "text" in strings:
        return "text"
    if len(strings) == 1:
        return strings[0]
    raise UsageError(f"corpus {spec!r} has text columns {strings}", f"name one: {FORM}")
