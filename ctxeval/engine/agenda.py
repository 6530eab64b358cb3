"""What is measured, on which document and in which order. Pure.

Documents are the outer loop and scalings the inner one, so that a run that is stopped early has the same documents for
every scaling, and is already a fair comparison.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil

from ctxeval.engine.plan import Node, Prompt, build_tree, unshared
from ctxeval.probes.measurement import Measurement
from ctxeval.probes.needle import NeedleProbe
from ctxeval.probes.packing import GridCell
from ctxeval.probes.perplexity import BASELINE, PerplexityProbe
from ctxeval.resolve import Resolved
from ctxeval.spec import RunSpec, ScalingSpec
from ctxeval.text.documents import Document


@dataclass(frozen=True, eq=False)
class Unit:
    """Measurements of one scaling on one document that share a prefix tree: the unit of work and of resuming.

    `frozen_length` (tokens) is what the frequencies are frozen at, None where they are the same for every length.
    """

    scaling: ScalingSpec
    document: int
    measurements: tuple[Measurement, ...]
    frozen_length: int | None = None

    @property
    def setting(self) -> str:
        """Name the frequencies that the unit is read under: `yarn`, or `ntk-dynamic@8192`."""
        return self.scaling.label if self.frozen_length is None else f"{self.scaling.label}@{self.frozen_length}"

    def tree(self, *, share: bool) -> tuple[list[Prompt], list[Node], list[tuple[int, int]]]:
        """Return the prompts, their tree, and for each measurement the range of its prompts."""
        prompts: list[Prompt] = []
        ranges = []
        for measurement in self.measurements:
            ranges.append((len(prompts), len(prompts) + len(measurement.prompts)))
            prompts.extend(measurement.prompts)
        return prompts, build_tree(prompts) if share else unshared(prompts), ranges


@dataclass(frozen=True, eq=False)
class Agenda:
    """All units of a run, made lazily: the token ids of every prompt together would not fit into memory."""

    spec: RunSpec
    resolved: Resolved
    documents: Sequence[Document]
    needle: NeedleProbe | None
    perplexity: PerplexityProbe | None

    def units(self) -> Iterator[Unit]:
        """Yield the units in the order of execution; each call yields the same ones."""
        for measurements in self._groups():
            for scaling in self.resolved.with_reference:
                wanted = [one for one in measurements if self._measured(one, scaling)]
                for length, alike in self._by_length(wanted, scaling):
                    yield Unit(scaling, alike[0].columns["document"], tuple(alike), length)

    def _by_length(
        self, wanted: list[Measurement], scaling: ScalingSpec
    ) -> Iterator[tuple[int | None, list[Measurement]]]:
        """Keep apart what is read under other frequencies: a cache must hold keys of one table only."""
        if scaling.method not in self.resolved.varying:
            if wanted:
                yield None, wanted
            return
        for length in sorted({one.length for one in wanted}):
            yield length, [one for one in wanted if one.length == length]

    def _groups(self) -> Iterator[list[Measurement]]:
        counts: Counter[GridCell] = Counter()
        order = spread(len(self.documents))
        with_loss = set(order[: self.resolved.perplexity_documents])
        contexts = len(order) * self.spec.trials
        checked = 0
        for rank in range(contexts):
            trial, document = rank // len(order), self.documents[order[rank % len(order)]]
            if self.perplexity and trial == 0 and document.index in with_loss:
                yield self.perplexity.baseline(document) + self.perplexity.measure(document)
            if not self.needle:
                continue
            if not self.spec.packed:
                yield self.needle.exact(document, trial)
                continue
            packed = self.needle.packed(document, trial, counts)
            yield packed
            wanted = min(ceil(self.spec.exact_subset / contexts), self.spec.exact_subset - checked)
            if wanted > 0:
                subset = self.needle.exact_subset(document, trial, packed, rank, wanted)
                checked += len(subset)
                yield subset

    def _measured(self, measurement: Measurement, scaling: ScalingSpec) -> bool:
        columns = measurement.columns
        length: int = columns["context_length"]
        if columns["control"] == BASELINE:
            return scaling.method == "none"
        return self.resolved.measures(scaling, length)


def spread(count: int) -> list[int]:
    """Order 0 … count-1 so that every beginning of the order is spread over the whole range (van der Corput).

    The corpus is in order of time: a run that stops early, or takes fewer documents for perplexity, must not see the
    oldest ones only.
    """
    bits = max(count - 1, 1).bit_length()
    return sorted(range(count), key=lambda index: int(f"{index:0{bits}b}"[::-1], 2))
