"""The commands: options to spec, spec to run, run to tables. No logic of their own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from ctxeval.cli import options as opt
from ctxeval.cli import signals, wiring
from ctxeval.cli.asked import build_spec, check_choice, resume_command, resumed_spec
from ctxeval.cli.baseline import baseline
from ctxeval.cli.compare import compare
from ctxeval.cli.export import export
from ctxeval.cli.gate import gate
from ctxeval.cli.plan import OPTIONS as PLAN_OPTIONS
from ctxeval.cli.plan import TAKEN, plan
from ctxeval.cli.report import report
from ctxeval.cli.rope import rope
from ctxeval.cli.verify import OPTIONS as VERIFY
from ctxeval.cli.verify import verify
from ctxeval.errors import UsageError
from ctxeval.spec import ModelSpec, RunSpec
from ctxeval.wording import counted

LLAMA = "meta-llama/Llama-2-7b-hf"
FORMATS = ("table", "md", "csv", "json")
DRY_FORMATS = ("table", "json")


def register(app: typer.Typer) -> None:
    """Add all commands to `app`."""
    for name, function, example in (
        ("demo", demo, "ctxeval demo"),
        (
            "needle",
            wiring.with_options(needle, *opt.SHARED, *opt.NEEDLE),
            f"ctxeval needle -m {LLAMA} --scale yarn --len 32k",
        ),
        (
            "ppl",
            wiring.with_options(ppl, *opt.SHARED, *opt.PERPLEXITY),
            f"ctxeval ppl -m {LLAMA} --scale yarn --len 32k",
        ),
        (
            "run",
            wiring.with_options(run, *opt.OPTIONS),
            f"ctxeval run -m {LLAMA} --scale none,pi,ntk,yarn --len 32k --packed",
        ),
        ("report", report, "ctxeval report results/RUN --format html -o report.html"),
        ("gate", gate, "ctxeval gate results/RUN --policy tasks/gates/ship.yaml"),
        (
            "plan",
            wiring.with_options(plan, *TAKEN, **PLAN_OPTIONS),
            f"ctxeval plan --policy ship -m {LLAMA} --scale yarn --len 32k --packed",
        ),
        ("compare", compare, "ctxeval compare results/RUN@none results/RUN@yarn"),
        ("baseline", baseline, "ctxeval baseline results/RUN -o results/baselines/NAME.json"),
        ("rope", rope, f"ctxeval rope -m {LLAMA} --scale pi,ntk,yarn --len 32k"),
        ("export", export, f"ctxeval export -m {LLAMA} --scale yarn --len 32k --for vllm"),
        ("verify", wiring.with_options(verify, *VERIFY), f"ctxeval verify -m {LLAMA} --scale yarn --len 32k"),
        ("tasks", tasks, "ctxeval tasks needle"),
    ):
        measures = name in ("needle", "ppl", "run")
        app.command(name, epilog=f"Example: `{example}`" + (f"\n\n{opt.ENVIRONMENT}" if measures else ""))(function)


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
    output: opt.OutputOpt = None,
    format: opt.FormatOpt = "table",
    verbose: opt.VerboseOpt = False,
    quiet: opt.QuietOpt = False,
) -> None:
    """Run the whole thing on the bundled model and text: offline, under a minute."""
    # fp32, so that the figures do not depend on whether a machine has bf16 arithmetic.
    spec = RunSpec(
        ModelSpec("demo", dtype="fp32"),
        scales=("none", "pi", "ntk", "yarn"),
        length=1024,
        lengths=(256, 384, 512, 768, 1024),
        depths=(0, 25, 50, 75, 100),
        documents=24,
        perplexity_documents=16,
        corpus="demo",
        packed=True,
    )
    _run_and_show(spec, {"output": output, "format": format, "verbose": verbose, "quiet": quiet})


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
        f"{task.name}: {task.title}\nisolates: {task.isolates}\n{counted(len(task.wordings), 'wording')}, "
        f"{counted(len(task.keys), 'key')}, {counted(task.digits, 'digit')}\n\nneedle:   {sample.statement}\n"
        f"question: {sample.question}\nreply:    {sample.lead} {sample.value}"
    )


def _evaluate(context: typer.Context, probes: tuple[str, ...]) -> None:
    values = context.params
    resumed = values["resume"] is not None
    spec = resumed_spec(context, probes) if resumed else build_spec(wiring.without_idle(context, values), probes)
    _run_and_show(spec, values)


def _run_and_show(spec: RunSpec, values: Mapping[str, Any]) -> None:
    """Run `spec`; `values` are the options that say where to, how loud and what to print."""
    is_dry = bool(values.get("dry_run"))
    check_choice("format", values["format"], DRY_FORMATS if is_dry else FORMATS)
    if values["quiet"] and values["verbose"]:
        raise UsageError("both --quiet and --verbose", "give one of them")
    from ctxeval.cli.judge import judge, limits
    from ctxeval.cli.progress import StderrObserver
    from ctxeval.cli.show import show, show_forecast
    from ctxeval.folder import default_folder
    from ctxeval.runner import dry, run

    policy = limits(values.get("min_recall"), values.get("max_ratio"))
    resume = values.get("resume")
    with StderrObserver(quiet=values["quiet"], verbose=values["verbose"]) as observer:
        if is_dry:
            show_forecast(dry(spec, observer, resume), values["format"])
            return
        folder = resume or values["output"] or default_folder(spec)
        try:
            finished = run(spec, folder, resume=resume, observer=observer)
        except BaseException as error:
            if isinstance(error, signals.Stopped):
                signals.ignore()
            if not isinstance(error, UsageError) and (hint := _how_to_go_on(folder)):
                error.add_note(hint)
            raise
    show(finished, values["format"])
    if not values["quiet"]:
        typer.echo(f"rows, tables and pictures are in {folder}", err=True)
    if policy:
        raise typer.Exit(int(judge(finished, policy, stdout=values["format"] == "table", quiet=values["quiet"])))


def _how_to_go_on(folder: Path) -> str:
    """Say what an unfinished run has kept, and the command that finishes it; nothing where there is no such run."""
    from ctxeval.results.store import load_run

    try:
        begun = load_run(folder)
    except UsageError:
        return ""
    if begun.manifest.get("finished"):
        return ""
    kept = counted(len(begun.cells), "row")
    return f"{kept} {'is' if len(begun.cells) == 1 else 'are'} kept; go on with `{resume_command(folder)}`"
