"""The `model-index` of a Hub model card: recall and perplexity ratio of a run, as YAML. Pure.

Fields as in huggingface/hub-docs, modelcard.md: `task.type`, `dataset.type`, `dataset.name`, `metrics.type` and
`metrics.value` are required.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from ctxeval.analysis.headline import Headline, ScalingResult
from ctxeval.analysis.onset import length_label
from ctxeval.analysis.stats import Estimate
from ctxeval.errors import UsageError
from ctxeval.report.text import one_line, scale_label

HEAD = "# Put this into the front matter (between the --- lines) of the model's README.md.\n"


def model_card(manifest: Mapping[str, Any], summary: Headline) -> str:
    """Return the YAML: for each scaling and length what was measured, with its 95 % interval and its state.

    Raises:
        UsageError: nothing was measured, so there is nothing to publish.
    """
    needles = list(_metrics(summary, retrieval=True))
    losses = list(_metrics(summary, retrieval=False))
    if not needles and not losses:
        raise UsageError("the run has no result to publish", "finish it first")
    model = manifest.get("model") or {}
    resolved = manifest.get("resolved") or {}
    results = []
    for metrics, probe in ((needles, f"needle task {resolved.get('task')}"), (losses, "perplexity")):
        if metrics:
            task = {"type": "text-generation", "name": "Long-context evaluation"}
            results.append({"task": task, "dataset": _dataset(manifest, probe), "metrics": metrics})
    index = [{"name": one_line(str(model.get("name") or "unknown model")), "results": results}]
    return HEAD + yaml.safe_dump({"model-index": index}, sort_keys=False, allow_unicode=True, width=100)


def _dataset(manifest: Mapping[str, Any], probe: str) -> dict[str, Any]:
    """Describe the text; the revision of what is not a Hub data set is the hash of the text itself."""
    corpus = (manifest.get("identity") or {}).get("corpus") or {}
    name = one_line(str(corpus.get("name") or "unknown corpus"))
    hub = name.split(":")
    found: dict[str, Any] = {"type": hub[1] if hub[0] == "hf" and len(hub) > 1 else name, "name": f"{name}, {probe}"}
    if corpus.get("sha256"):
        found["revision"] = str(corpus["sha256"])
    spec = manifest.get("spec") or {}
    args = {key: spec[key] for key in ("documents", "seed", "protocol", "packed") if spec.get(key) is not None}
    return {**found, "args": args} if args else found


def _metrics(summary: Headline, *, retrieval: bool) -> Iterator[dict[str, Any]]:
    for row in summary.rows:
        for result in row.lengths:
            estimate = result.recall if retrieval else result.perplexity.ratio
            state = result.recall_state if retrieval else result.ratio_state
            if estimate.measured:
                yield _metric(row, result.length, estimate, state, retrieval)


def _metric(row: ScalingResult, length: int, estimate: Estimate, state: str, retrieval: bool) -> dict[str, Any]:
    kind, name = ("recall", "Needle recall") if retrieval else ("perplexity_ratio", "Perplexity ratio")
    label = one_line(scale_label(row.scale, row.factor))
    low, high = (round(float(bound), 4) if abs(bound) < 1e6 else None for bound in (estimate.low, estimate.high))
    args = {"context_length": length, "scaling": one_line(row.scale), "factor": float(row.factor), "state": state}
    return {
        "type": kind,
        "value": round(float(estimate.value), 4),
        "name": f"{name} @ {length_label(length)} ({label})",
        "args": {**args, "low_95": low, "high_95": high, "documents": estimate.documents},
    }
