"""Does what was read make sense? Each value by itself, and the rows beside the manifest that they lie with.

A value of the wrong type must not reach the statistics: there a loss of "12" or a document of null is no error, but a
number. Rows of another run or scaling, put under this one's names, must not pass for what it measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

from ctxeval.errors import UsageError
from ctxeval.results.schema import CELL_TYPES, SCHEMA_VERSION, Cell

#: The smallest value of a column, and the largest; depths are percent, losses and log-probs nats.
_LEAST = {
    **dict.fromkeys(("context_length", "window", "n_tokens"), 1),
    **dict.fromkeys(("document", "trial", "stride", "bytes", "n_needles", "answer_tokens"), 0),
    **dict.fromkeys(("needle_position", "needle_distance", "depth_percent", "factor", "nll", "baseline_nll"), 0),
}
_MOST = {"depth_percent": 100, "answer_logprob": 0}
#: Log-probs are rounded: a certain token may have one a little above 0.
_ROUNDING = 1e-3
_LARGEST = 2**53
_EDITED = "was it edited? take it from the run again"
_CONTROLS = ("", "no-needle", "native-window")


def check_values(row: Mapping[str, Any]) -> None:
    """Check the values of a row that has the columns of its probe.

    Raises:
        UsageError: a value that its column cannot have.
    """
    for name, (kinds, choices) in _columns(row["probe"]).items():
        value = row[name]
        if isinstance(value, float) and not math.isfinite(value):
            fits = False
        elif type(value) not in kinds or (choices and value not in choices):
            fits = False
        elif type(value) in (int, float):
            fits = _LEAST.get(name, -math.inf) - _ROUNDING <= value <= min(_MOST.get(name, _LARGEST) + _ROUNDING, 1e300)
        else:
            fits = True
        if not fits:
            shown = repr(value)
            raise UsageError(
                f"{name} is {shown if len(shown) <= 40 else shown[:40] + '…'}", "the file is damaged; measure again"
            )


@cache
def _columns(probe: str) -> dict[str, tuple[frozenset[type], tuple[Any, ...]]]:
    """Return, for each column, the types that its values may have, and the values where there are only a few."""
    found: dict[str, tuple[frozenset[type], tuple[Any, ...]]] = {}
    for name, hint in get_type_hints(CELL_TYPES[probe]).items():
        if get_origin(hint) is Literal:
            found[name] = (frozenset({str}), get_args(hint))
            continue
        kinds = set(get_args(hint) or (hint,))
        # JSON writes 50.0 as 50 where a formatter went over it.
        kinds |= {int} if float in kinds else set()
        found[name] = (frozenset(kinds), _CONTROLS if name == "control" else ())
    return found


def check_run(manifest: Mapping[str, Any], cells: list[Cell]) -> None:
    """Check rows against the manifest that they lie with; what it does not say is not checked.

    Raises:
        UsageError: a manifest of another schema, or a row that is not of this run, or there twice under other ids.
    """
    version = manifest.get("schema_version", SCHEMA_VERSION)
    if version != SCHEMA_VERSION:
        raise UsageError(
            f"run.json of schema version {version!r}", f"this ctxeval reads version {SCHEMA_VERSION}; measure again"
        )
    _check_grid(manifest)
    lengths, factors = _lengths(manifest), _factors(manifest)
    hint = "were rows of another run put into it, or run.json changed?"
    seen: set[tuple[Any, ...]] = set()
    for cell in cells:
        if lengths and cell.context_length not in lengths:
            raise UsageError(f"cell {cell.cell_id} is of length {cell.context_length}, which was not asked for", hint)
        if factors and cell.scale not in factors:
            raise UsageError(f"cell {cell.cell_id} is of scaling {cell.scale!r}, which was not asked for", hint)
        factor = factors.get(cell.scale)
        if factor is not None and not math.isclose(cell.factor, factor):
            raise UsageError(
                f"cell {cell.cell_id} of {cell.scale} has factor {cell.factor:g}, the run has {factor:g}", hint
            )
        key = _key(cell)
        if key in seen:
            raise UsageError(f"cell {cell.cell_id} is there twice under other ids", "each cell is measured once")
        seen.add(key)


def _check_grid(manifest: Mapping[str, Any]) -> None:
    """Hold what the tables and gates take from `resolved` against the identity that the rows were measured under."""
    identity, resolved = manifest["identity"], manifest.get("resolved")
    if not isinstance(resolved, Mapping):
        return
    for name in ("native_window", "documents", "depths", "protocol", "plan"):
        if name in identity and name in resolved and identity[name] != resolved[name]:
            raise UsageError(f"run.json has two of {name}: {identity[name]!r} and {resolved[name]!r}", _EDITED)
    lists = [identity.get("lengths"), resolved.get("lengths"), resolved.get("reference_lengths")]
    if all(isinstance(one, list) for one in lists) and set(lists[0]) != {*lists[1], *lists[2]}:
        raise UsageError("run.json has two grids of lengths", _EDITED)
    spec = manifest.get("spec")
    asked = spec.get("length") if isinstance(spec, Mapping) else None
    if asked is not None and resolved.get("target") != asked:
        raise UsageError(f"run.json has two targets: {asked!r} and {resolved.get('target')!r}", _EDITED)


def _key(cell: Cell) -> tuple[Any, ...]:
    # A depth beside the grid depth that falls on the same sentence is another row of the same needle.
    about = (cell.probe, cell.task, cell.control, cell.plan, cell.scale, cell.context_length, cell.depth_percent)
    return (*about, cell.document, cell.trial, getattr(cell, "needle_id", None))


def _lengths(manifest: Mapping[str, Any]) -> set[int]:
    lengths = manifest["identity"].get("lengths")
    return set(lengths) if isinstance(lengths, list) and all(isinstance(one, int) for one in lengths) else set()


def _factors(manifest: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the factor of each scaling, None where the manifest does not say; the unpatched model is always run."""
    scalings = manifest.get("resolved", {}).get("scalings")
    if not isinstance(scalings, list) or not scalings:
        return {}
    found: dict[str, float | None] = {"none": None}
    for one in scalings:
        if isinstance(one, dict) and isinstance(one.get("label"), str):
            factor = one.get("factor")
            found[one["label"]] = factor if isinstance(factor, (int, float)) else None
    return found
