"""The `plan` command: how many documents a policy needs, and what they cost, before hours are spent."""

from __future__ import annotations

import inspect
import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ctxeval.cli import options as opt
from ctxeval.cli import wiring
from ctxeval.errors import UsageError, unknown

if TYPE_CHECKING:
    from ctxeval.analysis.question import Grid, Question
    from ctxeval.analysis.trial_runs import Assumptions, Design
    from ctxeval.policy import Policy
    from ctxeval.results.store import Run
    from ctxeval.survey import Survey

FORMATS = ("table", "json")
PLAN = "Plan"


def _number(flag: str, text: str) -> Any:
    return Annotated[float | None, typer.Option(flag, rich_help_panel=PLAN, help=text)]


#: Parameter name → (type, default), as in `options.OPTIONS`.
OPTIONS: dict[str, tuple[Any, Any]] = {
    "policy": (
        Annotated[
            str,
            typer.Option(
                "--policy", metavar="FILE", rich_help_panel=PLAN, help="A policy (YAML), or `ship` or `smoke`."
            ),
        ],
        inspect.Parameter.empty,
    ),
    "run_folder": (
        Annotated[
            Path | None,
            typer.Option("--from", metavar="RUN", rich_help_panel=PLAN, help="Read grid, spread and R from this run."),
        ],
        None,
    ),
    "margin": (_number("--margin", "True recall above the bar (0.05)."), None),
    "ratio_margin": (_number("--ratio-margin", "True perplexity ratio below the ceiling (0.03)."), None),
    "power": (_number("--power", "Chance of such a model to pass the whole policy (0.8)."), None),
    "reference": (_number("--reference", "The unpatched model's true recall inside its window (0.95)."), None),
    "correlation": (_number("--correlation", "Correlation of two needles of a document (0.15)."), None),
    "spread": (_number("--spread", "Standard deviation over documents of the log ratio (0.02)."), None),
}
#: Options of `run` that say nothing about what is measured, or that a plan finds out.
LEFT_OUT = {"documents", "perplexity_documents", "min_recall", "max_ratio", "output", "resume", "dry_run", "verbose"}
TAKEN = tuple(name for name in opt.OPTIONS if name not in LEFT_OUT)


def plan(context: typer.Context, **values: Any) -> None:
    """Say how many documents a policy needs to be decidable, and what they cost on this machine."""
    from ctxeval.analysis.power import power
    from ctxeval.policy import load_policy
    from ctxeval.report.plan import Plan, plan_json, plan_lines

    if values["format"] not in FORMATS:
        raise unknown("format", values["format"], FORMATS)
    policy = load_policy(values["policy"])
    values = wiring.without_idle(context, values)
    basis = _basis(values, policy)
    assumed = basis.assumed
    found = power(policy, _questions(policy, basis.design, basis.scale), basis.design, assumed)
    result = Plan(policy, basis.design, assumed, found, basis.source)
    if basis.survey and (found.documents or found.losses):
        result = _priced(result, basis.survey, context, quiet=values["quiet"])
    if values["format"] == "json":
        typer.echo(json.dumps(plan_json(result), indent=2, ensure_ascii=False))
    else:
        typer.echo("\n".join(plan_lines(result)))


@dataclass(frozen=True, eq=False)
class _Basis:
    """What a plan rests on: a model's grid and text, a run that was measured, or options alone."""

    scale: str
    design: Design
    assumed: Assumptions
    source: str = ""
    survey: Survey | None = None


def _basis(values: Mapping[str, Any], policy: Policy) -> _Basis:
    from ctxeval.spec import parse_methods

    scale = next((one for one in parse_methods(values["scale"]) if one != "none"), None)
    assumed, source, run = None, "", None
    if values["run_folder"]:
        from ctxeval.results.store import load_run

        run = load_run(values["run_folder"])
        scale, assumed = _observed(run, scale)
        source = f" (the last three as measured in {values['run_folder']})"
    if values["model"] or not run:
        found, design = _designed(values, policy)
    else:
        found, design = None, _measured_design(run, scale or "none")
    return _Basis(scale or "none", design, _assumptions(values, assumed), source, found)


def _assumptions(values: Mapping[str, Any], observed: Assumptions | None) -> Assumptions:
    """Return what is assumed: an option goes before what a run shows, and that before the default.

    Raises:
        UsageError: a value that is out of range, or NaN.
    """
    from ctxeval.analysis.trial_runs import Assumptions

    ranges = {
        "margin": (0, 1),
        "ratio_margin": (0, 10),
        "power": (0.05, 0.995),
        "reference": (0, 1),
        "correlation": (0, 0.95),
        "spread": (0, 10),
    }
    given = {name: values[name] for name in ranges if values[name] is not None}
    for name, value in given.items():
        low, high = ranges[name]
        if not low <= value <= high or (value == low and name != "correlation"):
            raise UsageError(f"--{name.replace('_', '-')} {value:g}", f"give a number from {low:g} to {high:g}")
    return replace(observed or Assumptions(), **given)


def _designed(values: Mapping[str, Any], policy: Policy) -> tuple[Survey | None, Design]:
    """Return what the options ask for; with a model, as its tokenizer and text have it."""
    from ctxeval.analysis.question import Grid
    from ctxeval.analysis.trial_runs import Design
    from ctxeval.cli.asked import build_spec
    from ctxeval.probes.forecast import exact_needles, packed_needles
    from ctxeval.resolve import resolve

    if not values["model"] and not values["native_window"]:
        raise UsageError(
            "neither a model nor its window is given", "give -m, or --native-window and --len, or --from a run"
        )
    spec = build_spec({**values, "model": values["model"] or "unknown"}, _probes(policy))
    if values["model"]:
        from ctxeval.survey import survey

        found = survey(spec)
        resolved, needles = found.prepared.resolved, dict(found.needles)
    else:
        found, resolved = None, resolve(spec, values["native_window"])
        lengths, depths = resolved.all_lengths, resolved.depths
        needles = (
            packed_needles(lengths, depths, resolved.native_window, spec.trials, spec.needles_per_context)
            if spec.packed
            else exact_needles(lengths, depths, spec.trials)
        )
    grid = Grid(resolved.target, resolved.lengths, resolved.depths)
    return found, Design(resolved.native_window, grid, needles)


def _probes(policy: Policy) -> tuple[str, ...]:
    """Return the probes that the policy asks about."""
    short, both = policy.short_context, policy.no_blind_spot_up_to is not None
    needle = policy.recall or policy.min_effective_length is not None or (short and short.min_recall_share)
    losses = policy.perplexity or (short and short.max_ratio)
    return tuple(name for name, asked in (("needle", needle or both), ("perplexity", losses or both)) if asked)


def _questions(policy: Policy, design: Design, scale: str) -> list[Question]:
    """Return the questions of the policy on a grid on which nothing was measured yet."""
    from ctxeval.analysis.headline import headline
    from ctxeval.analysis.question import Questions
    from ctxeval.results.store import to_frame

    nothing, grid = to_frame([]), design.grid
    summary = headline(nothing, native_window=design.native_window, lengths=grid.lengths, scalings=("none", scale))
    return Questions(policy, nothing, summary, scale, grid).all()


def _observed(run: Run, wanted: str | None) -> tuple[str, Assumptions]:
    """Return the scaling of a run that a plan is about, and what the run shows of model and documents."""
    from ctxeval.analysis.observed import observed

    scale = _run_grid(run, wanted)[1]
    return scale, observed(run.cells, run.headline(), scale)


def _measured_design(run: Run, scale: str) -> Design:
    from ctxeval.analysis.observed import needles_a_document
    from ctxeval.analysis.trial_runs import Design

    grid, _ = _run_grid(run, scale)
    return Design(int(run.manifest["resolved"]["native_window"]), grid, needles_a_document(run.cells, scale))


def _run_grid(run: Run, wanted: str | None) -> tuple[Grid, str]:
    from ctxeval.analysis.gate import choose_scaling
    from ctxeval.analysis.question import Grid

    try:
        resolved = run.manifest["resolved"]
        labels = [str(scaling["label"]) for scaling in resolved["scalings"]]
        lengths = tuple(int(length) for length in resolved["lengths"])
        depths = tuple(float(depth) for depth in resolved["depths"])
        target = int(resolved.get("target") or max(lengths))
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{run.path} does not say what was asked for ({error!r})", "its manifest is damaged") from None
    return Grid(target, lengths, depths), choose_scaling(labels, wanted)


def _priced(result: Any, found: Survey, context: typer.Context, *, quiet: bool) -> Any:
    """Add cost and command. The weights are loaded to time a few passes."""
    from ctxeval.cli.progress import StderrObserver
    from ctxeval.survey import measured_speed, too_little_text

    power = result.power
    documents, losses = power.documents or 0, power.losses or 0
    cost = found.cost(documents, losses)
    short = too_little_text(found.prepared.spec, max(documents, losses))
    with StderrObserver(quiet=quiet, verbose=False) as observer:
        speed, _ = measured_speed(found.prepared, observer)
    notes = [f"{short}; or raise --trials"] if short else []
    command = _command(context, found.prepared.spec.probes, documents, losses)
    return replace(result, cost=cost, seconds=speed.seconds(cost), command=command, notes=notes)


def _command(context: typer.Context, probes: tuple[str, ...], documents: int, losses: int) -> str:
    """Write the command that measures so many documents, with the options that were given here."""
    name = "run" if len(probes) == 2 else "needle" if probes == ("needle",) else "ppl"
    parts = ["ctxeval", name]
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if parameter.name not in opt.OPTIONS or parameter.name in ("format", "quiet") or source is None:
            continue
        value = context.params[parameter.name]
        if source.name in ("COMMANDLINE", "ENVIRONMENT") and value is not None:
            if isinstance(value, bool):
                parts.append(parameter.opts[0] if value else parameter.secondary_opts[0])
            else:
                parts += [max(parameter.opts, key=len), str(value)]
    parts += ["--docs", str(documents or losses)]
    if name == "run" and losses and losses < documents:
        parts += ["--ppl-docs", str(losses)]
    return shlex.join(parts)
