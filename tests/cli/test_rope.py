"""`ctxeval rope`: tables, files and exit codes."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.test_imports import HEAVY, imported

Invoke = Callable[..., Any]
BARE = ("rope", "--theta", "10000", "--dim", "64", "--native-window", "4096", "--len", "16k")


def test_a_bare_geometry_loads_no_torch(tmp_path: Path) -> None:
    picture = str(tmp_path / "all.png")
    lines = [[*BARE, "--scale", "yarn"], [*BARE, "--scale", "none,pi,ntk,ntk-parts,yarn,llama3", "-o", picture]]
    seen = imported(HEAVY, *lines)
    assert seen == [[0, []]] * 3
    assert Path(picture).read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("scale", ["yarn", "none,pi,ntk,ntk-parts,ntk-dynamic,yarn,llama3,abf"])
def test_no_line_is_wider_than_80(invoke: Invoke, scale: str) -> None:
    options = ("--rope-theta", "50000") if "abf" in scale else ()
    done = invoke(*BARE, "--scale", scale, *options)
    assert done.code == 0 and max(map(len, done.out.splitlines())) <= 80


def test_the_facts_are_right(invoke: Invoke) -> None:
    """Worked by hand: pair 16 of 32 turns at 0.01 rad/token, 628 tokens a turn, 6.52 turns in 4,096 tokens."""
    text = " ".join(invoke(*BARE, "--scale", "yarn").out.split())
    assert "16 0.010000 0.006538 0.6538 628.3 961.0 6.519 blended" in text
    assert "kept 0–10 · blended 11–22 · interpolated 23–31; attention factor 1.1386" in text
    assert "Pair 0 turns fastest, the last pair slowest" in text
    assert "(2i, 2i+1) where pairs are interleaved" in text and "(i, i + d/2) where they are half-split" in text


def test_a_model_needs_no_weights(invoke: Invoke, tiny_llama: Callable[..., Path], tmp_path: Path) -> None:
    folder = tmp_path / "weightless"
    folder.mkdir()
    (folder / "config.json").write_bytes((tiny_llama(window=256) / "config.json").read_bytes())
    done = invoke("rope", "-m", folder, "--scale", "ntk", "--factor", "4", "--format", "json")
    assert done.code == 0
    data = json.loads(done.out)
    assert (data["rotary_dim"], data["native_window"], data["native_window_source"]) == (
        16,
        256,
        "max_position_embeddings",
    )
    (scaling,) = data["scalings"]
    assert (scaling["target"], scaling["attention_factor"]) == (1024, 1.0)
    assert [pair["part"] for pair in scaling["pairs"]] == ["kept", *["blended"] * 6, "interpolated"]


def test_local_layers_are_said_to_stay(invoke: Invoke, tmp_path: Path) -> None:
    from tests.export.conftest import configuration
    from tests.export.test_engines import GEMMA

    configuration("gemma3_text", **GEMMA).save_pretrained(tmp_path / "gemma")
    done = invoke("rope", "-m", tmp_path / "gemma", "--scale", "pi", "--len", "1k")
    assert done.code == 0 and "model.rotary_emb[full_attention]" in done.out
    assert "model.rotary_emb[sliding_attention] stay as they are: their layers see nearby tokens only" in done.err


def test_on_a_scaled_checkpoint(invoke: Invoke, tmp_path: Path) -> None:
    """Composed on the native table with its factor on cos and sin, or from plain RoPE with the pretrain window."""
    from tests.export.conftest import configuration
    from tests.export.test_scaled_checkpoints import YARN

    configuration(rope_parameters=dict(YARN), max_position_embeddings=1024).save_pretrained(tmp_path / "yarn")
    line = ("rope", "-m", tmp_path / "yarn", "--scale", "yarn", "--len", "4k", "--format", "json")
    data = json.loads(invoke(*line).out)
    assert data["geometry"].endswith("model.rotary_emb as scaled by yarn")
    assert (data["native_window"], data["native_attention_factor"]) == (1024, pytest.approx(1.1386, abs=1e-4))
    assert data["scalings"][0]["attention_factor"] == pytest.approx(1.138629436**2)
    assert data["scalings"][0]["pairs"][-1]["inv_freq"] == pytest.approx(10000 ** (-15 / 16) / 4)
    data = json.loads(invoke(*line, "--from-scratch").out)
    assert (data["native_window"], data["native_attention_factor"]) == (256, 1.0)
    assert data["scalings"][0]["factor"] == 16.0
    assert data["scalings"][0]["pairs"][-1]["inv_freq"] == pytest.approx(10000 ** (-15 / 16))


def test_csv_is_exact(invoke: Invoke) -> None:
    rows = list(csv.DictReader(io.StringIO(invoke(*BARE, "--scale", "pi,yarn", "--format", "csv").out)))
    assert len(rows) == 2 * 32
    assert float(rows[5]["inv_freq"]) == 10000 ** (-5 / 32) and rows[5]["scale"] == "pi"
    assert {row["attention_factor"] for row in rows[32:]} == {"1.138629436111989"}


def test_svg_is_the_same_each_time(invoke: Invoke, tmp_path: Path) -> None:
    pictures = []
    for name in ("a.svg", "b.svg"):
        assert invoke(*BARE, "--scale", "pi,yarn", "-o", tmp_path / name).code == 0
        pictures.append((tmp_path / name).read_bytes())
    assert pictures[0] == pictures[1] and b"<svg" in pictures[0]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--scale yarn --len 16k", "no model given"),
        ("--theta 10000 --scale yarn --len 16k", "a geometry without --dim, --native-window"),
        ("--theta 10000 --dim 63 --native-window 4096 --scale pi --factor 2", "63 rotary dimensions"),
        ("--theta 0.5 --dim 64 --native-window 4096 --scale pi --factor 2", "theta 0.5"),
        ("--theta 10000 --dim 64 --native-window 4096 --scale pi --len 4k", "is not above the native window of 4096"),
        ("-m demo --theta 10000 --scale pi --len 4k", "both a model and --theta"),
        ("--theta 10000 --dim 64 --native-window 4096 --scale pi --factor 2 -o x.pdf", "cannot draw into 'x.pdf'"),
        ("--theta 10000 --dim 64 --native-window 4096 --scale pi --factor 2 --format xml", "unknown format 'xml'"),
        ("--theta 10000 --dim 64 --native-window 4096 --scale abf --factor 2", "scaling abf without rope_theta"),
        ("-m demo --from-scratch --scale none,pi --len 4k", "--from-scratch with none"),
    ],
)
def test_refusals(invoke: Invoke, line: str, said: str) -> None:
    done = invoke("rope", *line.split())
    assert (done.code, done.out) == (2, "") and said in done.err and done.err.count("\n") == 1
