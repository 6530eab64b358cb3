"""Proves that a patch took: on the frequencies the model emits and on its logits, not on what was asked for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from ctxeval.errors import RunError
from ctxeval.rope.emission import Deviation, deviation
from ctxeval.rope.facts import broken_promise
from ctxeval.rope.frequencies import Scaled
from ctxeval.rope.logits import (
    check_called,
    check_change,
    double_temperature,
    first_prompt,
    logits,
    mean_change,
    same_tables,
)
from ctxeval.rope.patch import RopePatch
from ctxeval.rope.setting import Applied
from ctxeval.rope.sites import Site, find_sites

#: A doubled temperature that moves the logits by less than this share of what the scaling moves them is inert.
#: Measured on 136 tiny models under yarn ×4: below 2e-5 where q and k are normalised after RoPE, elsewhere above 0.35.
INERT = 0.1

Temperature = Literal["effective", "inert", "none"]


@dataclass(frozen=True)
class Proof:
    """What was measured on a patch that holds.

    `sites` are the rotary tables found, `extended` those that the method scales, `unused` those that the model did not
    ask for on the prompt (some keep a spare one). `max_error` is the deviation of cos
    or sin from the fp64 reference that came closest to its `tolerance` (that of fp32 rounding), over `positions`.
    `attention_factor` is the whole factor on cos and sin of the first extended site. `logits_change` is the largest
    absolute difference from the unpatched model's logits over a prompt of `prompt_tokens`. `softmax_factor` is the
    factor on the softmax scale of models that keep a temperature there, else 1. `temperature` says whether the model
    follows a temperature: `inert` where it normalises q and k after RoPE, `none` where the scaling has none.
    """

    method: str
    factor: float
    native_window: int
    target_length: int
    sites: tuple[str, ...]
    extended: tuple[str, ...]
    unused: tuple[str, ...]
    positions: tuple[int, ...]
    max_error: float
    tolerance: float
    attention_factor: float
    softmax_factor: float
    temperature: Temperature
    logits_change: float
    prompt_tokens: int
    frequencies_sha256: str

    def as_dict(self) -> dict[str, Any]:
        """Return the figures as JSON-able values."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}


def prove(patch: RopePatch, *, native_window: int, target_length: int, input_ids: Tensor | None = None) -> Proof:
    """Prove that the model does what `patch.applied` says. The patch is left in force.

    Args:
        patch: with a setting applied, `none` included.
        native_window: L of that setting, in tokens: of plain RoPE, where it started from that.
        target_length: the longest context that will be read, in tokens.
        input_ids: a prompt (1, tokens) for the logits; by default token ids counted through the vocabulary.

    Raises:
        RunError: the first fact that does not hold, with the numbers.
    """
    held = patch.state()
    try:
        _check_sites(patch)
        wanted = _reference(patch, native_window)
        softmax = _check_softmax(patch)
        positions = tuple(sorted({0, native_window - 1, target_length - 1}))
        worst = max((_check_emission(*pair, positions) for pair in zip(patch.sites, wanted, strict=True)), key=_excess)
        patch.set_state(held)
        prompt = first_prompt(patch.model, native_window) if input_ids is None else input_ids
        called: set[tuple[int, str]] = set()
        after = logits(patch, prompt, called)
        unused = check_called(patch, called)
        # Left alone, a table that depends on the length read is the one for this prompt.
        native = patch.bases(Applied("none", context_length=int(prompt.shape[-1])))
        doubled = double_temperature(patch, wanted, native, softmax)
        louder = logits(patch, prompt) if doubled else after
        patch.set_native()
        before = logits(patch, prompt)
    finally:
        patch.set_state(held)
    change = check_change(patch, same_tables(wanted, native) and softmax == 1, before, after)
    inert = mean_change(louder, after) < INERT * mean_change(after, before)
    extended = [(site.label, scaled) for site, scaled in zip(patch.sites, wanted, strict=True) if site.extended]
    return Proof(
        method=patch.applied.method,
        factor=patch.applied.factor,
        native_window=native_window,
        target_length=target_length,
        sites=tuple(site.label for site in patch.sites),
        extended=tuple(label for label, _ in extended),
        unused=unused,
        positions=positions,
        max_error=worst.error,
        tolerance=worst.tolerance,
        attention_factor=extended[0][1].attention_factor,
        softmax_factor=softmax,
        temperature="none" if not doubled else "inert" if inert else "effective",
        logits_change=change,
        prompt_tokens=int(prompt.shape[-1]),
        frequencies_sha256=patch.frequencies_sha256(),
    )


def _check_sites(patch: RopePatch) -> None:
    """The patch holds every table the model has now, and all are fp32."""
    held = {(site.label, id(site.module)) for site in patch.sites}
    for site in find_sites(patch.model):
        if (site.label, id(site.module)) not in held:
            raise RunError(f"{site.label} is a rotary table that the patch did not touch")
    for site in patch.sites:
        if site.inv_freq.dtype != torch.float32:
            raise RunError(
                f"{site.label}: inv_freq is {site.inv_freq.dtype}, not float32",
                "do not cast the model with model.to(dtype); load it with dtype=...",
            )


def _reference(patch: RopePatch, native_window: int) -> tuple[Scaled, ...]:
    """Compute what each site should emit, and hold the formula itself against what its method promises."""
    applied = patch.applied
    if applied.native_window not in (None, native_window):
        raise RunError(
            f"{applied.method} was applied for a native window of {applied.native_window}, "
            f"the proof is for {native_window}"
        )
    asked = replace(applied, native_window=native_window)
    wanted = patch.intended(asked)
    for site, base, scaled in zip(patch.sites, patch.bases(asked), wanted, strict=True):
        method, options = (applied.method, applied.options) if site.extended else ("none", {})
        relative = Scaled(scaled.inv_freq, scaled.attention_factor / base.attention_factor)
        if patch.softmax and method == "yarn":  # checked by _check_softmax, together with the softmax's part
            options = {**options, "attention_factor": relative.attention_factor}
        broken = broken_promise(
            method,
            base.inv_freq,
            relative,
            native_window=native_window,
            factor=applied.factor,
            options=options,
            context_length=applied.context_length,
        )
        if broken:
            raise RunError(f"{site.label}: the {method} reference is wrong: {broken}")
    return wanted


def _check_emission(site: Site, wanted: Scaled, positions: Sequence[int]) -> Deviation:
    before = site.inv_freq.clone()
    worst = deviation(site, wanted, positions)
    if not torch.equal(before, site.inv_freq):
        raise RunError(
            f"{site.label} (rope type {site.rope_type}) rewrote its frequencies on reading position {positions[-1]}: "
            f"{_first_change(before, site.inv_freq)}",
            "its cached keys would belong to several bases",
        )
    if worst.excess > 1:
        raise RunError(
            f"{site.label} emits {worst.emitted:.7g} for pair {worst.pair} at position {worst.position}, "
            f"not {worst.expected:.7g}: off by {worst.error:.3g}, fp32 explains {worst.tolerance:.3g}",
            _guess(site, wanted),
        )
    return worst


def _guess(site: Site, wanted: Scaled) -> str:
    """Say which of table and factor is off, as far as the module shows them."""
    table = site.inv_freq.double().cpu().numpy()
    if table.shape != wanted.inv_freq.shape or not np.allclose(table, wanted.inv_freq, rtol=1e-6, atol=0):
        return "its inv_freq is not the intended one"
    if not np.isclose(site.attention_scaling, wanted.attention_factor, rtol=1e-6, atol=0):
        return f"its attention_scaling is {site.attention_scaling:.7g}, intended {wanted.attention_factor:.7g}"
    return "its inv_freq and attention_scaling are the intended ones, and its forward does not follow them"


def _check_softmax(patch: RopePatch) -> float:
    """Hold the softmax scales against what their model's rule says, and return their factor; 1 where it has none."""
    wanted = patch.intended_softmax(patch.applied)
    for scale, native, value in zip(patch.softmax, patch.native_softmax, wanted, strict=True):
        if not math.isclose(scale.value, value, rel_tol=1e-9):
            raise RunError(
                f"{scale.name} scales its softmax by {scale.value:.7g}, intended {value:.7g}: "
                f"mscale_all_dim asks for {value / native:.7g} times the native {native:.7g}",
                "the temperature of a model with latent attention is not on cos and sin alone",
            )
    return wanted[0] / patch.native_softmax[0] if wanted else 1.0


def _first_change(before: Tensor, after: Tensor) -> str:
    pair = int((before != after).nonzero()[0, 0]) if before.shape == after.shape else 0
    return f"pair {pair} went from {float(before[pair]):.6g} to {float(after[pair]):.6g} rad/token"


def _excess(worst: Deviation) -> float:
    return worst.excess
