"""What the commands that run no model have in common: a model, or a geometry, and scalings of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ctxeval.cli import options as opt
from ctxeval.cli import wiring
from ctxeval.errors import UsageError
from ctxeval.spec import ModelSpec, RunSpec, parse_length, parse_methods, parse_names

#: Names of options, as in `ctxeval.cli.options.OPTIONS`.
WINDOWS = ("native_window", "pretrain_window", "from_scratch")
SCALING = ("scale", "length", "factor", *WINDOWS, "rope_option", "rope_factors", *opt.ROPE_FLAGS, "layer_types")
MODEL = ("model", "revision", "trust_remote_code")


def scaling_spec(values: Mapping[str, Any]) -> RunSpec:
    """Make a spec of the options `SCALING` and `MODEL`.

    Raises:
        UsageError: no model, or an option that cannot be read.
    """
    if not values["model"]:
        raise UsageError("no model given", "give -m/--model: a Hub id, a folder, a GGUF file, or demo")
    return RunSpec(
        ModelSpec(values["model"], revision=values["revision"], trust_remote_code=values["trust_remote_code"]),
        scales=parse_methods(values["scale"]),
        length=parse_length(values["length"]) if values["length"] else None,
        factor=values["factor"],
        scaling_options=wiring.scaling_options(values),
        layer_types=parse_names(values["layer_types"]),
        **{name: values[name] for name in WINDOWS},
    )
