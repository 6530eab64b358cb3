"""Parts of the ramp, worked by hand."""

from __future__ import annotations

import math

import pytest

from ctxeval.errors import UsageError
from ctxeval.resolve import resolve
from ctxeval.rope.pairs import Geometry, Part, plain_geometry, scaled_pairs
from ctxeval.spec import ModelSpec, RunSpec


def pairs(geometry: Geometry, scale: str, length: int = 16384, **options: float) -> dict[Part, str]:
    spec = RunSpec(ModelSpec("x"), scales=(scale,), length=length, scaling_options=options)
    (table,) = scaled_pairs(geometry, resolve(spec, geometry.window))
    return table.parts()


def test_parts_of_each_scaling() -> None:
    plain = plain_geometry(10000, 64, 4096)
    assert pairs(plain, "pi") == {"interpolated": "0–31"}
    assert pairs(plain, "ntk") == {"kept": "0", "blended": "1–30", "interpolated": "31"}
    # 32 turns in 4,096 tokens at index 10.47 → 10; one turn at 22.51 → 23.
    assert pairs(plain, "yarn") == {"kept": "0–10", "blended": "11–22", "interpolated": "23–31"}
    assert pairs(plain, "abf", rope_theta=1e6) == {"kept": "0", "blended": "1–9", "beyond": "10–31"}


def test_pairs_that_do_not_turn() -> None:
    plain = plain_geometry(10000, 8, 4096)
    still = Geometry("half", plain.inv_freq * [1, 1, 0, 0], 4096, "given")
    assert pairs(still, "pi") == {"interpolated": "0–1", "still": "2–3"}
    spec = RunSpec(ModelSpec("x"), scales=("pi",), length=16384)
    row = scaled_pairs(still, resolve(spec, 4096))[0].rows[3]
    assert (row.ratio, row.wavelength, row.turns) == (1.0, math.inf, 0.0)


def test_a_row() -> None:
    spec = RunSpec(ModelSpec("x"), scales=("pi",), length=16384)
    row = scaled_pairs(plain_geometry(10000, 64, 4096), resolve(spec, 4096))[0].rows[16]
    assert (row.pair, row.ratio) == (16, 0.25)
    assert row.inv_freq == pytest.approx(0.01)
    assert row.wavelength == pytest.approx(200 * math.pi)
    assert row.scaled_wavelength == pytest.approx(800 * math.pi)
    assert row.turns == pytest.approx(4096 / (200 * math.pi))


@pytest.mark.parametrize(("theta", "dim"), [(1.0, 64), (math.inf, 64), (math.nan, 64), (1e4, 2), (1e4, 7), (1e4, -8)])
def test_impossible_geometries(theta: float, dim: int) -> None:
    with pytest.raises(UsageError):
        plain_geometry(theta, dim, 4096)
