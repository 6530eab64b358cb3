"""The `export` command: a scaling as the configuration, or the flags, that an engine takes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ctxeval.cli import wiring
from ctxeval.cli.scaling import MODEL, SCALING, scaling_spec
from ctxeval.errors import UsageError, unknown

if TYPE_CHECKING:
    from ctxeval.export.extension import Export, Extension

EngineOpt = Annotated[
    str | None,
    typer.Option("--for", metavar="ENGINE", show_default=False, help="hf, hf-v4, vllm, sglang or llama.cpp."),
]
FileOpt = Annotated[
    Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write to this file, say config.json, instead.")
]


def export(context: typer.Context, **values: Any) -> None:
    """Write the configuration that ships, for transformers, vLLM, SGLang or llama.cpp; or say why there is none."""
    from ctxeval.export.engines import ENGINES

    engine, output = values["engine"], values["output"]
    if engine not in ENGINES:
        raise (
            unknown("engine", engine or "", ENGINES)
            if engine
            else UsageError("no engine given", f"give --for: {', '.join(ENGINES)}")
        )
    spec = scaling_spec(values)
    if len(spec.scales) != 1:
        raise UsageError(f"{len(spec.scales)} scalings, {', '.join(spec.scales)}", "one at a time ships")
    from ctxeval.rope.checkpoint import extension, prove_export, read_checkpoint

    checkpoint, resolved = read_checkpoint(spec)
    told = extension(checkpoint, resolved)
    made = ENGINES[engine](told)
    if made.config is not None:
        prove_export(checkpoint, told, made)
    if not values["quiet"]:
        source = checkpoint.windows.pretrain_source if spec.from_scratch else checkpoint.windows.native_source
        _explain(told, made, source)
    if output is None:
        typer.echo(made.text, nl=False)
    else:
        _write(output, made.text, spec.model.name_or_path)


def _explain(told: Extension, made: Export, source: str) -> None:
    typer.echo(f"{told.method} ×{told.factor:g}: {told.native_window:,} tokens ({source}) → {told.target:,}", err=True)
    if made.config is not None:
        typer.echo("read back by transformers: the same frequencies and attention factor", err=True)
    for note in made.notes:
        typer.echo(f"note: {note}", err=True)


def _write(path: Path, text: str, model: str) -> None:
    from ctxeval.results.files import write_whole

    if path.is_dir():
        raise UsageError(f"{path} is a folder", f"name the file: {path / 'config.json'}")
    own = Path(model).expanduser() / "config.json"
    if own.exists() and path.exists() and path.samefile(own):
        raise UsageError(f"{path} is the configuration that was read", "copy the model's folder, and write there")
    write_whole(path, text.encode())
    typer.echo(f"written to {path}", err=True)


wiring.with_options(
    export,
    *SCALING,
    *MODEL,
    "quiet",
    engine=(EngineOpt, None),
    output=(FileOpt, None),
)
