"""What a page is checked for without a browser: everything that it holds, as a parser sees it."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

from ctxeval.results.samples import Excerpt, Sample
from ctxeval.results.store import Run

HOSTILE = '</p><script>window.hit=1</script><img src=x onerror="window.hit=1"><b>\'&amp;'


class Page(HTMLParser):
    """The tags, the attributes and the visible text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.open: list[str] = []
        self.parts: list[str] = []
        self.styles: list[str] = []
        self.feed(page)
        self.close()

    @property
    def text(self) -> str:
        """The text outside of the style sheet, white space folded."""
        return " ".join("".join(self.parts).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag == "style":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        if tag == "style":
            self.open.pop()

    def handle_data(self, data: str) -> None:
        (self.styles if self.open else self.parts).append(data)


def hostile(run: Run) -> list[Sample]:
    """Put HTML and script into every text of a run that comes from outside; return samples that have it too."""
    manifest: dict[str, Any] = run.manifest
    for name in ("name", "quantization", "revision", "kind", "fingerprint"):
        manifest["model"][name] = HOSTILE
    manifest["identity"] = {"corpus": {"name": HOSTILE, "sha256": HOSTILE}, "task": {"name": HOSTILE}}
    manifest |= dict.fromkeys(("dtype", "device", "platform", "git_commit", "started", "finished"), HOSTILE)
    manifest["versions"] = {HOSTILE: HOSTILE}
    manifest["proofs"] = {HOSTILE: {"frequencies_sha256": HOSTILE, "factor": 4.0}}
    manifest["spec"] = {"model": {"name_or_path": HOSTILE}, "corpus": HOSTILE, "seed": HOSTILE, "probes": ["needle"]}
    manifest["resolved"]["task"] = HOSTILE
    manifest["resolved"]["scalings"] = [{"label": "none"}, {"label": HOSTILE}]
    cells = run.cells
    cells.loc[cells["scale"] == "yarn", "scale"] = HOSTILE
    cells["got"] = HOSTILE
    cells["expected"] = HOSTILE
    cells["answer_logprob"] = -1.0
    excerpt = Excerpt(*(f"{part} {HOSTILE}" for part in ("before", "needle", "after", "question", "lead")))
    first = cells[(cells["probe"] == "needle") & (cells["scale"] == HOSTILE)].iloc[[0, -1]]
    return [
        Sample(str(row["cell_id"]), HOSTILE, int(row["context_length"]), bool(row["correct"]), excerpt)
        for _, row in first.iterrows()
    ]
