"""The temperature that multi-head latent attention keeps in its softmax scale, beside the one on cos and sin.

DeepSeek's YaRN (arXiv:2412.19437, section 4.3, and its published code) rotates few of a head's dimensions, so a factor
on cos and sin would reach a part of each logit only. It multiplies the softmax scale by m(s, mscale_all_dim)**2
instead, and cos and sin by m(s, mscale) / m(s, mscale_all_dim), where m(s, w) = 0.1 w ln s + 1.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from ctxeval.errors import UsageError
from ctxeval.rope.frequencies import Scaled
from ctxeval.rope.setting import Applied

#: What the attention calls its softmax scale: transformers, and the code that DeepSeek published.
NAMES = ("scaling", "softmax_scale")


@dataclass(frozen=True, eq=False)
class SoftmaxScale:
    """The softmax scale of one attention module that follows `mscale_all_dim`."""

    name: str
    module: nn.Module
    attribute: str

    @property
    def value(self) -> float:
        """The factor on q·k in force."""
        return float(getattr(self.module, self.attribute))

    def write(self, value: float) -> None:
        """Set the factor on q·k."""
        setattr(self.module, self.attribute, value)


@dataclass(frozen=True)
class Temperature:
    """Relative to the native state: the factors on cos and sin, and on the softmax scale."""

    rotary: float
    softmax: float = 1.0


def find_softmax_scales(model: nn.Module, parameters: Mapping[str, Any]) -> tuple[SoftmaxScale, ...]:
    """Find the softmax scales that `mscale_all_dim` of the rope `parameters` reaches; none where it is not given."""
    if not parameters.get("mscale_all_dim"):
        return ()
    return tuple(
        SoftmaxScale(name, module, attribute)
        for name, module in model.named_modules()
        if hasattr(module, "qk_rope_head_dim") and hasattr(sys.modules[type(module).__module__], "yarn_get_mscale")
        for attribute in NAMES
        if isinstance(getattr(module, attribute, None), float)
    )


def yarn_temperature(factor: float, parameters: Mapping[str, Any]) -> Temperature:
    """Return YaRN's temperature at `factor` for a model with `mscale_all_dim` in its rope `parameters`."""
    weight, all_dim = parameters.get("mscale"), parameters["mscale_all_dim"]
    softmax = _mscale(factor, all_dim)
    return Temperature(_mscale(factor, weight) / softmax if weight else _mscale(factor, 1.0), softmax**2)


def native_temperature(parameters: Mapping[str, Any]) -> Temperature:
    """Return the temperature that a checkpoint with these rope `parameters` has by itself."""
    if parameters.get("rope_type", "default") == "default" or not parameters.get("mscale_all_dim"):
        return Temperature(1.0)
    return yarn_temperature(parameters["factor"], parameters)


def with_mscale(
    asked: Applied, scaled: Scaled, parameters: Mapping[str, Any], scales: tuple[SoftmaxScale, ...]
) -> Scaled:
    """Give YaRN's cos and sin the factor of a model with `mscale_all_dim`; one that the user chose stays.

    Raises:
        UsageError: a temperature of another method, for which such a model has no rule, or on a model whose attention
            is not known to follow `mscale_all_dim`.
    """
    if asked.from_scratch and not scales:
        raise UsageError(
            f"scaling {asked.method} from scratch on a model with mscale_all_dim: its softmax would keep the "
            "temperature of its own YaRN",
            "drop --from-scratch",
        )
    if asked.method == "yarn" and scales:
        own = yarn_temperature(asked.factor, parameters).rotary
        return Scaled(scaled.inv_freq, asked.options.get("attention_factor", own))
    if scaled.attention_factor != 1.0:
        raise UsageError(
            f"scaling {asked.method} on a model with mscale_all_dim: its softmax holds a YaRN temperature already, and "
            "another on cos and sin would reach the rotated dimensions only",
            f"choose {'yarn, ' if scales else ''}pi, ntk or ntk-parts, or --attention-factor 1",
        )
    return scaled


def _mscale(factor: float, weight: float) -> float:
    return 0.1 * weight * math.log(factor) + 1.0
