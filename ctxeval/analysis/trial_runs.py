"""Synthetic runs of a model with a known recall, many at a time, judged by the bounds that a gate tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctxeval.analysis.formulas import (
    PRIOR_CORRELATION,
    believed_effect,
    design_effect,
    recovered,
    share_quantile,
    shrunk_correlation,
    wilson,
)
from ctxeval.analysis.question import BLIND_RECALL_SHARE, Grid, Quantity
from ctxeval.analysis.stats import POOLING_WEIGHT
from ctxeval.policy import Policy

RUNS = 800
Array = NDArray[Any]


@dataclass(frozen=True)
class Assumptions:
    """What is assumed of the model and its documents.

    `reference` is the unpatched model's true recall inside its window; `correlation` that of two needles of a document;
    `spread` the standard deviation over documents of the log perplexity ratio, in nats a token. The defaults of these
    two lie a little above what the published run of SmolLM2 shows (0.12; 0.016 over YaRN and NTK). `floor` is the share
    of R that effective length and blind spot are held to.
    """

    margin: float = 0.05
    ratio_margin: float = 0.03
    power: float = 0.8
    reference: float = 0.95
    correlation: float = 0.15
    spread: float = 0.02
    floor: float = 0.85


@dataclass(frozen=True)
class Design:
    """What a run would measure: `needles` a document at each length in tokens, `none`'s own lengths among them.

    Fractions are means over documents, as a packed run has them.
    """

    native_window: int
    grid: Grid
    needles: Mapping[int, float]


@dataclass(frozen=True)
class Check:
    """A question of a policy without its evidence.

    A recall is held to `bar`; a margin, or the recall of a blind spot, to `share` of the unpatched model's at the
    same length (`base` "same") or of R ("reference"). `part` is the share of the depths that is asked for.
    """

    name: str
    rule: str
    length: int
    quantity: Quantity
    bar: float
    share: float = 0.0
    base: str = ""
    part: float = 1.0


@dataclass(frozen=True, eq=False)
class Batch:
    """One cell of the grid in many runs: `hits` (runs, documents) of `sizes` (documents,) needles, all of one weight.

    What `ClusterProportion` is for one run.
    """

    hits: Array
    sizes: Array

    @property
    def documents(self) -> int:
        """How many documents have a needle there."""
        return int((self.sizes > 0).sum())

    @property
    def value(self) -> Array:
        """(runs,) share of hits."""
        return np.asarray(self.hits.sum(axis=1) / self.sizes.sum())

    @property
    def residuals(self) -> Array:
        """(runs, documents) contributions to the value, see `ClusterProportion`."""
        return np.asarray((self.hits - self.value[:, None] * self.sizes) / self.sizes.sum())

    @property
    def others(self) -> float:
        """How many rows of its own document a row has beside it, on average."""
        return float(self.sizes.sum()) / self.documents - 1

    def effect(self) -> tuple[Array, Array]:
        """Return (runs,) the design effect seen, and how much that is worth."""
        rows, squares = float(self.sizes.sum()), (self.residuals**2).sum(axis=1)
        return design_effect(self.value, self.hits.sum(axis=1), rows, squares, rows, self.documents)

    def bounds(self, tail: float, prior: Array | float) -> tuple[Array, Array]:
        """Return (runs,) lower and upper bounds, as `ClusterProportion.bounds`."""
        rows = float(self.sizes.sum()) / believed_effect(*self.effect(), self.others, prior)
        return wilson(self.value, rows, share_quantile(tail, self.documents))

    def difference(self, other: Batch, factor: float, tail: float, prior: Array | float) -> tuple[Array, Array]:
        """Return (runs,) bounds of own − factor · other, as `scaled_difference`."""
        scale = np.sqrt((self.residuals**2).sum(axis=1) * (other.residuals**2).sum(axis=1))
        seen = (self.residuals * other.residuals).sum(axis=1) / np.maximum(scale, 1e-12)
        common = int(((self.sizes > 0) & (other.sizes > 0)).sum())
        shared = np.where(scale < 1e-12, 0.0, shrunk_correlation(seen, common))
        bounds = self.bounds(tail, prior), other.bounds(tail, prior)
        return recovered(self.value, bounds[0], other.value, bounds[1], factor, shared)


def pooled_prior(batches: Sequence[Batch]) -> Array | float:
    """Return (runs,) the within-document correlation over all cells, as `pooled_correlation`."""
    weight: Array | float = POOLING_WEIGHT
    total: Array | float = POOLING_WEIGHT * PRIOR_CORRELATION
    for batch in batches:
        if batch.others > 0:
            seen, information = batch.effect()
            weight = weight + information
            total = total + information * np.clip((seen - 1) / batch.others, 0.0, 1.0)
    return total / weight


def trial_runs(
    policy: Policy,
    checks: Sequence[Check],
    design: Design,
    truth: Mapping[int, float],
    documents: int,
    assumed: Assumptions,
    runs: int = RUNS,
    seed: int = 0,
) -> Array:
    """Draw runs, and return (runs, checks) whether each check of recall passes; blind spots pass by recall alone.

    Args:
        policy: says how sure a pass must be, and over how many documents.
        checks: those of the policy that are not of a ratio.
        design: what a document carries.
        truth: recall at each length (tokens) of the scaling that is checked, the same at every depth.
        documents: of each run.
        assumed: the unpatched model's recall, and how alike a document's needles are.
        runs: how many.
        seed: of the draws.
    """
    generator = np.random.default_rng([seed, documents])

    def draw(mean: float, needles: float, rates: Array | None = None) -> tuple[Batch, Array]:
        sizes = np.diff(np.floor(np.arange(documents + 1) * needles + 1e-9)).astype(int)
        known = _rates(generator, mean, assumed.correlation, (runs, documents)) if rates is None else rates
        return Batch(generator.binomial(sizes, known), sizes), known

    own = {length: draw(mean, design.needles[length]) for length, mean in sorted(truth.items())}
    inside = [one for one in sorted(design.needles) if design.native_window / 2 <= one <= design.native_window]
    same = sorted({check.length for check in checks if check.base == "same"})
    base = {length: draw(assumed.reference, design.needles[length])[0] for length in sorted({*inside, *same})}
    # Documents of R are alike at its lengths, too; drawn apart, R is known a little better than it would be.
    sizes = sum((base[length].sizes for length in inside), np.zeros(1))
    reference = Batch(sum((base[length].hits for length in inside), np.zeros(1)), sizes)
    prior = pooled_prior([*(batch for batch, _ in own.values()), *base.values()])
    batches = []
    for check in checks:
        batch, rates = own[check.length]
        batches.append(draw(0.0, check.part * design.needles[check.length], rates)[0] if check.part < 1 else batch)
    return judged(policy, checks, batches, base, reference, prior)


def judged(
    policy: Policy,
    checks: Sequence[Check],
    batches: Sequence[Batch],
    base: Mapping[int, Batch],
    reference: Batch,
    prior: Array | float,
) -> Array:
    """Return (runs, checks) whether each check passes, on the bounds that a gate tests.

    Args:
        policy: see `trial_runs`.
        checks: likewise.
        batches: what each check looks at.
        base: the unpatched model's at each length (tokens) where a check is held to it.
        reference: the unpatched model's inside its window, all lengths together.
        prior: within-document correlation, see `pooled_prior`.
    """
    tail = (1 - policy.confidence) / 2
    passed = []
    for check, batch in zip(checks, batches, strict=True):
        level = BLIND_RECALL_SHARE * tail if check.quantity == "blind" else tail
        if batch.documents < policy.min_documents:
            passed.append(np.zeros(len(batch.hits), dtype=bool))
        elif check.base:
            other = base[check.length] if check.base == "same" else reference
            passed.append(batch.difference(other, check.share, level, prior)[0] >= 0)
        else:
            passed.append(batch.bounds(level, prior)[0] >= check.bar)
    return np.column_stack(passed) if passed else np.ones((len(reference.hits), 0), dtype=bool)


def _rates(generator: np.random.Generator, mean: float, correlation: float, shape: tuple[int, int]) -> Array:
    """Draw hit rates of documents, beta-distributed so that two needles of one correlate by `correlation`."""
    if correlation == 0 or mean in (0, 1):
        return np.full(shape, mean)
    spread = 1 / correlation - 1
    return generator.beta(mean * spread, (1 - mean) * spread, size=shape)
