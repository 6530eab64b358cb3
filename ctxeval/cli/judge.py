"""`--min-recall` and `--max-ratio`: a gate at the end of a run, without a policy file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from ctxeval.cli.gate import show_gate, tell_github
from ctxeval.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from ctxeval.policy import Policy
    from ctxeval.results.store import Run


def limits(min_recall: float | None, max_ratio: float | None) -> Policy | None:
    """Return the policy that the two options stand for, from the native window to the target; `None` without them.

    Raises:
        UsageError: not a share, or not a ratio (NaN is neither).
    """
    from ctxeval.policy import Policy, RatioCeiling, RecallFloor

    if min_recall is None and max_ratio is None:
        return None
    if min_recall is not None and not 0 < min_recall < 1:
        raise UsageError(f"--min-recall {min_recall:g}", "give a share above 0 and below 1, for instance 0.95")
    if max_ratio is not None and not 0 < max_ratio < float("inf"):
        raise UsageError(f"--max-ratio {max_ratio:g}", "give a ratio above 0, for instance 1.05")
    span = "native..target"
    said = {"--min-recall": min_recall, "--max-ratio": max_ratio}
    return Policy(
        title=" ".join(f"{name} {value:g}" for name, value in said.items() if value is not None),
        recall=[] if min_recall is None else [RecallFloor(lengths=span, floor=min_recall)],
        perplexity=[] if max_ratio is None else [RatioCeiling(lengths=span, max_ratio=max_ratio)],
    )


def judge(run: Run, policy: Policy, *, stdout: bool, quiet: bool) -> ExitCode:
    """Check every scaling of the run beside `none`, or `none` where it is alone; say so, and return the exit code.

    All must pass: it is 1 where one fails, else 4 where one is inconclusive. Without `stdout` the tables go to stderr,
    so that what is there stays JSON or CSV.
    """
    from ctxeval.analysis.gate import gate_run

    labels = [str(scaling["label"]) for scaling in run.manifest["resolved"]["scalings"]]
    codes = set()
    for label in [label for label in labels if label != "none"] or labels:
        found = gate_run(policy, run.cells, run.manifest, label)
        codes.add(found.exit_code)
        if stdout or not quiet:
            typer.echo(err=not stdout)
            show_gate(found, run, stderr=not stdout)
        tell_github(found, run, stderr=not stdout)
    worst = (ExitCode.GATE_FAILED, ExitCode.INCONCLUSIVE)
    return next((code for code in worst if code in codes), ExitCode.OK)
