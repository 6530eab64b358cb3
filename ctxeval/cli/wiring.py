"""From options to commands: which command takes which, and what the values given mean together."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import typer

from ctxeval.cli.options import OPTIONS, ROPE_FLAGS
from ctxeval.errors import UsageError

#: Option → (the option that it needs, the value of that, how the command line says it).
_NEEDS: dict[str, tuple[str, Any, str]] = {
    "stride": ("protocol", "strided", "--protocol strided"),
    "needles_per_context": ("packed", True, "--packed"),
    "exact_subset": ("packed", True, "--packed"),
}


def without_idle(context: typer.Context, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options, less those that would change nothing beside the others.

    On the command line such an option is a mistake. In a file or in the environment it waits for the command line on
    which it matters, and has its default here.

    Raises:
        UsageError: an option on the command line without the one that it needs.
    """
    values = dict(values)
    for name, (needed, wanted, flag) in _NEEDS.items():
        if name not in values or values[needed] == wanted:
            continue
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise UsageError(f"--{name.replace('_', '-')} {values[name]} without {flag}", "it would change nothing")
        values[name] = OPTIONS[name][1]
    return values


def with_options(command: Callable[..., None], *names: str, **own: tuple[Any, Any]) -> Callable[..., None]:
    """Give `command` (context, **values) the options `names`, in the order of `OPTIONS`, then its `own`."""
    kind = inspect.Parameter.KEYWORD_ONLY
    wanted = [(name, *OPTIONS[name]) for name in OPTIONS if name in names and name not in own]
    wanted += [(name, *option) for name, option in own.items()]
    context = inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
    parameters = [inspect.Parameter(name, kind, default=default, annotation=type_) for name, type_, default in wanted]
    command.__signature__ = inspect.Signature([context, *parameters])  # type: ignore[attr-defined]
    command.__annotations__ = {"context": typer.Context} | {name: type_ for name, type_, _ in wanted}
    return command


def scaling_options(values: Mapping[str, Any]) -> dict[str, Any]:
    """Put together the RoPE options that were given, by flags of their own, --rope-option and --rope-factors.

    Raises:
        UsageError: an option that is unknown, unreadable, or given twice with different values.
    """
    from ctxeval.rope.factors import read_factors
    from ctxeval.rope.options import parse_options

    options = {name: values[name] for name in ROPE_FLAGS if values.get(name) is not None}
    for name, value in parse_options(values.get("rope_option") or ()).items():
        if options.get(name, value) != value:
            raise UsageError(f"both {name} {options[name]} and --rope-option {name}={value}", "give it once")
        options[name] = value
    return options | (read_factors(values["rope_factors"]) if values.get("rope_factors") else {})
