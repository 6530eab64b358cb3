"""The commands: options to spec, spec to run, run to tables. No logic of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer

from ctxeval.cli import options as opt
from ctxeval.errors import UsageError, unknown
from ctxeval.spec import (
    DTYPES,
    PROTOCOLS,
    ModelSpec,
    RunSpec,
    differences,
    parse_depths,
    parse_length,
    parse_lengths,
    parse_methods,
    spec_from_dict,
)

if TYPE_CHECKING:
    from ctxeval.results.store import Run

FORMATS = ("table", "md", "csv", "json")


def register(app: typer.Typer) -> None:
    """Add all commands to `app`."""
    for name, function, epilog in (
        ("demo", demo, "ctxeval demo"),
        ("needle", opt.with_options(needle, *opt.SHARED, *opt.NEEDLE), "ctxeval needle -m meta-llama/Llama-2-7b-hf --scale yarn --len 32768"),
        ("ppl", opt.with_options(ppl, *opt.SHARED, *opt.PERPLEXITY), "ctxeval ppl -m meta-llama/Llama-2-7b-hf --scale yarn --len 32768"),
        ("run", opt.with_options(run, *opt.SHARED, *opt.NEEDLE, *opt.PERPLEXITY, "perplexity_documents"), "ctxeval run -m meta-llama/Llama-2-7b-hf --scale none,pi,ntk,yarn --len 32768 --packed"),
        ("report", report, "ctxeval report results/RUN --format md"),
        ("tasks", tasks, "ctxeval tasks needle"),
    ):
        app.command(name, epilog=f"Example: `{epilog}`")(function)


def needle(context: typer.Context, **values: Any) -> None:
    """Hide facts in prose and ask for them: recall over length and depth."""
    _evaluate(context, ("needle",))


def ppl(context: typer.Context, **values: Any) -> None:
    """Measure perplexity over length, against the unpatched model on the same tokens."""
    _evaluate(context, ("perplexity",))


def run(context: typer.Context, **values: Any) -> None:
    """Run both probes, and say at which length each of the two breaks."""
    _evaluate(context, ("needle", "perplexity"))


def demo(
    output: opt.OutputOpt = None, format: opt.FormatOpt = "table", quiet: opt.QuietOpt = False
) -> None:
    """Run the whole thing on the bundled model and text: offline, under a minute."""
    _check_choice("format", format, FORMATS)
    _run_and_show(
        RunSpec(
            ModelSpec("demo"),
            scales=("none", "pi", "ntk", "yarn"),
            length=1024,
            lengths=(128, 256, 384, 512, 768, 1024),
            documents=16,
            corpus="demo",
            packed=True,
        ),
        output,
        None,
        format,
        quiet,
    )


def report(
    run_folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    format: Annotated[str, typer.Option("--format", help="table, md, csv or json.")] = "table",
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write to this file instead of stdout.")] = None,
) -> None:
    """Show the tables of a finished (or unfinished) run."""
    from ctxeval.cli.show import show
    from ctxeval.results.store import load_run

    _check_choice("format", format, FORMATS)
    show(load_run(run_folder), format, output)


def tasks(name: Annotated[str | None, typer.Argument(help="A task, for its details and a sample.")] = None) -> None:
    """List the needle tasks, or show one with a sample of its needles."""
    from ctxeval.probes.task import available_tasks, load_task, make_needle

    if name is None:
        for task in map(load_task, available_tasks()):
            typer.echo(f"{task.name}: {task.title}")
        return
    task = load_task(name)
    sample = make_needle(task, seed=0, document=0, trial=0, site=0)
    typer.echo(
        f"{task.name}: {task.title}\nisolates: {task.isolates}\n{len(task.wordings)} wordings, {len(task.keys)} keys, "
        f"{task.digits} digits\n\nneedle:   {sample.statement}\nquestion: {sample.question}\nreply:    {sample.lead} "
        f"{sample.value}"
    )


def _evaluate(context: typer.Context, probes: tuple[str, ...]) -> None:
    values = context.params
    _check_choice("format", values["format"], FORMATS)
    spec = _resumed_spec(context, probes) if values["resume"] else _spec(values, probes)
    _run_and_show(spec, values["output"], values["resume"], values["format"], values["quiet"], values["dry_run"])


def _spec(values: Mapping[str, Any], probes: tuple[str, ...]) -> RunSpec:
    if not values["model"]:
        raise UsageError("no model given", "give -m/--model: a Hub id, a folder, a GGUF file, or demo")
    _check_choice("dtype", values["dtype"], DTYPES)
    _check_choice("protocol", values.get("protocol", "tail"), PROTOCOLS)
    names = ("revision", "dtype", "device", "device_map", "attn_implementation", "trust_remote_code")
    plain = ("factor", "documents", "perplexity_documents", "trials", "seed", "corpus", "task", "packed", "exact_subset")
    more = ("needles_per_context", "protocol", "stride", "chat", "native_window", "chunk")
    ramp = ("rope_theta", "attention_factor", "beta_fast", "beta_slow", "truncate")
    return RunSpec(
        model=ModelSpec(values["model"], **{name: values[name] for name in names}),
        scales=parse_methods(values["scale"]),
        length=parse_length(values["length"]) if values["length"] else None,
        lengths=parse_lengths(values["lengths"]) if values["lengths"] else None,
        depths=parse_depths(values.get("depths", "9")),
        probes=probes,
        scaling_options=opt.scaling_options(**{name: values[name] for name in ramp}),
        **{name: values[name] for name in plain + more if name in values},
    )


def _resumed_spec(context: typer.Context, probes: tuple[str, ...]) -> RunSpec:
    """Take the spec from the run folder; options given beside --resume must agree with it."""
    from ctxeval.results.store import load_run

    folder = context.params["resume"]
    stored = spec_from_dict(load_run(folder).manifest["spec"])
    given = {
        name
        for name in context.params
        if context.get_parameter_source(name) in (click.core.ParameterSource.COMMANDLINE,)
    }
    if stored.probes != probes:
        raise UsageError(f"{folder} holds probes {', '.join(stored.probes)}", f"this command runs {', '.join(probes)}")
    wanted = _spec({**context.params, "model": context.params["model"] or stored.model.name_or_path}, probes)
    fields = {**asdict(wanted), **asdict(wanted.model)}
    names = {"scale": "scales", "model": "name_or_path"}
    changed = {names.get(name, name) for name in given} & set(fields)
    merged = replace(
        stored,
        model=replace(stored.model, **{name: fields[name] for name in changed if hasattr(stored.model, name)}),
        **{name: getattr(wanted, name) for name in changed if hasattr(stored, name) and name != "model"},
    )
    if merged != stored:
        raise UsageError(
            f"{folder} was begun with other options: {'; '.join(differences(stored, merged))}",
            "leave them out to finish it, or start a new run",
        )
    return stored


def _run_and_show(
    spec: RunSpec, output: Path | None, resume: Path | None, format: str, quiet: bool, dry_run: bool = False
) -> None:
    from ctxeval.cli.show import show
    from ctxeval.runner import check_writable, default_folder, dry, run

    folder = resume or output or default_folder(spec)
    from ctxeval.cli.progress import StderrObserver

    with StderrObserver(quiet=quiet) as observer:
        if dry_run:
            dry(spec, observer)
            return
        check_writable(folder)
        try:
            finished: Run = run(spec, folder, resume=resume, observer=observer)
        except BaseException as error:
            if (Path(folder) / "cells.jsonl").exists() and not isinstance(error, UsageError):
                observer.say(f"the rows so far are in {folder}; go on with --resume {folder}")
            raise
    show(finished, format)
    if not quiet:
        typer.echo(f"rows, tables and pictures are in {folder}", err=True)


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise unknown(name, value, choices)
