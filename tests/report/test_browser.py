"""The page in a real Chromium: both colour schemes, a phone, print; nothing fetched, nothing run, nothing logged."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ctxeval.report.html import Content, html_report
from ctxeval.results.store import Run
from tests.analysis.synthetic_cells import frame, needle_cells, perplexity_cells
from tests.report.chromium import Page, find_chromium
from tests.report.conftest import SCALES, MakeRun, excess, manifest, recall
from tests.report.pages import HOSTILE, hostile

PROGRAM = find_chromium()
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="NO BROWSER: no chromium or google-chrome on PATH")

#: Everything that a reader could see cut off: wider than the window, and not inside something that scrolls by itself.
TOO_WIDE = """
Array.from(document.querySelectorAll('body *')).filter(one => !one.closest('.scroll') && !one.closest('svg')
  && one.getBoundingClientRect().right > document.documentElement.clientWidth + 1).map(one => one.outerHTML)
"""
#: Pairs of labels of a drawing that lie on each other.
OVERLAPS = """
Array.from(document.querySelectorAll('svg')).flatMap(svg => {
  const boxes = Array.from(svg.querySelectorAll('text')).filter(one => one.textContent.trim())
    .map(one => [one.textContent.trim(), one.getBoundingClientRect()]);
  return boxes.flatMap(([a, p], i) => boxes.slice(i + 1).filter(([b, q]) =>
    Math.min(p.right, q.right) - Math.max(p.left, q.left) > 1.5
    && Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top) > p.height / 2).map(([b]) => a + ' / ' + b));
})
"""
COLOURS = """
(() => { const of = (one, what) => getComputedStyle(one)[what];
  return { paper: of(document.body, 'backgroundColor'), ink: of(document.body, 'color'),
           label: of(document.querySelector('svg text'), 'fill') }; })()
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    profile = tmp_path_factory.mktemp("chromium")
    with Page(str(PROGRAM), profile) as page:
        yield page
    shutil.rmtree(profile, ignore_errors=True)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of a run that has HTML and script in every text from outside, and a blind spot."""
    lengths = (4096, 8192, 10240, 12288, 16384)
    generator = np.random.default_rng(0)
    needles = needle_cells(generator, recall, SCALES, lengths, 8, correlation=0, depths=(0, 50, 100))
    cells = frame(needles, perplexity_cells(generator, excess, SCALES, lengths, 8, spread=0.0))
    run = Run(Path("run"), manifest(), cells)
    run.manifest["resolved"]["lengths"] = list(lengths)
    kept = hostile(run)
    return written([Content(run, run.headline(), kept)], tmp_path_factory.mktemp("page"))


def written(contents: list[Content], folder: Path) -> str:
    path = folder / "report.html"
    path.write_text(html_report(contents), encoding="utf-8")
    return path.as_uri()


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (360, "light"), (360, "dark")])
def test_it_renders(browser: Page, address: str, width: int, scheme: str) -> None:
    browser.open(address, width=width, scheme=scheme)
    assert browser.console == []
    assert browser.requested == [address]
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert browser.evaluate(TOO_WIDE) == []
    assert browser.evaluate(OVERLAPS) == []
    assert browser.evaluate("Array.from(document.querySelectorAll('svg')).every(one => one.clientHeight > 100)")
    assert "window.hit" in browser.evaluate("document.body.innerText") and browser.evaluate("window.hit") is None
    found: dict[str, Any] = browser.evaluate(COLOURS)
    light, dark = (brightness(found[name]) for name in (("paper", "ink") if scheme == "light" else ("ink", "paper")))
    assert light > 200 and dark < 60
    assert (brightness(found["label"]) < 128) == (scheme == "light")
    assert len(browser.picture(whole=False)) > 10_000


def brightness(colour: str) -> float:
    """Return the mean of the channels of `rgb(…)`."""
    channels = [float(part) for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    return sum(channels) / 3


def test_html_in_a_run_is_text_also_inside_pictures(browser: Page, address: str) -> None:
    browser.open(address)
    assert browser.evaluate("document.querySelectorAll('script, img, b, iframe').length") == 0
    told = browser.evaluate("Array.from(document.querySelectorAll('figcaption, svg text')).map(one => one.textContent)")
    assert any(HOSTILE[:20] in one for one in told)
    assert browser.evaluate("document.querySelector('mark').textContent") == f"needle {HOSTILE}"


def test_it_prints(browser: Page, address: str) -> None:
    browser.open(address)
    dark = [{"name": "prefers-color-scheme", "value": "dark"}]
    browser.call("Emulation.setEmulatedMedia", media="print", features=dark)
    assert brightness(browser.evaluate(COLOURS)["paper"]) > 200  # a dark screen makes no dark paper
    assert browser.evaluate("document.querySelector('.sample').checkVisibility({contentVisibilityAuto: true})")
    assert browser.pdf().startswith(b"%PDF")
    browser.call("Emulation.setEmulatedMedia", media="")


def test_several_runs_on_a_phone(browser: Page, make_run: MakeRun, tmp_path: Path) -> None:
    runs = [make_run(lengths=(8192, 16384)) for _ in range(2)]
    for run in runs:
        run.manifest["resolved"]["scalings"] = [{"label": "none"}, {"label": "yarn"}]
    browser.open(written([Content(run, run.headline()) for run in runs], tmp_path), width=360)
    assert browser.console == [] and browser.evaluate(TOO_WIDE) == []


def test_these_checks_can_fail(browser: Page, tmp_path: Path) -> None:
    path = tmp_path / "bad.html"
    path.write_text(
        "<meta name='viewport' content='width=device-width'><img src='missing.png'>"
        "<svg><text y='20'>one</text><text y='20'>two</text></svg><p style='width:900px'>wide</p>"
        "<script>window.hit = 1; console.log('hit'); nonsense()</script>",
        encoding="utf-8",
    )
    browser.open(path.as_uri(), width=360)
    assert browser.evaluate("window.hit") == 1 and len(browser.console) >= 2
    assert browser.requested == [path.as_uri(), (tmp_path / "missing.png").as_uri()]
    assert browser.evaluate(OVERLAPS) == ["one / two"]
    assert any("wide" in one for one in browser.evaluate(TOO_WIDE))
