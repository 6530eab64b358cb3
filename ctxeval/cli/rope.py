"""The `rope` command: what a scaling does to each rotary pair, of a model's configuration or of a bare geometry."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ctxeval.cli import wiring
from ctxeval.cli.scaling import MODEL, SCALING, scaling_spec
from ctxeval.errors import UsageError, unknown

if TYPE_CHECKING:
    from ctxeval.resolve import Resolved
    from ctxeval.rope.frequencies import Scaled
    from ctxeval.rope.pairs import Geometry
    from ctxeval.spec import RunSpec, ScalingSpec

FORMATS = ("table", "csv", "json")
PICTURES = (".png", ".svg")
ThetaOpt = Annotated[
    float | None, typer.Option("--theta", rich_help_panel="Geometry", help="RoPE base, for a bare geometry.")
]
DimOpt = Annotated[
    int | None, typer.Option("--dim", rich_help_panel="Geometry", help="Rotary dimensions of a head: twice the pairs.")
]
PictureOpt = Annotated[
    Path | None,
    typer.Option("-o", "--output", metavar="FILE", help="Draw all scalings beside each other: FILE.png or FILE.svg."),
]
RopeFormatOpt = Annotated[str, typer.Option("--format", help="What stdout gets: table, csv or json.")]


def rope(context: typer.Context, **values: Any) -> None:
    """Show what a scaling does to each rotary pair: frequencies, wavelengths, turns. Loads no weights."""
    from ctxeval.report.rope import rope_csv, rope_json, rope_lines
    from ctxeval.rope.pairs import scaled_pairs

    if values["format"] not in FORMATS:
        raise unknown("format", values["format"], FORMATS)
    picture: Path | None = values["output"]
    if picture is not None and picture.suffix.lower() not in PICTURES:
        raise UsageError(f"cannot draw into {str(picture)!r}", "name a .png or .svg file; tables go to stdout")
    if values["from_scratch"] and "none" in values["scale"]:
        raise UsageError("--from-scratch with none", "none is the checkpoint as it is: leave one of them out")
    given = [name for name in ("theta", "dim") if values[name] is not None]
    named = context.get_parameter_source("model")
    if given and values["model"] and named is not None and named.name == "COMMANDLINE":
        raise UsageError(f"both a model and --{given[0]}", "give -m, or --theta, --dim and --native-window")
    spec = scaling_spec({**values, "model": "geometry"} if given else values)
    geometry, resolved, scale = (*_bare(values, spec), None) if given else _of_model(spec)
    tables = scaled_pairs(geometry, resolved, scale)
    if values["format"] == "csv":
        typer.echo(rope_csv(tables), nl=False)
    elif values["format"] == "json":
        typer.echo(rope_json(geometry, tables), nl=False)
    else:
        typer.echo("\n".join(rope_lines(geometry, tables)))
    if picture is not None:
        from ctxeval.report.rope_picture import rope_picture
        from ctxeval.results.files import write_whole

        write_whole(picture, rope_picture(geometry, tables, picture.suffix.lower()[1:]))
        typer.echo(f"drawn in {picture}", err=True)


def _bare(values: Mapping[str, Any], spec: RunSpec) -> tuple[Geometry, Resolved]:
    from ctxeval.resolve import resolve
    from ctxeval.rope.pairs import plain_geometry

    missing = [f"--{name.replace('_', '-')}" for name in ("theta", "dim", "native_window") if values[name] is None]
    if missing:
        raise UsageError(f"a geometry without {', '.join(missing)}", "give --theta, --dim and --native-window, or -m")
    geometry = plain_geometry(values["theta"], values["dim"], values["native_window"])
    return geometry, resolve(spec, geometry.window)


def _of_model(spec: RunSpec) -> tuple[Geometry, Resolved, Callable[[ScalingSpec], Scaled]]:
    from ctxeval.rope.checkpoint import read_checkpoint
    from ctxeval.rope.pairs import Geometry
    from ctxeval.rope.windows import checkpoint_scaling

    checkpoint, resolved = read_checkpoint(spec)
    table, *others = checkpoint.extended
    if others:
        typer.echo(f"note: {table.label} is shown; {', '.join(one.label for one in others)} differ", err=True)
    kept = [one.label for one in checkpoint.tables if not one.extended]
    if kept:
        why = "not among --layer-types" if spec.layer_types else "their layers see nearby tokens only"
        typer.echo(f"note: {', '.join(kept)} stay as they are: {why}", err=True)
    windows = checkpoint.windows
    # What is shown as native is what the scalings start from; of none that is the checkpoint itself.
    base = checkpoint.base(table, next((name for name in spec.scales if name != "none"), "none"), spec.from_scratch)
    window, source = (
        (windows.pretrain, windows.pretrain_source) if spec.from_scratch else (windows.native, windows.native_source)
    )
    own = checkpoint_scaling(checkpoint.config)
    start = " from scratch" if spec.from_scratch else f" as scaled by {own}" if own else ""
    name = f"{spec.model.name_or_path}, {table.label}{start}"

    def scale(scaling: ScalingSpec) -> Scaled:
        scaled, softmax = checkpoint.scaled(table, scaling, window)
        if softmax != 1:
            typer.echo(f"note: {scaling.label} multiplies the softmax scale by {softmax:.6g}", err=True)
        return scaled

    return Geometry(name, base.inv_freq, window, source, base.attention_factor), resolved, scale


wiring.with_options(
    rope,
    *SCALING,
    *MODEL,
    theta=(ThetaOpt, None),
    dim=(DimOpt, None),
    format=(RopeFormatOpt, "table"),
    output=(PictureOpt, None),
)
