"""All that can be proved of scalings on one loaded model, a line each: what `ctxeval verify` reports."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from ctxeval.errors import RunError, UsageError
from ctxeval.model.agreement import cache_agreement
from ctxeval.model.reading import Reading
from ctxeval.resolve import Resolved
from ctxeval.rope.identities import identities
from ctxeval.rope.logits import first_prompt, logits
from ctxeval.rope.patch import RopePatch
from ctxeval.rope.snapshot import SiteState
from ctxeval.rope.verify import Proof, prove
from ctxeval.spec import ScalingSpec

#: Tokens that the caches are compared on, at most: enough for pieces and branches, little enough for seconds.
CACHE_TOKENS = 256

Status = Literal["ok", "note", "fail"]


@dataclass(frozen=True)
class Check:
    """One fact about a model, under one scaling or ("") under none. A `note` is no failure, but should be known."""

    scale: str
    name: str
    status: Status
    text: str


def examine(patch: RopePatch, resolved: Resolved, reading: Reading) -> Iterator[Check]:
    """Put each scaling in force in turn, prove it, and yield what was found. The model is left as it was.

    Args:
        patch: of a model that is not scaled.
        resolved: the scalings, their windows, and the longest context that is meant.
        reading: how the unscaled model has to be read; caches are compared where it is read in pieces.
    """
    for site in patch.sites:
        scaled = "scaled" if site.extended else "left alone"
        kind = f"{type(site.module).__name__}, rope type {site.rope_type}, {site.inv_freq.numel()} pairs"
        yield Check("", "sites", "ok", f"{site.label}: {kind}, {scaled}")
    for scale in patch.softmax:
        yield Check("", "sites", "ok", f"{scale.name}: softmax scale that follows mscale_all_dim")
    if reading.note:
        yield Check("", "cache", "note", reading.note)
    prompt = first_prompt(patch.model, resolved.native_window)
    patch.restore()
    found, native = patch.state().sites, logits(patch, prompt)
    for scaling in resolved.scalings:
        try:
            yield from _under(patch, scaling, resolved, reading)
        finally:
            patch.restore()
    yield _restored(patch, found, native, logits(patch, prompt))


def _under(patch: RopePatch, scaling: ScalingSpec, resolved: Resolved, reading: Reading) -> Iterator[Check]:
    label, window, target = scaling.label, resolved.window(scaling), resolved.target
    try:
        patch.apply(
            scaling.method,
            factor=scaling.factor,
            native_window=window,
            from_scratch=scaling.from_scratch,
            context_length=target if scaling.method in resolved.varying else None,
            target_length=target,
            **scaling.options,
        )
    except UsageError as error:
        yield Check(label, "patch", "note", f"refused: {error}")
        return
    try:
        yield from _proved(label, prove(patch, native_window=window, target_length=target))
        yield from _identities(patch, label, target)
    except RunError as error:
        yield Check(label, "patch", "fail", str(error))
    if not reading.whole:
        yield from _cache(patch, label, min(CACHE_TOKENS, resolved.native_window))


def _proved(label: str, proof: Proof) -> Iterator[Check]:
    where = ", ".join(f"{position:,}" for position in proof.positions)
    worst = f"off by {proof.max_error:.2g} where fp32 explains {proof.tolerance:.2g}"
    yield Check(label, "frequencies", "ok", f"cos and sin at positions {where} against fp64: {worst}")
    if proof.unused:
        yield Check(label, "frequencies", "note", f"not asked for on a short prompt: {', '.join(proof.unused)}")
    factors = f"{proof.attention_factor:.4g} on cos and sin"
    if proof.softmax_factor != 1:
        factors += f", {proof.softmax_factor:.4g} on the softmax scale"
    texts = {
        "effective": f"effective: {factors}",
        "inert": f"inert: {factors} has no effect, since q and k are normalised after RoPE",
        "none": "none",
    }
    yield Check(label, "temperature", "note" if proof.temperature == "inert" else "ok", texts[proof.temperature])
    moved = f"moved by up to {proof.logits_change:.3g} on {proof.prompt_tokens} tokens"
    yield Check(label, "logits", "ok", moved if proof.logits_change else "the unpatched model's, bit for bit")


def _identities(patch: RopePatch, label: str, target: int) -> Iterator[Check]:
    wanted = patch.intended(patch.applied)
    found = [identities(site, one, target) for site, one in zip(patch.sites, wanted, strict=True)]
    for name, text, worst in (
        ("distance", "rotations differ by the distance alone", max(one.relative for one in found)),
        ("norm", "cos² + sin² is the factor squared", max(one.norm for one in found)),
    ):
        status: Status = "ok" if worst <= 1 else "fail"  # NaN fails
        yield Check(label, name, status, f"{text}: off by {worst:.2g} of what fp32 explains")


def _cache(patch: RopePatch, label: str, tokens: int) -> Iterator[Check]:
    found = cache_agreement(patch.model, tokens)
    for name, text, off in (
        ("chunked", "a prompt in pieces against one pass", found.chunked),
        ("fork", "a second ending behind a shared prefix against a cold run", found.forked),
    ):
        status: Status = "ok" if off <= found.tolerance else "fail"  # NaN fails
        yield Check(label, name, status, f"{text}: off by {off:.2g} σ, {found.tolerance:.2g} is allowed")


def _restored(patch: RopePatch, found: Sequence[SiteState], native: torch.Tensor, after: torch.Tensor) -> Check:
    """Compare tables, attributes and logits, bit for bit, with what was there before the first scaling."""
    for site, one, other in zip(patch.sites, found, patch.state().sites, strict=True):
        pairs = [(getattr(one, name), getattr(other, name)) for name in ("inv_freq", "original_inv_freq", "table")]
        if not all(map(_same, *zip(*pairs, strict=True))) or one.attributes != other.attributes:
            return Check("", "restore", "fail", f"{site.label} is not as it was found")
    if not torch.equal(native, after):
        return Check("", "restore", "fail", f"logits differ by {float((native - after).abs().max()):.3g} from before")
    return Check("", "restore", "ok", "tables, attributes and logits are as they were found, bit for bit")


def _same(one: Any, other: Any) -> bool:
    return one is other if one is None or other is None else bool(one.dtype == other.dtype and torch.equal(one, other))
