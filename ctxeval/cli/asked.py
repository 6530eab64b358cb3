"""What a command line asks for, as the spec of a run."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer

from ctxeval.cli import options as opt
from ctxeval.cli import wiring
from ctxeval.errors import UsageError, unknown
from ctxeval.spec import (
    DTYPES,
    PROTOCOLS,
    ModelSpec,
    RunSpec,
    parse_depths,
    parse_length,
    parse_lengths,
    parse_methods,
    parse_names,
)


def build_spec(values: Mapping[str, Any], probes: tuple[str, ...]) -> RunSpec:
    """Return what the options ask for.

    Raises:
        UsageError: no model, or a value that is not one.
    """
    if not values["model"]:
        raise UsageError("no model given", "give -m/--model: a Hub id, a folder, a GGUF file, or demo")
    check_choice("dtype", values["dtype"], DTYPES)
    check_choice("protocol", values.get("protocol", "tail"), PROTOCOLS)
    names = ("revision", "dtype", "device", "device_map", "attn_implementation", "trust_remote_code", "adapter")
    plain = (
        "factor",
        "documents",
        "perplexity_documents",
        "trials",
        "seed",
        "corpus",
        "task",
        "packed",
        "exact_subset",
    )
    more = ("needles_per_context", "protocol", "stride", "chat", "native_window", "chunk")
    rope = ("pretrain_window", "from_scratch")
    return RunSpec(
        model=ModelSpec(values["model"], **{name: values[name] for name in names}),
        scales=parse_methods(values["scale"]),
        length=parse_length(values["length"]) if values["length"] else None,
        lengths=parse_lengths(values["lengths"]) if values["lengths"] else None,
        layer_types=parse_names(values["layer_types"]),
        depths=parse_depths(values.get("depths", "9")),
        probes=probes,
        scaling_options=wiring.scaling_options(values),
        **{name: values[name] for name in plain + more + rope if name in values},
    )


def resumed_spec(context: typer.Context, probes: tuple[str, ...]) -> RunSpec:
    """Take the spec from the run folder; options given beside --resume must agree with it. `run` finishes any run.

    The environment counts as not given: it may speak of another run.

    Raises:
        UsageError: no such run, or an option that differs from it.
    """
    from ctxeval.folder import stored_spec

    folder: Path = context.params["resume"]
    stored = stored_spec(folder)
    if context.params["output"] not in (None, folder):
        raise UsageError(f"both --resume {folder} and --output {context.params['output']}", "give one of them")
    if probes != stored.probes and context.info_name != "run":
        raise UsageError(
            f"{folder} holds the probes {', '.join(stored.probes)}, `{context.info_name}` runs {', '.join(probes)}",
            f"finish it with `{resume_command(folder)}`",
        )
    kept = {"model": stored.model.name_or_path, "protocol": stored.protocol, "packed": stored.packed}
    values = {
        name: value if _given(context, name) else kept.get(name, opt.OPTIONS[name][1])
        for name, value in context.params.items()
    }
    wanted = build_spec(wiring.without_idle(context, values), stored.probes)
    old, new = _by_option(stored, wanted.scaling_options), _by_option(wanted, wanted.scaling_options)
    differ = [
        f"{name} is {old.get(name)!r} there, {new.get(name)!r} here"
        for name in sorted(context.params)
        if _given(context, name) and old.get(name) != new.get(name)
    ]
    if differ:
        raise UsageError(
            f"{folder} was begun with other options: {'; '.join(differ)}",
            "leave them out to finish it, or start a new run",
        )
    return stored


def _given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name in ("COMMANDLINE", "DEFAULT_MAP")


def _by_option(spec: RunSpec, asked: Collection[str]) -> dict[str, Any]:
    """Return what a spec says under the names of the command line's parameters; others are left out or harmless.

    Of the RoPE options that have no flag of their own, those that are `asked` for now count.
    """
    fields = {**asdict(spec), **asdict(spec.model), **spec.scaling_options}
    named = {name: spec.scaling_options.get(name) for name in sorted(asked)}
    return {
        **fields,
        "scale": spec.scales,
        "model": spec.model.name_or_path,
        "rope_option": named,
        "rope_factors": named,
    }


def resume_command(folder: Path) -> str:
    """Return the command that finishes the run in `folder`."""
    return f"ctxeval run --resume {shlex.quote(str(folder))}"


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Raise a UsageError unless `value` is one of `choices`."""
    if value not in choices:
        raise unknown(name, value, choices)
