"""Per-pair factors for LongRoPE, from a file or from the checkpoint. Imports neither torch nor transformers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ctxeval.errors import UsageError
from ctxeval.rope.options import validate_options
from ctxeval.rope.windows import checkpoint_factors

NAMES = ("short_factor", "long_factor")


def read_factors(path: Path) -> dict[str, tuple[float, ...]]:
    """Read `short_factor` and `long_factor` from a JSON or YAML file.

    It holds both lists, at the top or under `rope_scaling` or `rope_parameters` as a config.json does, or one plain
    list, which then serves every length.

    Raises:
        UsageError: unreadable, or anything else in it.
    """
    import yaml  # of which JSON is a part

    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        said = str(error).splitlines()[0]
        raise UsageError(f"cannot read the RoPE factors {path}: {said}", "give a JSON or YAML file") from None
    if isinstance(data, Mapping):
        data = next((data[key] for key in ("rope_scaling", "rope_parameters") if key in data), data)
    lists: dict[str, Any] = (
        {name: data.get(name) for name in NAMES} if isinstance(data, Mapping) else dict.fromkeys(NAMES, data)
    )
    try:
        validate_options("longrope", lists)
    except UsageError as error:
        raise UsageError(
            f"RoPE factors {path}: {error.message}", "give a list of numbers, or short_factor and long_factor"
        ) from None
    return {name: tuple(float(value) for value in lists[name]) for name in NAMES}


def with_factors(method: str, options: Mapping[str, Any], config: Any, *, from_scratch: bool) -> dict[str, Any]:
    """Give LongRoPE the checkpoint's own factors where `options` has none; other methods' options stay as they are.

    Raises:
        UsageError: there are none, or they are in the frequencies already that the scaling composes on.
    """
    if method != "longrope" or any(name in options for name in NAMES):
        return dict(options)
    factors = checkpoint_factors(config)
    if factors and not from_scratch:
        raise UsageError(
            "scaling longrope on a LongRoPE checkpoint would apply its factors a second time",
            "none is the checkpoint as it is; or give --from-scratch, or other factors by --rope-factors",
        )
    if not factors:
        raise UsageError("scaling longrope without factors: the checkpoint has none", "give --rope-factors FILE")
    return {**options, **factors}
