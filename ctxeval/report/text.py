"""How numbers and names are written in every report."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from ctxeval.analysis.onset import State, length_label
from ctxeval.analysis.stats import Estimate
from ctxeval.wording import counted

MISSING = "–"
#: Readable without colour: what is appended to a value by its state.
MARKS: Mapping[State, str] = {"holds": "", "broken": "!", "undecided": "?", "missing": ""}
#: Behind the state's mark, where not every row that was asked for has a result.
INCOMPLETE = "†"
LEGEND = "! broken  ? undecided  – not measured  † rows missing or NaN  no mark: holds"


def percent(share: float) -> str:
    """Write a share as whole percent; only a share of exactly 0 or 1 is written 0 or 100."""
    if not math.isfinite(share):
        return MISSING
    value = round(100 * share)
    if value == 100 and share < 1:
        return "99"
    if value == 0 and share > 0:
        return "1"
    return str(value)


def percent_range(estimate: Estimate) -> str:
    """Write the interval of a share in percent, rounded outwards: `81–100`."""
    if not estimate.measured:
        return ""
    return f"{math.floor(100 * estimate.low + 1e-9)}–{math.ceil(100 * estimate.high - 1e-9)}"


def number(value: float) -> str:
    """Write a perplexity or a ratio in at most five characters; a blow-up is `>1e3`."""
    if not math.isfinite(value):
        return MISSING
    if value > 1000:
        return ">1e3"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def outward(value: float, direction: int) -> float:
    """Return the bound of an interval at the precision that `number` writes, rounded up (1) or down (-1)."""
    if not math.isfinite(value) or value > 1000:
        return value
    scale = 100 if value < 10 else 10 if value < 100 else 1
    return (math.ceil(value * scale - 1e-9) if direction > 0 else math.floor(value * scale + 1e-9)) / scale


def half_width(estimate: Estimate) -> str:
    """Write the wider side of an interval, rounded up: `±0.02`; nothing where the value is beyond `>1e3`."""
    if not estimate.measured or estimate.value > 1000 or estimate.documents == 1:
        return ""
    half = max(estimate.high - estimate.value, estimate.value - estimate.low)
    return f"±{number(outward(half, 1))}" if math.isfinite(half) else "±?"


def number_range(estimate: Estimate) -> str:
    """Write the interval of a ratio, rounded outwards: `0.98–1.03`."""
    if not estimate.measured:
        return ""
    high = number(outward(estimate.high, 1)) if math.isfinite(estimate.high) else "∞"
    return f"{number(outward(estimate.low, -1))}–{high}"


def scale_label(scale: str, factor: float) -> str:
    """Write a scaling with its factor: `yarn ×4`; factor 1 is left out."""
    return scale if not math.isfinite(factor) or factor == 1 else f"{scale} ×{factor:g}"


def through(length: int | None, shortest: int) -> str:
    """Write the longest length that holds; `<4K` where not even the shortest, 4K, is shown to."""
    return f"<{length_label(shortest)}" if length is None else length_label(length)


def model_line(manifest: Mapping[str, Any]) -> str:
    """Write what was measured: model, quantisation, dtype, device."""
    model = manifest.get("model") or {}
    parts = [str(model.get("name") or "unknown model")]
    if model.get("quantization"):
        parts.append(f"quantised: {model['quantization']}")
    if isinstance(model.get("adapter"), Mapping):
        parts.append(f"adapter {model['adapter'].get('name')}")
    parts += [str(manifest[key]) for key in ("dtype", "device") if manifest.get(key)]
    return one_line(" · ".join(parts))


def measured_documents(cells: pd.DataFrame) -> int:
    """Return how many documents have rows, which are fewer than were asked for while a run goes on."""
    return int(cells["document"].nunique())


def protocol_line(manifest: Mapping[str, Any], plan: str, documents: int | None = None) -> str:
    """Write how it was measured: task, plan, documents (measured of those asked for), protocol, native window."""
    resolved = manifest.get("resolved") or {}
    probes = (manifest.get("spec") or {}).get("probes", ["needle", "perplexity"])
    parts = [f"task {resolved.get('task', 'unknown')}", f"{plan} plan"] if "needle" in probes else []
    if resolved.get("documents"):
        parts.append(_documents(manifest, documents))
    if resolved.get("protocol") and "perplexity" in probes:
        parts.append(f"perplexity: {resolved['protocol']}")
    if resolved.get("native_window"):
        parts.append(f"native window {length_label(int(resolved['native_window']))}")
    return one_line(" · ".join(parts))


def _documents(manifest: Mapping[str, Any], measured: int | None) -> str:
    resolved, probes = manifest["resolved"], (manifest.get("spec") or {}).get("probes", ["needle", "perplexity"])
    total = resolved["documents"]
    losses = min(resolved.get("perplexity_documents") or total, total)
    total = total if "needle" in probes else losses
    fewer = f", {losses} for perplexity" if losses < total and "perplexity" in probes else ""
    short = measured is not None and measured < total
    return (f"{measured} of " if short else "") + f"{counted(total, 'document')}{fewer}"


def one_line(text: str) -> str:
    """Return the text with line breaks and control characters as spaces."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())


def markdown_cell(text: str) -> str:
    """Return the text safe inside a Markdown table: no line breaks, `|` and `<` escaped."""
    return one_line(text).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
