"""Rewrites a model's rotary frequencies in place, always from the ones it was found with, and puts them back."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ctxeval.errors import RunError, UsageError
from ctxeval.rope.base import Base, base_of, varies
from ctxeval.rope.factors import with_factors
from ctxeval.rope.frequencies import Scaled
from ctxeval.rope.options import validate_options
from ctxeval.rope.scaling import scale_frequencies
from ctxeval.rope.sites import Site, find_sites
from ctxeval.rope.snapshot import SiteState, capture, in_fp32, put_back
from ctxeval.rope.windows import read_windows, rope_parameters, text_config
from ctxeval.spec import parse_method

#: Set on a rotary module while its table is not the native one: a second patch would take it for native.
MARK = "_ctxeval_scaled"


@dataclass(frozen=True)
class Applied:
    """What a patch was last asked for; `native_window` in tokens, None only under `none`. See `RopePatch.apply`."""

    method: str = "none"
    factor: float = 1.0
    native_window: int | None = None
    options: dict[str, Any] = field(default_factory=dict)
    from_scratch: bool = False
    context_length: int | None = None


class RopePatch:
    """Scales the rotary tables of one loaded model, any number of times, each time from its native state.

    Keys cached under one setting are of no use under another: the caller drops its caches. The model's configuration
    is left alone, as some models read it while they run.

    Attributes:
        model: the transformers model.
        sites: its rotary tables; of those, `site.extended` are scaled.
        native: the state of each site as found, with tables in fp32. The base of every scaling.
        applied: what is in force.
    """

    def __init__(self, model: Any) -> None:
        """Find the tables of `model` (a transformers model, or an object whose `.model` is one) and copy them.

        Raises:
            UsageError: the model has no rotary tables.
            RunError: a table was cast from fp32 and cannot be recomputed, or the model is patched already.
        """
        self.model = unwrap(model)
        self.sites: tuple[Site, ...] = find_sites(self.model)
        for site in self.sites:
            if hasattr(site.module, MARK):
                raise RunError(
                    f"{site.label} is scaled already by {getattr(site.module, MARK)}", "restore that patch first"
                )
        self._found = tuple(capture(site) for site in self.sites)
        self.native: tuple[SiteState, ...] = tuple(map(in_fp32, self.sites, self._found))
        self.applied = Applied()

    def apply(
        self,
        method: str,
        *,
        factor: float = 1.0,
        native_window: int | None = None,
        from_scratch: bool = False,
        context_length: int | None = None,
        **options: Any,
    ) -> None:
        """Bring the model to one setting, whatever was in force before.

        `none` is the native state itself, whatever the factor.

        Args:
            method: a canonical method name.
            factor: target / L.
            native_window: L, the window in tokens that the base serves; needed by every method but `none`.
            from_scratch: start from plain RoPE, whose L is the pretrain window, not from the native frequencies.
            context_length: tokens that frequencies are frozen for, where they depend on it: those of the method (by
                default the target, L * factor) or, under `none`, the checkpoint's own (by default they are left to
                change while the model reads).
            **options: of the method, see `ctxeval.rope.options.OPTIONS`.

        Raises:
            UsageError: a bad method, factor, window or option, or one that this model cannot take. Nothing changed.
            RunError: a rotary module has no place for the temperature. The model is as found.
        """
        asked = Applied(method, float(factor), native_window, dict(options), from_scratch, context_length)
        if method != "none" and native_window is None:
            raise UsageError(f"scaling {method} without a native window", "give --native-window")
        wanted = self.intended(asked)
        self._put(self.native)
        self._write(asked, wanted)
        self.applied = asked

    def intended(self, asked: Applied) -> tuple[Scaled, ...]:
        """Compute what each site should emit: fp64 frequencies and the whole factor on cos and sin. Changes nothing.

        Raises:
            UsageError: as `apply`.
        """
        validate_options(asked.method, asked.options)
        result = []
        for site, base in zip(self.sites, self.bases(asked), strict=True):
            scaled = Scaled(base.inv_freq, 1.0)
            if site.extended and asked.method != "none":
                scaled = scale_frequencies(
                    asked.method,
                    base.inv_freq,
                    native_window=asked.native_window or 0,
                    factor=asked.factor,
                    context_length=asked.context_length,
                    **asked.options,
                )
                self._refuse_softmax_scaling(asked, scaled.attention_factor)
            result.append(Scaled(scaled.inv_freq, scaled.attention_factor * base.attention_factor))
        return tuple(result)

    def bases(self, asked: Applied) -> tuple[Base, ...]:
        """Return what a setting starts from at each site.

        Raises:
            UsageError: see `ctxeval.rope.base.base_of`.
        """
        return tuple(
            base_of(site, state, asked.method, from_scratch=asked.from_scratch, context_length=asked.context_length)
            for site, state in zip(self.sites, self.native, strict=True)
        )

    def restore(self) -> None:
        """Put every table and attribute back as found, bit for bit, cast tables included."""
        self._put(self._found)
        self.applied = Applied()

    def frequencies_sha256(self) -> str:
        """Hash what is in the model now: each site's name, dtype, frequencies and factor on cos and sin."""
        digest = hashlib.sha256()
        for site in self.sites:
            table = site.inv_freq.detach().cpu()
            digest.update(f"{site.label} {table.dtype} {site.attention_scaling!r}\n".encode())
            digest.update(table.double().numpy().tobytes())
        return digest.hexdigest()

    def _put(self, states: tuple[SiteState, ...]) -> None:
        for site, state in zip(self.sites, states, strict=True):
            put_back(site, state)
            if hasattr(site.module, MARK):
                delattr(site.module, MARK)

    def _write(self, asked: Applied, wanted: tuple[Scaled, ...]) -> None:
        frozen = asked.method != "none" or asked.context_length is not None
        try:
            for site, state, scaled in zip(self.sites, self.native, wanted, strict=True):
                if site.extended and frozen and (asked.method != "none" or varies(site, state)):
                    table = torch.from_numpy(scaled.inv_freq).to(site.inv_freq.device, torch.float32)
                    site.write_inv_freq(table)
                    site.write_attention_scaling(scaled.attention_factor)
                    site.freeze()
                    setattr(site.module, MARK, asked.method)
        except RunError:
            self.restore()
            raise

    def _refuse_softmax_scaling(self, asked: Applied, temperature: float) -> None:
        """Refuse a temperature on models whose attention carries a YaRN temperature of its own (MLA)."""
        if not rope_parameters(text_config(self.model.config)).get("mscale_all_dim"):
            return
        if asked.from_scratch:
            raise UsageError(
                f"scaling {asked.method} from scratch on a model with mscale_all_dim: its softmax would keep the "
                "temperature of its own YaRN",
                "drop --from-scratch",
            )
        if temperature != 1.0:
            raise UsageError(
                f"scaling {asked.method} on a model with mscale_all_dim: its softmax holds a YaRN temperature already, "
                "and another on cos and sin would reach the rotated dimensions only",
                "choose pi, ntk or ntk-parts, or --attention-factor 1",
            )


@contextmanager
def scaled_rope(
    model: Any,
    method: str,
    *,
    factor: float = 1.0,
    native_window: int | None = None,
    from_scratch: bool = False,
    context_length: int | None = None,
    **options: Any,
) -> Iterator[RopePatch]:
    """Scale a model's rotary frequencies inside a `with` block; on leaving, also by an exception, they are restored.

    Args:
        model: a transformers model, or an object whose `.model` is one.
        method: a method name or alias.
        factor: target / L.
        native_window: L in tokens; read from the model's configuration when None: the native window, or the pretrain
            window from scratch.
        from_scratch, context_length: as `RopePatch.apply`.
        **options: of the method. LongRoPE's factors are read from a checkpoint that has them, if left out.

    Raises:
        UsageError, RunError: as `RopePatch` and `RopePatch.apply`; also when the configuration has no window.
    """
    method = parse_method(method)
    patch = RopePatch(model)
    if native_window is None and method != "none":
        windows = read_windows(patch.model.config)
        native_window = windows.pretrain if from_scratch else windows.native
    options = with_factors(method, options, patch.model.config, from_scratch=from_scratch)
    patch.apply(
        method,
        factor=factor,
        native_window=native_window,
        from_scratch=from_scratch,
        context_length=context_length,
        **options,
    )
    try:
        yield patch
    finally:
        patch.restore()


def unwrap(model: Any) -> nn.Module:
    """Return the transformers model: `model` itself, or its `.model`.

    Raises:
        UsageError: neither is a torch module with a configuration.
    """
    inner = model if isinstance(model, nn.Module) else getattr(model, "model", None)
    if not isinstance(inner, nn.Module) or not hasattr(inner, "config"):
        raise UsageError(f"{type(model).__name__} is not a transformers model", "pass what from_pretrained returns")
    return inner
