"""A scaling inside a `with` block, with what it needs read from the model's configuration."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

from ctxeval.rope.factors import with_factors
from ctxeval.rope.patch import RopePatch
from ctxeval.rope.windows import check_pretrain_window, checkpoint_scaling, read_windows
from ctxeval.spec import parse_method


@contextmanager
def scaled_rope(
    model: Any,
    method: str,
    *,
    factor: float = 1.0,
    native_window: int | None = None,
    from_scratch: bool = False,
    context_length: int | None = None,
    target_length: int | None = None,
    layer_types: Collection[str] | None = None,
    **options: Any,
) -> Iterator[RopePatch]:
    """Scale a model's rotary frequencies inside a `with` block; on leaving, also by an exception, they are restored.

    Args:
        model: a transformers model, or an object whose `.model` is one.
        method: a method name or alias.
        factor: target / L.
        native_window: L in tokens; read from the model's configuration when None: the native window, or the pretrain
            window from scratch.
        from_scratch, context_length, target_length: as `RopePatch.apply`.
        layer_types: as `RopePatch`.
        **options: of the method. LongRoPE's factors are read from a checkpoint that has them, if left out.

    Raises:
        UsageError, RunError: as `RopePatch` and `RopePatch.apply`; also when the configuration has no window,
            or, from scratch, does not say what it was pre-trained on.
    """
    method = parse_method(method)
    patch = RopePatch(model, layer_types)
    if native_window is None and method != "none":
        windows = read_windows(patch.model.config)
        if from_scratch:
            check_pretrain_window(windows, checkpoint_scaling(patch.model.config), "native_window=")
        native_window = windows.pretrain if from_scratch else windows.native
    options = with_factors(method, options, patch.model.config, from_scratch=from_scratch)
    patch.apply(
        method,
        factor=factor,
        native_window=native_window,
        from_scratch=from_scratch,
        context_length=context_length,
        target_length=target_length,
        **options,
    )
    try:
        yield patch
    finally:
        patch.restore()
