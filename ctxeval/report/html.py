"""A run, or several side by side, as one HTML file: no script, nothing fetched, every text from outside escaped.

Pure but for reading its own template and style sheet, which are part of the package.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ctxeval import __version__
from ctxeval.analysis.headline import Headline
from ctxeval.analysis.sweep import sweep
from ctxeval.report.canvas import Picture, alone, svg
from ctxeval.report.command import command_line
from ctxeval.report.conclusion import conclusion
from ctxeval.report.differences import Difference, run_labels
from ctxeval.report.heatmap import FEW_TRIALS
from ctxeval.report.inline import inline_svg
from ctxeval.report.misses import missed_rows, shown_samples
from ctxeval.report.notes import reference_line, warnings
from ctxeval.report.overview import overview, probe_blocks
from ctxeval.report.palette import DEFAULT, PALETTES
from ctxeval.report.pictures import pictures
from ctxeval.report.provenance import PROOF_HEADER, facts, proofs
from ctxeval.report.sweep import sweep_tables
from ctxeval.report.text import LEGEND, measured_documents, model_line, one_line, protocol_line, scale_label
from ctxeval.results.samples import Sample
from ctxeval.results.store import Run

CAPTIONS: Mapping[str, str] = {
    "curves": "Both over one length axis, with 95 % bands. Where shaded, recall is broken while perplexity holds: a "
    "check of perplexity alone would have passed. A ratio above 2 is drawn at the top, with its value.",
    "heatmap": "Depth 0 is the beginning of the context. Every panel has the same scale.",
    "distance": "Position embeddings see distances only, so this explains more than depth does. Bars: 95 %.",
    "certainty": "Mean log-probability of the whole right answer: it moves before the hit rate does.",
}


@dataclass(frozen=True, eq=False)
class Content:
    """What a page shows of one run. `samples` is `None` where they are to be left out, with all model output."""

    run: Run
    summary: Headline
    samples: Sequence[Sample] | None = ()


def html_report(contents: Sequence[Content], palette: str = DEFAULT, differences: Sequence[Difference] = ()) -> str:
    """Return the page. Several runs begin with a comparison; `differences` are its tables (see `differences`)."""
    labels = run_labels([one.run for one in contents])
    names = [model_line(one.run.manifest).split(" · ", 1)[0] for one in contents]
    summaries = dict(zip(labels, (one.summary for one in contents), strict=True))
    page = _environment().get_template("report.html")
    return page.render(
        title=f"ctxeval: {names[0]}" if len(names) == 1 else f"Comparison of {len(names)} runs",
        version=__version__,
        style=_style(),
        legend=LEGEND,
        few=FEW_TRIALS,
        proof_header=PROOF_HEADER,
        side_by_side=probe_blocks(summaries),
        differences=differences,
        runs=[
            _run(one, palette, label, f"p{index}")
            for index, (one, label) in enumerate(zip(contents, labels, strict=True), start=1)
        ],
    )


def _run(content: Content, palette: str, label: str, prefix: str) -> dict[str, Any]:
    run, summary = content.run, content.summary
    name, _, about = model_line(run.manifest).partition(" · ")
    return {
        "name": name,
        "label": label,
        "about": about,
        "protocol": protocol_line(run.manifest, summary.plan, measured_documents(run.cells)),
        "conclusion": conclusion(run.cells, run.manifest, summary),
        "overview": overview(summary),
        "reference": reference_line(summary),
        "notes": warnings(run.cells, run.manifest, summary),
        "probes": probe_blocks({label: summary}),
        "ramp": Markup(", ".join(PALETTES[palette])),
        "pictures": [_picture(one, prefix) for one in pictures(run.cells, summary, palette)],
        "sweep": sweep_tables(sweep(run.cells, run.manifest, summary=summary), summary),
        "samples": None if content.samples is None else _samples(content),
        "command": command_line(run.manifest),
        "facts": facts(run.manifest),
        "proofs": proofs(run.manifest),
    }


def _picture(picture: Picture, prefix: str) -> dict[str, Any]:
    panels = []
    for index, panel in enumerate(picture.panels):
        drawn = inline_svg(svg(alone(panel)), f"{prefix}-{picture.name}-{index}", one_line(panel.alt))
        # The only text of a page that is not escaped here: it was put together as XML.
        panels.append({"title": panel.title, "svg": Markup(drawn)})
    about = {"name": picture.name, "heading": picture.heading, "caption": CAPTIONS[picture.name]}
    return {**about, "panels": panels}


def _samples(content: Content) -> dict[str, Any] | None:
    run, kept = content.run, content.samples or ()
    scalings = []
    for row in content.summary.rows:
        shown = shown_samples(run.cells, kept, row.scale) if kept else missed_rows(run.cells, row.scale)
        misses, hits = ([one for one in shown if one.correct == correct] for correct in (False, True))
        if shown:
            scalings.append((scale_label(row.scale, row.factor), misses, hits))
    about = (
        "The corpus's own text on both sides of a needle, with what was asked, expected and answered; a few of each "
        "length. Other needles of a packed context are not shown."
        if kept
        else "This run has kept no text; these are rows of needles that were missed, two of each length."
    )
    return {"about": about, "scalings": scalings} if scalings else None


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("ctxeval.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )


@cache
def _style() -> Markup:
    source, _, _ = PackageLoader("ctxeval.report").get_source(_environment(), "report.css")
    return Markup(source)
