"""Pictures: the same bytes for the same cells, text as text, hatched where nothing was run, the blind spot shaded."""

from __future__ import annotations

import re
import struct
from xml.etree import ElementTree as Xml

import numpy as np
import pytest

from ctxeval.report.canvas import BLIND, HATCH, INK, MUTED_ALPHA, SERIES, Panel, alone, svg, thinned
from ctxeval.report.curves_picture import blind_spans
from ctxeval.report.inline import THEME, inline_svg
from ctxeval.report.pictures import picture_files, pictures
from ctxeval.results.store import Run
from tests.analysis.synthetic_cells import frame, needle_cells, perplexity_cells
from tests.report.conftest import MakeRun, excess, recall

NAMES = ("curves", "heatmap", "distance", "certainty")


@pytest.fixture
def run(make_run: MakeRun) -> Run:
    made = make_run(lengths=(4096, 8192, 16384, 32768))
    made.cells["answer_logprob"] = np.where(made.cells["correct"].fillna(value=False), -0.2, -9.0)
    return made


def drawn(run: Run, name: str, panel: int = 0) -> str:
    picture = next(one for one in pictures(run.cells, run.headline()) if one.name == name)
    return svg(alone(picture.panels[panel])).decode()


def texts(drawing: str) -> list[str]:
    return ["".join(one.itertext()).strip() for one in Xml.fromstring(drawing).iter("{http://www.w3.org/2000/svg}text")]


def test_every_picture_repeats_byte_for_byte_as_png_and_svg(make_run: MakeRun) -> None:
    run = make_run(lengths=(8192,))
    run.cells["answer_logprob"] = -1.0
    run.manifest["model"]["name"] = "a$b_{$ <i>"  # neither mathematics nor markup
    one, other = (picture_files(run.cells, run.manifest, run.headline()) for _ in range(2))
    assert list(one) == [f"{name}.{kind}" for name in NAMES for kind in ("png", "svg")]
    assert one == other
    for name in NAMES:
        assert one[f"{name}.png"][:8] == b"\x89PNG\r\n\x1a\n"
        wide, high = struct.unpack(">II", one[f"{name}.png"][16:24])
        assert 800 < wide < 4000 and 400 < high < 4000
        drawing = one[f"{name}.svg"].decode()
        assert any("a$b_{$ <i>" in text for text in texts(drawing)) and "<i>" not in drawing
        assert not re.search(r"<dc:date>|20\d\d-\d\d-\d\d", drawing)


def test_pictures_without_data_are_left_out(make_run: MakeRun) -> None:
    def names(probes: str) -> list[str]:
        run = make_run(probes=probes, lengths=(8192, 16384))
        return [one.name for one in pictures(run.cells, run.headline())]

    assert names("p") == ["curves"]
    assert names("n") == ["curves", "heatmap", "distance"]  # these needles have no log-probability


def test_a_heatmap_has_the_number_and_n_in_each_cell(make_run: MakeRun) -> None:
    run = make_run(probes="n", lengths=(4096, 8192, 12288))
    cells, own = run.cells, run.cells["scale"] == "none"
    few = own & (cells["context_length"] == 4096) & (cells["depth_percent"] == 0) & (cells["document"] >= 3)
    none = own & (cells["context_length"] == 12288) & (cells["depth_percent"] == 100)
    run = make_run(probes="n", lengths=(4096, 8192, 12288), cells=cells[~few & ~none])
    drawing = drawn(run, "heatmap")
    written = texts(drawing)
    assert written.count("n 16") == 7 and written.count("n 3") == 1
    assert written.count("100") == 5 + 1 and written.count("(100)") == 1  # five cells and the tick of depth 100
    assert written.count("0") == 2 + 1
    assert drawing.count(f"fill-opacity: {MUTED_ALPHA}") + drawing.count(f"opacity: {MUTED_ALPHA}") >= 1
    assert HATCH in drawing and "pattern" in drawing
    whole = drawn(make_run(probes="n", lengths=(4096, 8192, 12288)), "heatmap")
    assert "pattern" not in whole


def test_the_window_is_marked_only_where_it_ends_inside_the_grid(make_run: MakeRun) -> None:
    def dashes(lengths: tuple[int, ...]) -> int:
        return drawn(make_run(probes="n", lengths=lengths), "heatmap").count("stroke-dasharray")

    assert dashes((4096, 8192, 16384)) == dashes((4096, 8192)) == 1 and dashes((2048, 4096)) == 0


def test_the_blind_spot_is_one_shaded_region_and_named(run: Run) -> None:
    summary = run.headline()
    yarn = next(row for row in summary.rows if row.scale == "yarn")
    assert yarn.blind_spot == (16384, 32768)
    ((left, right),) = blind_spans(yarn, summary)
    assert left == pytest.approx((8192 * 16384) ** 0.5) and right > 32768
    drawing = drawn(run, "curves", 3)
    assert drawing.count(f"fill: {BLIND}") == 2 + 1 and "blind spot" in texts(drawing)  # both axes, and the word
    assert BLIND not in drawn(run, "curves", 0)


def test_a_gap_in_the_blind_spot_is_shown(run: Run) -> None:
    from dataclasses import replace

    summary = run.headline()
    row = replace(summary.rows[3], blind_spot=(4096, 16384))
    assert len(blind_spans(row, summary)) == 2


def test_a_blow_up_does_not_flatten_the_others_and_is_written(run: Run) -> None:
    assert ">1e3" in texts(drawn(run, "curves", 0))  # none at 16K: e^8


def test_many_scalings_with_long_names_are_drawn() -> None:
    scales = ("none", *(f"yarn[attention_factor={index},beta_fast=32,beta_slow=1]" for index in range(5)))
    generator, lengths = np.random.default_rng(0), (2048, 8192, 9000, 9216, 16384)
    cells = frame(
        needle_cells(generator, recall, scales, lengths, 3, depths=(0, 50), answer_logprob=-1.0),
        perplexity_cells(generator, excess, scales, lengths, 3),
    )
    from ctxeval.analysis.headline import headline

    summary = headline(cells, native_window=8192, lengths=lengths, scalings=scales)
    files = picture_files(cells, {"model": {"name": "x" * 400}}, summary, kinds=("svg",))
    assert list(files) == [f"{name}.svg" for name in NAMES]
    for drawing in files.values():
        root = Xml.fromstring(drawing)
        wide, high = (float(one) for one in root.attrib["viewBox"].split()[2:])
        assert wide < 1200 and high < 1200  # points: long names are folded, not drawn beyond the edge


def test_labels_that_would_collide_are_thinned_from_the_end() -> None:
    assert thinned([0, 0.1, 0.2, 1.0, 1.1], 0.2) == [0, 2, 4]
    assert thinned([], 1) == [] and thinned([3.0], 1) == [0]


def test_in_a_page_the_inks_are_the_page_s_and_ids_do_not_clash(run: Run) -> None:
    data = drawn(run, "curves", 3).encode()
    one, other = (inline_svg(data, name, 'says "x" & <y>') for name in ("a", "b"))
    assert INK in data.decode() and not set(THEME) & set(re.findall(r"#[0-9a-f]{6}", one))
    assert "var(--ink)" in one and "var(--blind)" in one
    ids = [set(re.findall(r'\bid="([^"]+)"', drawing)) for drawing in (one, other)]
    assert ids[0] and not ids[0] & ids[1]
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', one))
    assert used and used <= ids[0]
    assert "<style" not in one and "<metadata" not in one and "http" not in one and "xlink" not in one
    root = Xml.fromstring(one)
    assert root.attrib["role"] == "img" and root.attrib["aria-label"] == 'says "x" & <y>'


def test_every_series_has_an_ink_of_the_page() -> None:
    assert set(SERIES) <= set(THEME)


def test_what_a_label_says_stays_text() -> None:
    hostile = '</svg><script>alert(1)</script> id="x" url(#y) #1b1f24'
    panel = Panel("", "", 2.0, (1.0,), lambda axes: axes[0].text(0.5, 0.5, hostile, parse_math=False) and None)
    root = Xml.fromstring(inline_svg(svg(alone(panel)), "p", "alt"))
    assert any("".join(one.itertext()) == hostile for one in root.iter("text"))
    assert not list(root.iter("script"))
