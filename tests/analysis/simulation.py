"""What the statistics promise, checked on synthetic runs whose truth is known.

    python -m tests.analysis.simulation      # minutes; prints the figures and writes docs/statistics.md

`test_simulation` runs a small version of each figure, and the full one where slow tests are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from ctxeval.analysis.headline import headline
from ctxeval.analysis.power import Power, check_of, power, ratio_chance
from ctxeval.analysis.question import Grid, Question, Questions
from ctxeval.analysis.stats import mean_bounds
from ctxeval.analysis.trial_runs import Assumptions, Batch, Check, Design, pooled_prior, trial_runs
from ctxeval.policy import Policy, parse_policy
from ctxeval.results.store import to_frame
from tests.analysis.many_runs import draw_runs, orders

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "statistics.md"
DOCUMENTS = (8, 16, 24)
CORRELATIONS = (0.0, 0.15, 0.3, 0.5)
#: Needles a document and length: all depths (exact plan), and two that a packed run has.
NEEDLES = (9.0, 4.0, 1.5)
DEPTHS = tuple(100 * step / 8 for step in range(9))
#: Recall and excess loss (nats a token) at the seven lengths; one probe breaks at the fourth, the other at the sixth.
SHARP_RECALL, SHARP_LOSS = (0.95, 0.5), (0.01, 0.15)
GRADUAL_RECALL = (0.95, 0.95, 0.95, 0.6, 0.45, 0.3, 0.2)
GRADUAL_LOSS = (0.01, 0.01, 0.01, 0.015, 0.02, 0.12, 0.2)
FALSE_HOLDS = "recall at its bar, perplexity broken"
ORDERS = ("retrieval first", "perplexity first")
BAR_RECALL, BAR_LOSS = 0.85 * 0.95, float(np.log(1.05))


@dataclass(frozen=True)
class Figure:
    """One figure: `value` (a share, or a width) over `runs` runs, worst of `cases` where there are several.

    `target` is what it has to keep: a share, `at_least` or at most; `None` where it is only told.
    """

    part: str
    what: str
    value: float
    runs: int
    target: float | None = None
    at_least: bool = True
    where: str = ""
    unit: str = "%"

    @property
    def kept(self) -> bool:
        """Whether the target is met, two standard errors of a share at the target being allowed for."""
        if self.target is None:
            return True
        slack = 2 * np.sqrt(self.target * (1 - self.target) / self.runs)
        return bool(self.value >= self.target - slack if self.at_least else self.value <= self.target + slack)

    def line(self) -> str:
        """Return a Markdown row."""
        asked = "" if self.target is None else f"{'≥' if self.at_least else '≤'} {100 * self.target:g} %"
        state = "" if self.target is None else "yes" if self.kept else "**no**"
        value = f"{self.value:.3f}" if self.unit == "nats" else f"{100 * self.value:.1f} {self.unit}"
        return f"| {self.what} | {value} | {asked} | {state} | {self.where} | {self.runs:,} |"


def worst(values: dict[str, float], *, at_least: bool) -> tuple[float, str]:
    """Return the worst of the values, and where it was."""
    where = (min if at_least else max)(values, key=lambda name: values[name])
    return values[where], where


def label(documents: int, correlation: float, needles: float) -> str:
    """Name a setting."""
    return f"{documents} documents, {needles:g} needles each, correlation {correlation:g}"


def cells(seed: Any, mean: Any, correlation: float, needles: float, documents: int, runs: int) -> Batch:
    """Draw one cell in many runs; `mean` is a share, or (runs, 1) of them."""
    generator = np.random.default_rng(seed)
    sizes = np.diff(np.floor(np.arange(documents + 1) * needles + 1e-9)).astype(int)
    shape = (runs, documents)
    if correlation == 0:
        return Batch(generator.binomial(sizes, np.broadcast_to(mean, shape)), sizes)
    width = 1 / correlation - 1
    return Batch(generator.binomial(sizes, generator.beta(mean * width, (1 - mean) * width, size=shape)), sizes)


def recall_coverage(runs: int) -> Iterator[Figure]:
    """95 % intervals of recall: coverage and median width, the correlation pooled over five cells as in a run."""
    part = "Intervals of recall"
    for documents in DOCUMENTS:
        covered: dict[str, float] = {}
        widths: dict[float, list[float]] = {}
        for truth, correlation, needles in product((0.02, 0.1, 0.5, 0.9, 0.98), CORRELATIONS, NEEDLES):
            seed = [documents, round(1000 * truth), round(100 * correlation), round(10 * needles)]
            batches = [cells([*seed, cell], truth, correlation, needles, documents, runs) for cell in range(5)]
            low, high = batches[0].bounds(0.025, pooled_prior(batches))
            where = f"recall {truth:g}, {label(documents, correlation, needles)}"
            covered[where] = float(np.mean((low <= truth) & (truth <= high)))
            if truth == 0.9 and correlation == 0.15:
                widths[needles] = list(high - low)
        value, where = worst(covered, at_least=True)
        yield Figure(
            part, f"coverage at {documents} documents, worst of {len(covered)} settings", value, runs, 0.93, True, where
        )
        mean = float(np.mean(list(covered.values())))
        yield Figure(part, f"coverage at {documents} documents, mean over the settings", mean, runs * len(covered))
        for needles, found in widths.items():
            where = f"recall 0.9, {label(documents, 0.15, needles)}"
            yield Figure(part, "median width", float(np.median(found)), runs, where=where, unit="points")


def extreme_coverage(runs: int) -> Iterator[Figure]:
    """Cells in which every needle was found, or none: the truth is drawn, and looked for in the interval."""
    part = "Cells that are all hits, or have none"
    for documents, correlation in product(DOCUMENTS, (0.0, 0.3)):
        generator = np.random.default_rng([documents, round(100 * correlation)])
        truth = generator.uniform(0.8, 1.0, size=(8 * runs, 1))
        batch = cells([documents, 7], truth, correlation, 9, documents, 8 * runs)
        low, high = batch.bounds(0.025, 0.3)
        full = batch.hits.sum(axis=1) == batch.sizes.sum()
        inside = ((low <= truth[:, 0]) & (truth[:, 0] <= high))[full]
        where = f"recall drawn from 0.8–1, {label(documents, correlation, 9)}; lower bound {low[full].min():.2f}"
        yield Figure(part, "all-hit cells that cover", float(inside.mean()), int(full.sum()), 0.93, True, where)
        batch = Batch(batch.sizes - batch.hits, batch.sizes)
        low, high = batch.bounds(0.025, 0.3)
        inside = ((low <= 1 - truth[:, 0]) & (1 - truth[:, 0] <= high))[full]
        where = f"recall drawn from 0–0.2, {label(documents, correlation, 9)}; upper bound {high[full].max():.2f}"
        yield Figure(part, "no-hit cells that cover", float(inside.mean()), int(full.sum()), 0.93, True, where)


def ratio_coverage(runs: int) -> Iterator[Figure]:
    """95 % intervals of the perplexity ratio, documents of unlike size, normal and heavy-tailed."""
    part = "Intervals of the perplexity ratio"
    for documents, (name, freedom) in product(DOCUMENTS, (("normal", 0), ("t with 4 degrees of freedom", 4))):
        generator = np.random.default_rng([documents, freedom])
        covered, widths = 0, []
        for _ in range(runs):
            tokens = generator.integers(500, 1025, size=documents)
            noise = generator.standard_t(freedom, documents) if freedom else generator.standard_normal(documents)
            _, low, high = mean_bounds(tokens * (0.03 + 0.02 * noise), tokens, 0.025)
            covered += low <= 0.03 <= high
            widths.append(high - low)
        where = f"{documents} documents, spread {name}"
        yield Figure(part, "coverage", covered / runs, runs, 0.93, True, where)
        yield Figure(part, "median width of the log ratio", float(np.median(widths)), runs, where=where, unit="nats")


def policy_of(confidence: float = 0.95) -> Policy:
    """Return a policy whose rules do not matter, for its confidence and its minimum of documents."""
    return parse_policy({"confidence": confidence, "recall": [{"lengths": 4096, "floor": 0.5}]}, "p")


def design_of(needles: float) -> Design:
    """Return a grid of four lengths, the unpatched model at two of them."""
    lengths = (1024, 2048, 3072, 4096)
    return Design(2048, Grid(4096, lengths, DEPTHS), dict.fromkeys(lengths, needles))


def false_passes(runs: int) -> Iterator[Figure]:
    """A model that is exactly at the bar, hence as near to keeping it as one that violates it: how often it passes."""
    part = "The gate passes a model that violates a rule"
    kinds = {
        "recall": lambda floor: Check("", "", 4096, "recall", floor),
        "recall against R": lambda share: Check("", "", 4096, "margin", 0.0, share, "reference"),
        "recall inside the window": lambda share: Check("", "", 2048, "margin", 0.0, share, "same"),
        "blind spot": lambda share: Check("", "", 4096, "blind", 1.05, share, "reference"),
    }
    for (name, make), documents in product(kinds.items(), DOCUMENTS):
        passed = {}
        bars = (0.5, 0.7, 0.8, 0.9, 0.95) if name == "recall" else (0.7, 0.85)
        for bar, correlation, needles in product(bars, CORRELATIONS, NEEDLES):
            check = make(bar)
            assumed = Assumptions(correlation=correlation, reference=0.95)
            truth = bar if name == "recall" else bar * assumed.reference
            recalls = {length: truth if length == check.length else 0.95 for length in (1024, 2048, 3072, 4096)}
            found = trial_runs(policy_of(), [check], design_of(needles), recalls, documents, assumed, runs=runs, seed=1)
            passed[f"bar {bar:g}, {label(documents, correlation, needles)}"] = float(found.mean())
        value, where = worst(passed, at_least=False)
        what = f"{name}, {documents} documents, worst of {len(passed)} settings"
        yield Figure(part, what, value, runs, 0.05, False, where)
    for documents, freedom in product(DOCUMENTS, (0, 4)):
        generator = np.random.default_rng([documents, freedom, 2])
        shape = (runs, documents)
        noise = generator.standard_t(freedom, shape) if freedom else generator.standard_normal(shape)
        passed_runs = [mean_bounds(one, np.ones(documents), 0.025)[2] <= 0 for one in 0.02 * noise]
        where = f"{documents} documents, spread {'t with 4 degrees of freedom' if freedom else 'normal'}"
        yield Figure(part, "perplexity ratio", float(np.mean(passed_runs)), runs, 0.05, False, where)


def courses(first: str, shape: str) -> tuple[Any, Any]:
    """Return recall and excess loss at the lengths: `first` breaks at the fourth, the other at the sixth."""
    early, late = (3, 5) if first == "retrieval first" else (5, 3)
    if shape == "sharp":
        return [SHARP_RECALL[i >= early] for i in range(7)], [SHARP_LOSS[i >= late] for i in range(7)]
    if first == "retrieval first":
        return GRADUAL_RECALL, GRADUAL_LOSS
    return (0.95, 0.95, 0.95, 0.94, 0.93, 0.5, 0.3), (0.01, 0.01, 0.01, 0.12, 0.15, 0.2, 0.3)


def resolved_orders(runs: int) -> Iterator[Figure]:
    """Onsets two steps of the grid apart: how often the order is named, and the wrong one."""
    part = "The order of the onsets, two steps of the grid apart"
    for documents, first, shape in product(DOCUMENTS, ("retrieval first", "perplexity first"), ("sharp", "gradual")):
        reverse = {}
        for needles, correlation in product((9.0, 4.0), (0.0, 0.15, 0.3)):
            right = {}
            for alike in (False, True):
                drawn = draw_runs(
                    [documents, round(100 * correlation), round(needles)],
                    *courses(first, shape),
                    runs=runs,
                    documents=documents,
                    correlation=correlation,
                    needles=needles,
                    alike=alike,
                )
                named = orders(drawn)
                where = label(documents, correlation, needles) + ", alike at all lengths" * alike
                right[where] = named.count(first) / runs
                reverse[where] = sum(one in ORDERS and one != first for one in named) / runs
            value, where = worst(right, at_least=True)
            what = f"{first}, {shape}, {documents} documents: named"
            if documents == 24 or correlation == 0.15:
                yield Figure(part, what, value, runs, 0.8 if documents == 24 else None, True, where)
        value, where = worst(reverse, at_least=False)
        yield Figure(part, f"{first}, {shape}, {documents} documents: the reverse", value, runs, 0.05, False, where)


def wrong_orders(runs: int) -> Iterator[Figure]:
    """Truths in which no probe breaks first: how often one is named all the same."""
    part = "An order is named where there is none"
    truths = {
        "both exactly at their bars": ([0.95] * 2 + [BAR_RECALL] * 5, [0.01] * 2 + [BAR_LOSS] * 5),
        "recall at its bar, perplexity holds": ([0.95] * 2 + [BAR_RECALL] * 5, [0.01] * 7),
        "perplexity at its bar, recall holds": ([0.95] * 7, [0.01] * 2 + [BAR_LOSS] * 5),
        FALSE_HOLDS: ([0.95] * 2 + [BAR_RECALL] * 5, [0.01] * 2 + [0.15] * 5),
        "perplexity at its bar, recall broken": ([0.95] * 2 + [0.5] * 5, [0.01] * 2 + [BAR_LOSS] * 5),
        "both break at the same length": ([0.95] * 3 + [0.5] * 4, [0.01] * 3 + [0.15] * 4),
        "neither breaks": ([0.95] * 7, [0.01] * 7),
    }
    for name, documents in product(truths, DOCUMENTS):
        wrong = {}
        for correlation, needles, alike in product((0.0, 0.15, 0.3), (9.0, 4.0), (False, True)):
            drawn = draw_runs(
                [documents, round(100 * correlation), round(needles), 1],
                *truths[name],
                runs=runs,
                documents=documents,
                correlation=correlation,
                needles=needles,
                alike=alike,
            )
            named = orders(drawn)
            where = label(documents, correlation, needles) + ", alike at all lengths" * alike
            wrong[where] = sum(one in ORDERS for one in named) / runs
        value, where = worst(wrong, at_least=False)
        yield Figure(part, f"{name}, {documents} documents", value, runs, 0.05, False, where)


POLICIES: dict[str, tuple[dict[str, Any], float]] = {
    "recall ≥ 80 % at 4K": ({"recall": [{"lengths": 4096, "floor": 0.8}]}, 9),
    "recall ≥ 80 % from 2K to 4K": ({"recall": [{"lengths": "native..target", "floor": 0.8}]}, 9),
    "recall ≥ 80 % from 2K to 4K, packed": ({"recall": [{"lengths": "native..target", "floor": 0.8}]}, 4),
    "recall ≥ 90 % and ratio ≤ 1.05": (
        {"recall": [{"lengths": 4096, "floor": 0.9}], "perplexity": [{"lengths": 4096, "max_ratio": 1.05}]},
        9,
    ),
    "effective length and no blind spot to 4K": ({"min_effective_length": 4096, "no_blind_spot_up_to": 4096}, 9),
}


def planned(rules: dict[str, Any], needles: float, assumed: Assumptions) -> tuple[Policy, list[Check], Power]:
    """Return what `ctxeval plan` finds for a policy on the grid of four lengths."""
    policy, design = parse_policy(rules, "p"), design_of(needles)
    nothing = to_frame([])
    summary = headline(nothing, native_window=2048, lengths=design.grid.lengths, scalings=("none", "yarn"))
    found = power(policy, Questions(policy, nothing, summary, "yarn", design.grid).all(), design, assumed)
    return policy, [need.check for need in found.needs], found


def checks_of(policy: Policy, questions: Iterable[Question], grid: Grid) -> list[Check]:
    """Return what a plan reads off the questions of a policy."""
    design = Design(2048, grid, dict.fromkeys(grid.lengths, 9.0))
    return [check_of(policy, question, design, Assumptions()) for question in questions]


def planned_passes(runs: int) -> Iterator[Figure]:
    """A model 0.05 above the floor, measured with as many documents as `ctxeval plan` names: how often it passes."""
    part = "Models whose true recall is 0.05 above the floor, at the documents that `ctxeval plan` names"
    assumed = Assumptions()
    for name, (rules, needles) in POLICIES.items():
        policy, checks, found = planned(rules, needles, assumed)
        assert found.documents is not None
        retrieval = [check for check in checks if check.quantity != "ratio"]
        truth: dict[int, float] = {}
        for need in found.needs:
            if need.check.quantity != "ratio":
                truth[need.check.length] = need.truth
        passed = trial_runs(policy, retrieval, design_of(needles), truth, found.documents, assumed, runs=runs, seed=5)
        chance = float(passed.all(axis=1).mean())
        for need in found.needs:
            if need.check.quantity == "ratio" and found.losses:
                chance *= ratio_chance(need.check.bar, need.truth, found.losses, 0.025, assumed.spread)
        where = f"{needles:g} needles a document and length, correlation {assumed.correlation:g}"
        yield Figure(part, f"{name}: {found.documents} documents, passes", chance, runs, 0.8, True, where)


PARTS: tuple[tuple[Callable[[int], Iterator[Figure]], int], ...] = (
    (recall_coverage, 4000),
    (extreme_coverage, 4000),
    (ratio_coverage, 4000),
    (false_passes, 4000),
    (wrong_orders, 2000),
    (resolved_orders, 1000),
    (planned_passes, 4000),
)


METHOD = """\
# How far the statistics can be trusted

`ctxeval` gives intervals, states and verdicts. This page says how they are made, and shows what they do on synthetic
runs whose truth is known: thousands of runs are drawn, judged by the code that judges a real run, and compared with
the truth that they were drawn from. It is written by

    python -m tests.analysis.simulation

(minutes, one process, no model). `make test` runs a small version of each figure, `make test-slow` all of it.

## Method, in plain words

- **Documents are the units.** Needles that share a document find or miss together more often than chance would have it.
  Recall has a Wilson interval, but on the number of independent needles that its rows are worth: rows divided by the
  design effect, which is estimated from the documents and averaged with a prior (correlation 0.3, worth three
  documents), pooled over all cells of a run. The prior is what keeps a cell without any miss from looking certain.
- **Perplexity ratios** have a t interval over documents, on the logarithm, each document compared with itself under
  the unpatched model.
- **Recall against R** (the unpatched model's recall inside its window) uses both intervals and the correlation of their
  documents; a positive correlation, which narrows the result, is believed only as far as the documents go.
- **States** (`holds`, `broken`, `undecided`) are simultaneous over the lengths of a scaling: the chances of a false
  state that could name a wrong order add up to 5 %. Recall holds from the shortest length up, each length that holds
  handing its share of the error rate on to the next.
- **A gate** tests the ends of 95 % intervals, and all checks must pass. So a model that violates a rule passes with a
  chance of at most 5 %; near a recall of 1 with alike documents the Wilson end alone would be beyond the truth more
  often than it says, which is why it is the end of a two-sided interval.
- **A plan** (`ctxeval plan`) draws runs of a model that is better than every bar by a margin, and searches for the
  number of documents at which it passes all checks with a chance of 80 %.

Documents differ in their hit rate (a beta distribution), so that two needles of one correlate by the correlation named:
0 to 0.5; the published runs show 0.04 and 0.12. "9 needles each" is the exact plan with nine depths, 4 and 1.5 are what
packed runs have at their longer and shortest lengths. Where settings are summarised, the worst is shown, and named; a
target counts as kept within two standard errors of the simulation. Names of orders are judged on seven lengths;
one probe breaks at the fourth, the other at the sixth, sharply (recall 0.95 to 0.5, loss + 0.15 nats) or step by step.

"""

MISSES = """\
## What is missed, and why

In a packed run with four needles a length, 24 documents do not always name the order where perplexity breaks first: not
where documents are very much alike (correlation 0.3, more than twice what the published runs show), nor quite where
recall gives way step by step. "Perplexity first" takes a length at which recall credibly *holds*, and 24 documents of 4
alike needles are worth 50 to 66 independent ones. The bounds cannot be loosened for it: where recall is exactly at its
bar and perplexity broken, "perplexity first" is named falsely in up to {false:.1f} % of runs already. Such a run says
`not resolved`, and how far each probe is from its bar; more documents, or the exact plan, resolve it.
"""


def document(figures: list[Figure]) -> str:
    """Return the page: method, the figures by part, and what was missed."""
    lines = [METHOD + "## Figures", ""]
    for part in dict.fromkeys(figure.part for figure in figures):
        lines += [f"### {part}", "", "| Figure | Seen | Asked | Kept | Where | Runs |", "|:--|--:|--:|:--|:--|--:|"]
        lines += [*(figure.line() for figure in figures if figure.part == part), ""]
    if all(figure.kept for figure in figures):
        return "\n".join(lines)
    false = max(figure.value for figure in figures if figure.what.startswith(FALSE_HOLDS))
    return "\n".join(lines) + "\n" + MISSES.format(false=100 * false)


def main() -> None:
    """Print every figure as it is known, and write the page."""
    figures = []
    for part, runs in PARTS:
        for figure in part(runs):
            print(figure.line(), flush=True)
            figures.append(figure)
    DOCUMENT.parent.mkdir(exist_ok=True)
    DOCUMENT.write_text(document(figures), encoding="utf-8")


if __name__ == "__main__":
    main()
