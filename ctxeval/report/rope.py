"""`ctxeval rope` as a table of at most 80 columns with what there is to learn from it, as CSV and as JSON. Pure."""

from __future__ import annotations

import csv
import io
import json
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, astuple, fields
from typing import Any

from ctxeval.results.files import plain
from ctxeval.rope.pairs import Geometry, PairRow, ScaledPairs

WIDTH = 80
GENERAL = (
    "Pair 0 turns fastest, the last pair slowest; a pair takes 2π / frequency tokens a turn. Pair i is the dimensions "
    "(2i, 2i+1) where pairs are interleaved (the RoPE paper, GPT-J) and (i, i + d/2) where they are half-split "
    "(GPT-NeoX, Llama); both have the same frequencies.",
    "A pair that turns less than once within the native window has not met all its angles there: beyond the window "
    "its angles are new to the model, unless it is slowed by the factor.",
)
LESSONS = {
    "none": "the checkpoint as configured.",
    "pi": "divides every frequency by the factor. No angle is new, but neighbouring tokens come closer by the factor "
    "on the fast pairs too.",
    "ntk": "raises the base: the fastest pair is kept, the slowest divided by exactly the factor, pair i of n by "
    "factor^(i/(n-1)). All but the last are thus slowed by less than the factor.",
    "ntk-dynamic": "ntk with the factor of each context's own length; shown here for the target.",
    "ntk-parts": "keeps pairs that turn more than beta_fast (32) times within the native window, divides by the factor "
    "those that turn less than beta_slow (1) times, and blends in between, linearly in the pair index.",
    "yarn": "ntk-parts, with cos and sin multiplied by 0.1 ln s + 1. Queries and keys both carry it, so attention "
    "logits grow by its square: a temperature below 1.",
    "llama3": "keeps pairs that turn more than high_freq_factor (4) times within the original window, divides by the "
    "factor those that turn less than low_freq_factor (1) times; in between linear in the number of turns.",
    "longrope": "divides each pair by a factor of its own, from a list that was searched for.",
    "abf": "sets another base: how much a pair slows down follows from the base alone, not from the factor.",
}
HEADERS = ("pair", "rad/token", "scaled", "ratio", "tok/turn", "scaled", "turns", "part")
WIDTHS = (4, 9, 9, 6, 10, 10, 8)


def rope_lines(geometry: Geometry, tables: Sequence[ScaledPairs]) -> list[str]:
    """Return one scaling pair by pair, or several beside each other; then what it means."""
    lines = [
        f"{geometry.what}: {2 * geometry.inv_freq.size} rotary dimensions, {geometry.inv_freq.size} pairs",
        f"native window {geometry.window:,} tokens ({geometry.source}), target {tables[0].target:,}",
        "",
    ]
    lines += _single(tables[0]) if len(tables) == 1 else _beside(tables)
    lines.append("")
    for table in tables:
        lines += _wrapped(_summary(table))
    lines.append("")
    for text in (*GENERAL, *(f"{name}: {LESSONS[name]}" for name in dict.fromkeys(t.scaling.method for t in tables))):
        lines += _wrapped(text)
    return lines


def rope_csv(tables: Sequence[ScaledPairs]) -> str:
    """Return a row a scaling and pair, at full precision; units as `PairRow`, `turns` within the native window."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["scale", "factor", "attention_factor", *(field.name for field in fields(PairRow))])
    for table in tables:
        about = [table.scaling.label, table.scaling.factor, table.attention_factor]
        writer.writerows([*about, *astuple(row)] for row in table.rows)
    return out.getvalue()


def rope_json(geometry: Geometry, tables: Sequence[ScaledPairs]) -> str:
    """Return the geometry and every scaling of it; an infinite wavelength is null."""
    data: dict[str, Any] = {
        "geometry": geometry.what,
        "rotary_dim": 2 * geometry.inv_freq.size,
        "native_window": geometry.window,
        "native_window_source": geometry.source,
        "native_attention_factor": geometry.attention_factor,
        "scalings": [
            {
                **asdict(table.scaling),
                "target": table.target,
                "attention_factor": table.attention_factor,
                "pairs": [asdict(row) for row in table.rows],
            }
            for table in tables
        ],
    }
    return json.dumps(plain(data), indent=2, ensure_ascii=False) + "\n"


def _single(table: ScaledPairs) -> list[str]:
    head = " ".join(name.rjust(width) for name, width in zip(HEADERS[:-1], WIDTHS, strict=True))
    return [f"{head}  {HEADERS[-1]}", *(_row(row) for row in table.rows)]


def _row(row: PairRow) -> str:
    cells = (
        str(row.pair),
        _frequency(row.inv_freq),
        _frequency(row.scaled),
        f"{row.ratio:.4f}",
        _amount(row.wavelength),
        _amount(row.scaled_wavelength),
        _amount(row.turns),
    )
    return " ".join(cell.rjust(width) for cell, width in zip(cells, WIDTHS, strict=True)) + f"  {row.part}"


def _beside(tables: Sequence[ScaledPairs]) -> list[str]:
    """Show what each scaling but `none` multiplies frequencies by, in as many blocks as 80 columns need."""
    tables = [table for table in tables if table.scaling.method != "none"]
    lines = ["frequency of each pair as a share of the native one:", ""]
    for block in _blocks(tables):
        head = "".join(_label(table).rjust(_column(table)) for table in block)
        lines.append(f"{'pair':>4} {'tok/turn':>10} {'turns':>8}{head}")
        for pair, first in enumerate(block[0].rows):
            cells = "".join(f"{table.rows[pair].ratio:.4f}".rjust(_column(table)) for table in block)
            lines.append(f"{pair:>4} {_amount(first.wavelength):>10} {_amount(first.turns):>8}{cells}")
        lines.append("")
    return lines[:-1]


def _blocks(tables: Sequence[ScaledPairs]) -> list[list[ScaledPairs]]:
    blocks: list[list[ScaledPairs]] = []
    left = 0
    for table in tables:
        if not blocks or left < _column(table):
            blocks.append([])
            left = WIDTH - 24
        blocks[-1].append(table)
        left -= _column(table)
    return blocks


def _label(table: ScaledPairs) -> str:
    return table.scaling.method


def _column(table: ScaledPairs) -> int:
    return max(len(_label(table)), 6) + 2


def _summary(table: ScaledPairs) -> str:
    """Name the pairs of each part and the factor on cos and sin."""
    parts = " · ".join(f"{part} {pairs}" for part, pairs in table.parts().items())
    factor = table.attention_factor
    heat = f"attention factor {factor:.4f} on cos and sin, logits × {factor**2:.4f}" if factor != 1 else ""
    return f"{table.scaling.label} ×{table.scaling.factor:g}: {parts}{f'; {heat}' if heat else ''}"


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def _frequency(value: float) -> str:
    return f"{value:.3e}" if 0 < value < 0.001 else f"{value:.6f}"


def _amount(value: float) -> str:
    """Write tokens or turns in at most ten characters."""
    if value >= 1e7:
        return "∞" if value == float("inf") else f"{value:.2e}"
    return f"{value:,.0f}" if value >= 1e5 else f"{value:,.1f}" if value >= 10 else f"{value:.3f}"
