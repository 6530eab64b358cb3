"""What transformers itself makes of each scaling: the configurations that a patched model is compared with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ctxeval.rope.patch import RopePatch
from ctxeval.spec import METHODS
from tests.rope.zoo import WINDOW, is_proportional

FACTOR = 4.0
#: Tokens of the prompt that logits are compared on: some lie beyond the native window.
TOKENS = WINDOW + 16
NEW_BASE = 123456.0
PROPORTIONAL = {"rope_type": "proportional", "partial_rotary_factor": 0.25}
MSCALE = {"mscale": 0.707, "mscale_all_dim": 1.0}


@dataclass(frozen=True)
class Reference:
    """A setting of ctxeval, and the rope parameters that mean the same to transformers.

    `native` are rope parameters that the unscaled model has to have for it, `on` their name.
    """

    method: str
    parameters: Mapping[str, Any]
    factor: float = FACTOR
    options: Mapping[str, Any] = field(default_factory=dict)
    native: Mapping[str, Any] = field(default_factory=dict)
    on: str = ""

    @property
    def name(self) -> str:
        """The column of the matrix."""
        return f"{self.method}, {self.on}" if self.on else self.method


def references(kind: str, patch: RopePatch) -> Iterator[Reference]:
    """Yield every scaling that transformers has too, for a model that is not scaled yet."""
    site = next(site for site in patch.sites if site.extended)
    pairs = site.inv_freq.numel()
    yarn = {"rope_type": "yarn", "factor": FACTOR, "original_max_position_embeddings": WINDOW}
    temperature = {"short_mscale": 1.1386294361119891, "long_mscale": 1.1386294361119891}  # read by PhiMoE only
    plain = {"short_mscale": 1.0, "long_mscale": 1.0, "original_max_position_embeddings": WINDOW}
    ours = [
        Reference("pi", {"rope_type": "linear", "factor": FACTOR, **plain}),
        Reference("ntk", {"theta_times": FACTOR ** (pairs / (pairs - 1))}),
        Reference("ntk-parts", {**yarn, "attention_factor": 1.0, **plain}),
        Reference("yarn", {**yarn, **temperature}),
        Reference("abf", {"rope_theta": NEW_BASE}, options={"rope_theta": NEW_BASE}),
        Reference("ntk-dynamic", {"rope_type": "dynamic", "factor": 1.0, **plain}, factor=TOKENS / WINDOW),
        Reference("llama3", {**yarn, "rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0, **plain}),
        _longrope(pairs, one_list=kind == "phimoe"),
    ]
    if _follows_mscale(patch):
        ours.append(Reference("yarn", {**yarn, **MSCALE, **temperature}, native=MSCALE, on="mscale"))
    if is_proportional(kind):
        ours.append(Reference("pi", {**PROPORTIONAL, "factor": FACTOR}, native=PROPORTIONAL, on="proportional"))
    return (one for one in ours if one.method in METHODS)


def _longrope(pairs: int, one_list: bool) -> Reference:
    """`one_list`: transformers' PhiMoE reads its short factors at every length."""
    long = [1.0 + 3.0 * pair / (pairs - 1) for pair in range(pairs)]
    factors = {"short_factor": long if one_list else [1.0 + 0.01 * pair for pair in range(pairs)], "long_factor": long}
    mscale = (1 + 0.25) ** 0.5  # sqrt(1 + ln 4 / ln 256)
    parameters = {
        "rope_type": "longrope",
        "factor": FACTOR,
        "original_max_position_embeddings": WINDOW,
        "short_mscale": mscale,
        "long_mscale": mscale,
        **factors,
    }
    return Reference("longrope", parameters, options=factors)


def _follows_mscale(patch: RopePatch) -> bool:
    """Tell whether transformers' code for this model scales its softmax by `mscale_all_dim`."""
    from ctxeval.rope.softmax import find_softmax_scales

    return bool(find_softmax_scales(patch.model, MSCALE))
