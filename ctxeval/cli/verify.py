"""The `verify` command: prove on the user's own model that scalings take, and say what they do there."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import typer

from ctxeval.cli import options as opt
from ctxeval.cli import wiring
from ctxeval.errors import ExitCode, UsageError, unknown
from ctxeval.spec import DTYPES, ModelSpec, RunSpec, parse_length, parse_methods, parse_names

if TYPE_CHECKING:
    from ctxeval.verification import Check

#: What is proved where nothing is chosen: all that needs neither a base nor factors, at four times the window.
SCALES = "none,pi,ntk,ntk-parts,yarn,llama3"
FACTOR = 4.0
#: Names of options, as in `ctxeval.cli.options.OPTIONS`.
MODEL = ("revision", "dtype", "device", "device_map", "attn_implementation", "trust_remote_code")
WINDOWS = ("native_window", "pretrain_window", "from_scratch")
OPTIONS = (
    "model",
    "scale",
    "length",
    "factor",
    *WINDOWS,
    "rope_option",
    "rope_factors",
    *opt.ROPE_FLAGS,
    "layer_types",
    *MODEL,
    "format",
    "quiet",
)
FORMATS = ("table", "json")
STYLES = {"ok": "green", "note": "yellow", "fail": "bold red"}


def verify(context: typer.Context, **values: Any) -> None:
    """Prove on your model that scalings take: frequencies, identities, temperature, caches, restoring.

    Exit 0 where everything holds, 3 where something does not.
    """
    if values["format"] not in FORMATS:
        raise unknown("format", values["format"], FORMATS)
    if values["dtype"] not in DTYPES:
        raise unknown("dtype", values["dtype"], DTYPES)
    spec = _spec(values, chosen=context.get_parameter_source("scale"))
    from ctxeval.model.load import load_model, read_config
    from ctxeval.model.placement import choose_threads
    from ctxeval.model.reader import choose_attention
    from ctxeval.model.reading import choose_reading
    from ctxeval.model.skeleton import skeleton
    from ctxeval.prepare import resolve_scalings
    from ctxeval.rope.patch import RopePatch
    from ctxeval.rope.sites import find_sites
    from ctxeval.verification import examine

    config = read_config(spec.model)
    if (outline := skeleton(spec.model, config)) is not None:
        find_sites(outline, spec.layer_types)
    windows, _, resolved = resolve_scalings(spec, config)
    loaded = load_model(spec.model)
    choose_threads(loaded)
    patch = RopePatch(loaded.model, spec.layer_types)
    reading = choose_reading(loaded.model, resolved.native_window, spec.chunk)
    path = loaded.attn_implementation
    if not reading.whole:
        path = choose_attention(loaded.model, spec.model.attn_implementation)
    title = (
        f"{loaded.name}: {type(loaded.model).__name__}, {loaded.n_parameters / 1e6:,.1f} M parameters, {loaded.dtype} "
        f"on {loaded.device}, attention {path}, native window {windows.native:,} ({windows.native_source}), "
        f"target {resolved.target:,}"
    )
    if not values["quiet"]:
        typer.echo(title, err=True)
    checks = list(_shown(examine(patch, resolved, reading), live=values["format"] == "table"))
    failed = [check for check in checks if check.status == "fail"]
    if values["format"] == "json":
        typer.echo(json.dumps(_json(title, checks), indent=2, ensure_ascii=False))
    else:
        notes = sum(check.status == "note" for check in checks)
        typer.echo(f"{len(checks) - len(failed)} of {len(checks)} hold, {notes} of them with a note")
    raise typer.Exit(int(ExitCode.RUN_FAILED if failed else ExitCode.OK))


def _spec(values: Mapping[str, Any], chosen: Any) -> RunSpec:
    if not values["model"]:
        raise UsageError("no model given", "give -m/--model: a Hub id, a folder, a GGUF file, or demo")
    default = chosen is None or chosen.name == "DEFAULT"
    return RunSpec(
        ModelSpec(values["model"], **{name: values[name] for name in MODEL}),
        scales=parse_methods(SCALES if default else values["scale"]),
        length=parse_length(values["length"]) if values["length"] else None,
        factor=FACTOR if values["factor"] is None and not values["length"] else values["factor"],
        layer_types=parse_names(values["layer_types"]),
        scaling_options=wiring.scaling_options(values),
        **{name: values[name] for name in WINDOWS},
    )


def _shown(checks: Iterable[Check], live: bool) -> Iterable[Check]:
    """Pass the checks on, printing each as it comes if `live`."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    for check in checks:
        if live:
            line = Text(f"{check.scale or 'model':<12} {check.name:<12} ")
            line.append(check.status, style=STYLES[check.status])
            console.print(line.append(f"{' ' * (5 - len(check.status))}{check.text}"), soft_wrap=True)
        yield check


def _json(title: str, checks: list[Check]) -> dict[str, Any]:
    return {
        "model": title,
        "passed": all(check.status != "fail" for check in checks),
        "checks": [
            {"scale": check.scale or None, "name": check.name, "status": check.status, "text": check.text}
            for check in checks
        ],
    }
