"""Several runs in one report: what changed from the first to each of the others, scaling by scaling. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ctxeval.analysis.compare import Comparison, compare_runs, side
from ctxeval.analysis.likeness import likeness
from ctxeval.analysis.onset import length_label
from ctxeval.report.compare import UNITS, about_lines, change_text, legend, level, mark, p_text, verdict_line
from ctxeval.report.text import markdown_cell, one_line
from ctxeval.results.store import Run

HEADER = ("Metric", "Length", "Baseline", "Candidate", "Change (95 %)", "p", "")


@dataclass(frozen=True)
class Difference:
    """One comparison as a table, worst first; without lines, `sentence` says why there is none."""

    title: str
    sentence: str
    header: tuple[str, ...] = HEADER
    lines: tuple[tuple[str, ...], ...] = ()
    notes: tuple[str, ...] = ()


def run_labels(runs: Sequence[Run]) -> list[str]:
    """Name runs by their folders, without the path; where two have one name, with numbers."""
    names = [one_line(run.path.name) or "run" for run in runs]
    return [f"{name} ({index})" if names.count(name) > 1 else name for index, name in enumerate(names, start=1)]


def differences(runs: Sequence[Run]) -> list[Difference]:
    """Compare every scaling that the first run and another one share; `none` only where it is all that they share.

    Runs that are not about the same thing are not compared: the table says what differs.
    """
    (first, *others), (name, *names) = runs, run_labels(runs)
    found = []
    for other, candidate in zip(others, names, strict=True):
        title = f"{candidate} against {name}"
        alike = likeness(first.manifest, other.manifest)
        shared = [label for label in _labels(first) if label in _labels(other)]
        if not shared:
            found.append(Difference(title, "Not compared, for they have no scaling in common."))
        elif alike.refused:
            found.append(Difference(title, f"Not compared, for they differ in {'; '.join(map(str, alike.refused))}."))
        else:
            for label in [label for label in shared if label != "none"] or shared:
                sides = (replace(side(run, label), name=called) for run, called in ((first, name), (other, candidate)))
                baseline, measured = sides
                (comparison,) = compare_runs(baseline, [measured])
                found.append(_difference(f"{title}: {label}", comparison))
    return found


def _labels(run: Run) -> list[str]:
    return [str(one["label"]) for one in run.manifest["resolved"]["scalings"]]


def _difference(title: str, comparison: Comparison) -> Difference:
    lines = []
    for one in comparison.changes:
        values = level(one, one.baseline), level(one, one.candidate) + mark(one), change_text(one)
        state = "" if one.state == "open" else one.state
        metric = UNITS.get(one.metric, one.metric)
        lines.append((metric, length_label(one.length), *values, p_text(one.p_adjusted), state))
    notes = [f"{word}: {text}" for word, text in about_lines(comparison)]
    return Difference(title, f"{verdict_line(comparison)}.", HEADER, tuple(lines), (*notes, legend(comparison)))


def markdown_differences(found: Sequence[Difference]) -> str:
    """Return the comparisons as Markdown."""
    parts = []
    for one in found:
        parts += [f"## {markdown_cell(one.title)}", "", markdown_cell(one.sentence), ""]
        if one.lines:
            table = [one.header, *one.lines]
            rows = ["| " + " | ".join(map(markdown_cell, line)) + " |" for line in table]
            parts += [rows[0], "|:--" + "|--:" * (len(one.header) - 1) + "|", *rows[1:], ""]
        parts += [f"> {markdown_cell(note)}  " for note in one.notes] + [""] * bool(one.notes)
    return "\n".join(parts)
