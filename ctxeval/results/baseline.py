"""A baseline that can be committed: what comparisons and gates need of a run, as a small file that can be reviewed.

A hash over the content, not over the text, tells a file that was only formatted anew from one that was changed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from ctxeval.analysis.perplexity import perplexity_rows
from ctxeval.analysis.recall import asked, main_plan
from ctxeval.errors import UsageError
from ctxeval.results.files import plain
from ctxeval.results.store import COLUMNS, Run, typed

FORMAT = "ctxeval baseline 1"
MANIFEST = ("schema_version", "identity", "resolved", "model", "tokenizer", "dtype", "device", "finished")
NEEDLE = (
    *("scale", "context_length", "document", "trial", "depth_percent", "needle_id"),
    *("status", "correct", "answer_logprob"),
)
PERPLEXITY = ("scale", "context_length", "document", "trial", "status", "n_tokens", "bytes", "nll")


def baseline_json(run: Run) -> str:
    """Return a finished run as the text of a baseline: a line a row, without controls and without model output.

    Raises:
        UsageError: the run is not finished, or has no rows.
    """
    if not run.manifest.get("finished") or run.cells.empty:
        raise UsageError(f"{run.path} is not finished", f"finish it with `ctxeval run --resume {run.path}`")
    manifest = {key: run.manifest[key] for key in MANIFEST if key in run.manifest}
    # Of the spec only this: it names the model by its path on some machine.
    spec = run.manifest.get("spec") or {}
    manifest["spec"] = {key: spec[key] for key in ("probes", "trials") if key in spec}
    content = plain(
        {
            "format": FORMAT,
            "manifest": manifest,
            "plan": main_plan(run.cells),
            "columns": {"needle": NEEDLE, "perplexity": PERPLEXITY},
            "needle": _rows(asked(run.cells), NEEDLE),
            "perplexity": _rows(perplexity_rows(run.cells), PERPLEXITY),
        }
    )
    content = {"sha256": content_hash(content), **content}
    parts = [f"{json.dumps(key)}: {_block(value)}" for key, value in content.items()]
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _rows(cells: pd.DataFrame, columns: tuple[str, ...]) -> list[list[Any]]:
    values = cells[list(columns)].astype(object)
    rows: list[list[Any]] = values.where(values.notna(), None).to_numpy().tolist()
    return rows


def _block(value: Any) -> str:
    """Write a list of rows a row a line, anything else in one line."""
    if isinstance(value, list) and value:
        return "[\n" + ",\n".join(json.dumps(row, ensure_ascii=False) for row in value) + "\n]"
    return json.dumps(value, ensure_ascii=False)


def content_hash(content: Mapping[str, Any]) -> str:
    """Hash the content but for `sha256`: keys in order, no white space, 1.0 as 1, as some formatters write it."""
    kept = _canonical({key: value for key, value in content.items() if key != "sha256"})
    text = json.dumps(kept, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _canonical(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: _canonical(item) for key, item in value.items()}
    return [_canonical(item) for item in value] if isinstance(value, list) else value


def load_baseline(path: Path) -> Run:
    """Read a baseline file; its `cells` have the rows that count, and only the columns that comparisons need.

    Raises:
        UsageError: unreadable, not a baseline, of another version, or changed since it was written.
    """
    try:
        content = json.loads(path.read_bytes(), parse_constant=_refuse)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", "give a run folder or a baseline file") from None
    except (ValueError, RecursionError):
        raise UsageError(f"{path} is not JSON", "give a run folder, or a file that `ctxeval baseline` wrote") from None
    found = content.get("format") if isinstance(content, dict) else None
    if found != FORMAT:
        shown = f"has the format {found!r}" if found else "is not a baseline"
        raise UsageError(f"{path} {shown}", f"write it with `ctxeval baseline`, which writes {FORMAT!r}")
    if content.get("sha256") != content_hash(content):
        raise UsageError(
            f"the content of {path} was changed since it was written", "write it again with `ctxeval baseline`"
        )
    try:
        rows = [
            dict(zip(content["columns"][probe], row, strict=True))
            | {"probe": probe, "control": "", "plan": content["plan"] if probe == "needle" else "exact"}
            for probe in ("needle", "perplexity")
            for row in content[probe]
        ]
        return Run(path, dict(content["manifest"]), typed(pd.DataFrame(rows, columns=list(COLUMNS))))
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{path} has rows that cannot be read: {error}", "write it again") from None


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not standard JSON")
