"""Brings what the published runs show up to date: their tables and pictures, and README.md. See `make readme`.

A test fails when README.md differs from what the runs hold.
"""

from __future__ import annotations

import re
from pathlib import Path

from ctxeval.report.artifacts import write_artifacts
from ctxeval.report.notes import verdict_lines, warnings
from ctxeval.report.tables import markdown_tables
from ctxeval.report.text import measured_documents, model_line, protocol_line
from ctxeval.results.store import load_run

ROOT = Path(__file__).resolve().parent.parent
BLOCKS = {"published": ROOT / "results/smollm2-135m-instruct", "demo": ROOT / "results/demo"}


def block(folder: Path) -> str:
    """Return what README.md says of a run: what was measured, the headline tables, verdicts and notes."""
    run = load_run(folder)
    summary = run.headline()
    documents = measured_documents(run.cells)
    lines = [f"{model_line(run.manifest)} · {protocol_line(run.manifest, summary.plan, documents)}", ""]
    verdicts = [f"{'  ' * line.startswith(' ')}- {line.strip()}" for line in verdict_lines(summary)]
    notes = [f"- note: {note}" for note in warnings(run.cells, run.manifest, summary)]
    return "\n".join([*lines, markdown_tables(summary), *verdicts, *notes])


def render(readme: str) -> str:
    """Return README.md with every block as the run folders have it."""
    for name, folder in BLOCKS.items():
        marked = re.compile(f"(<!-- {name}:begin -->\n).*?(<!-- {name}:end -->)", re.DOTALL)
        text = f"{block(folder)}\n"
        readme = marked.sub(lambda found, text=text: f"{found[1]}{text}{found[2]}", readme)
    return readme


if __name__ == "__main__":
    for published in BLOCKS.values():
        write_artifacts(load_run(published))
    path = ROOT / "README.md"
    path.write_text(render(path.read_text(encoding="utf-8")), encoding="utf-8")
