"""One measurement is one flat row. This file is the only place that says which columns a row has."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from ctxeval.errors import UsageError, unknown

#: Raised when a row's columns change.
SCHEMA_VERSION = 1
#: Raised when the same spec would give other values: prompts, needles, scoring. Runs of unlike versions never mix.
SCORING_VERSION = 1

Probe = Literal["needle", "perplexity", "screen"]
Status = Literal["ok", "oom", "nan", "skipped", "error"]

STATUSES: tuple[Status, ...] = ("ok", "oom", "nan", "skipped", "error")

#: The only column that two runs of the same cell may differ in.
VOLATILE_COLUMNS = ("seconds",)


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """Columns that every row has.

    `control` is "" for a measurement proper, "no-needle" for a question whose needle is not in the context, and
    "native-window" for the unpatched model reading only the last native window (the perplexity baseline).
    `depth_percent` is the grid depth, or nan where depth has no meaning; `document` and `trial` count from 0.
    """

    cell_id: str
    probe: Probe
    task: str
    control: str
    plan: Literal["exact", "packed"]
    scale: str
    factor: float
    context_length: int
    depth_percent: float | None
    document: int
    trial: int
    status: Status = "ok"
    reason: str = ""
    seconds: float = 0.0
    schema_version: int = SCHEMA_VERSION

    def to_row(self) -> dict[str, Any]:
        """Return the flat row, in column order."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class NeedleCell(Cell):
    """A needle that was asked for. Positions and distances are in tokens, log-probs in nats."""

    needle_id: str
    needle_position: int | None
    needle_distance: int | None
    n_needles: int
    expected: str
    got: str = ""
    correct: bool | None = None
    answer_logprob: float | None = None
    answer_tokens: int = 0
    margin: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class PerplexityCell(Cell):
    """Summed loss of one document at one length, beside the unpatched native-window loss on the same tokens.

    `nll` and `baseline_nll` are sums in nats over the same `n_tokens` tokens, which come from `bytes` UTF-8 bytes.
    """

    protocol: str
    window: int
    stride: int
    n_tokens: int
    bytes: int
    nll: float | None = None
    baseline_nll: float | None = None


CELL_TYPES: dict[str, type[Cell]] = {"needle": NeedleCell, "screen": NeedleCell, "perplexity": PerplexityCell}


def cell_id(identity: Mapping[str, Any]) -> str:
    """Hash everything that determines a cell's value (JSON-serialisable) to 16 hex digits."""
    canonical = json.dumps(identity, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def cell_from_row(row: Mapping[str, Any]) -> Cell:
    """Rebuild a cell from its row.

    Raises:
        UsageError: another schema version, an unknown probe, or columns that are missing or not ours.
    """
    if row.get("schema_version") != SCHEMA_VERSION:
        raise UsageError(
            f"row of schema version {row.get('schema_version')!r}",
            f"this ctxeval reads version {SCHEMA_VERSION}; measure again",
        )
    probe = str(row.get("probe"))
    if probe not in CELL_TYPES:
        raise unknown("probe", probe, CELL_TYPES)
    kind = CELL_TYPES[probe]
    names = {field.name for field in fields(kind)}
    if names != set(row):
        missing, foreign = sorted(names - set(row)), sorted(set(row) - names)
        raise UsageError(
            f"a {probe} row with other columns: missing {missing}, not ours {foreign}",
            "was cells.jsonl written by another program?",
        )
    return kind(**row)
