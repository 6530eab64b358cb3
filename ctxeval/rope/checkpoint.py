"""All that can be said about a checkpoint's RoPE before its weights load."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ctxeval.errors import UsageError
from ctxeval.export.extension import Export, Extension
from ctxeval.export.llama_cpp import ARCHITECTURES
from ctxeval.export.official import OUTSIDE, official_parameters, plain_rope
from ctxeval.model.gguf import read_metadata
from ctxeval.model.source import read_config, resolve_source
from ctxeval.prepare import resolve_scalings
from ctxeval.resolve import Resolved
from ctxeval.rope.base import Base
from ctxeval.rope.configured import Table, check_reload, native_tables, without_weights
from ctxeval.rope.patch import RopePatch
from ctxeval.rope.scaling import Scaled
from ctxeval.rope.setting import Applied
from ctxeval.rope.softmax import native_temperature
from ctxeval.rope.windows import GGUF_KEYS, Windows, rope_parameters, text_config
from ctxeval.spec import RunSpec, ScalingSpec


@dataclass(frozen=True)
class Checkpoint:
    """A configuration, its windows (tokens), a model of it without weights, and its rotary tables, one a layer type."""

    config: Any
    windows: Windows
    patch: RopePatch
    tables: tuple[Table, ...]
    architecture: str | None = None

    @property
    def extended(self) -> tuple[Table, ...]:
        """The tables that a scaling changes."""
        return tuple(table for table in self.tables if table.extended)

    @property
    def text_key(self) -> str:
        """The name of the configuration's text part, "" where it is the whole."""
        text = text_config(self.config)
        names = [name for name in getattr(self.config, "sub_configs", {}) if getattr(self.config, name, None) is text]
        return names[0] if names else ""

    def rope_parameters(self, layer_type: str) -> Mapping[str, Any]:
        """Return the configured rope parameters of one table.

        Raises:
            UsageError: the configuration has none, or does not tell its tables apart as the model does.
        """
        parameters = getattr(text_config(self.config), "rope_parameters", None) or {}
        nested = any(isinstance(value, Mapping) for value in parameters.values())
        own = parameters.get(layer_type) if layer_type else parameters
        if not own or (nested and not layer_type):
            kind, where = getattr(self.config, "model_type", "?"), f" for {layer_type}" if layer_type else ""
            raise UsageError(f"the configuration of this {kind} has no rope_parameters{where}", "it cannot be exported")
        return dict(own)

    def scaled(self, table: Table, scaling: ScalingSpec, window: int) -> tuple[Scaled, float]:
        """Return what a patch makes of `table` on L = `window` tokens, and of the softmax scale: a factor, mostly 1.

        Raises:
            UsageError: a scaling that the patch refuses.
        """
        asked = Applied(scaling.method, scaling.factor, window, dict(scaling.options), scaling.from_scratch)
        pairs = zip(self.patch.sites, self.patch.intended(asked), strict=True)
        softmax = zip(self.patch.intended_softmax(asked), self.patch.native_softmax, strict=True)
        ratio = next((wanted / native for wanted, native in softmax), 1.0)
        return next(one for site, one in pairs if site.prefix == table.layer_type), ratio

    def base(self, table: Table, method: str, from_scratch: bool) -> Base:
        """Return what a scaling of `table` starts from (see `ctxeval.rope.base.base_of`)."""
        bases = self.patch.bases(Applied(method, from_scratch=from_scratch))
        return next(base for site, base in zip(self.patch.sites, bases, strict=True) if site.prefix == table.layer_type)


def read_checkpoint(spec: RunSpec) -> tuple[Checkpoint, Resolved]:
    """Read a checkpoint's configuration, compute its tables and resolve `spec` with it. Loads no weights.

    Raises:
        UsageError: no such model, no context window, no rotary tables, or a spec that does not go with them.
    """
    config = read_config(spec.model)
    path = resolve_source(spec.model.name_or_path).gguf_path
    return checkpoint_of(config, spec, gguf=path)


def checkpoint_of(config: Any, spec: RunSpec, *, gguf: Path | None = None) -> tuple[Checkpoint, Resolved]:
    """Compute the tables of a configuration and resolve `spec`; `gguf` is the file that it was read from, if any.

    Raises:
        UsageError: as `read_checkpoint`.
    """
    # First, as a model without rotary tables may well have no window either.
    model = without_weights(config, trust_remote_code=spec.model.trust_remote_code)
    patch = RopePatch(model, spec.layer_types)
    windows, _, resolved = resolve_scalings(spec, config)
    return Checkpoint(config, windows, patch, native_tables(patch.sites), _architecture(config, gguf)), resolved


def extension(checkpoint: Checkpoint, resolved: Resolved) -> Extension:
    """Put together what an export of the one resolved scaling needs.

    Raises:
        UsageError: no rope parameters express the scaling on this checkpoint, or `none` beyond its window.
    """
    (scaling,), window = resolved.scalings, resolved.window(resolved.scalings[0])
    if scaling.method == "none" and resolved.target > window:
        raise UsageError(
            f"scaling none at {resolved.target} tokens: the native window is {window}", "give --scale, or drop --len"
        )
    told, own = {}, "default"
    for table in checkpoint.extended:
        base, inv_freq = checkpoint.rope_parameters(table.layer_type), table.scaled.inv_freq
        own = str(base.get("rope_type", own))
        if scaling.from_scratch:
            _refuse_softmax(checkpoint, table, scaling, window)
            base, inv_freq = plain_rope(base, inv_freq)
        told[table.layer_type] = official_parameters(scaling, base, inv_freq, window)
    return Extension(
        config=_written(checkpoint.config),
        text_key=checkpoint.text_key,
        tables=told,
        method=scaling.method,
        factor=scaling.factor,
        native_window=window,
        target=resolved.target,
        own=own,
        architecture=checkpoint.architecture,
    )


def prove_export(checkpoint: Checkpoint, told: Extension, made: Export) -> None:
    """Let transformers read a configuration that was made, and compare the tables that it computes.

    Raises:
        UsageError: it reads another scaling, or refuses to.
    """
    own = {table.layer_type: table.scaled.attention_factor for table in checkpoint.tables}
    wanted = {
        # A scaling that is told at all starts from a factor of 1; `none` adds nothing to the checkpoint's own.
        name: Scaled(one.at_native.inv_freq, own[name] if told.method == "none" else one.at_native.attention_factor)
        for name, one in told.tables.items()
    }
    check_reload(checkpoint.config, made.config or {}, wanted, checkpoint.tables)


def _refuse_softmax(checkpoint: Checkpoint, table: Table, scaling: ScalingSpec, window: int) -> None:
    """Refuse a temperature in the softmax scale: parameters without the checkpoint's own scaling do not have it."""
    _, softmax = checkpoint.scaled(table, scaling, window)
    plain = 1 / native_temperature(rope_parameters(text_config(checkpoint.config))).softmax
    if checkpoint.patch.softmax and not math.isclose(softmax, plain, rel_tol=1e-9):
        raise UsageError(
            f"scaling {scaling.method} from scratch on a checkpoint with mscale_all_dim: {OUTSIDE['mscale_all_dim']}",
            "it cannot be exported",
        )


def _written(config: Any) -> dict[str, Any]:
    """Return a configuration as config.json has it, without what ctxeval notes about GGUF files in it."""
    data: dict[str, Any] = json.loads(config.to_json_string())
    for part in (data, *(value for value in data.values() if isinstance(value, dict))):
        part.pop(GGUF_KEYS, None)
    return data


def _architecture(config: Any, gguf: Path | None) -> str | None:
    if gguf is not None:
        stated = read_metadata(gguf)[0].get("general.architecture")
        return None if stated is None else str(stated)
    return ARCHITECTURES.get(getattr(config, "model_type", ""))
