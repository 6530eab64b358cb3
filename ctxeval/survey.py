"""What a document of a planned run carries and costs, read off a few of its documents before hours are spent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ctxeval.engine.budget import Cost, Geometry, Speed, tree_cost
from ctxeval.errors import UsageError
from ctxeval.prepare import Prepared, prepare
from ctxeval.spec import RunSpec

if TYPE_CHECKING:
    from ctxeval.session import Observer

#: Documents that are looked at.
SAMPLE = 16


@dataclass(frozen=True, eq=False)
class Survey:
    """What the documents looked at carry: `needles` a document at each length in tokens, and the cost of all of them.

    `needle_cost` and `loss_cost` are those of the two probes, all scalings together.
    """

    prepared: Prepared
    documents: int
    needles: Mapping[int, float]
    needle_cost: Cost
    loss_cost: Cost

    def cost(self, documents: int, losses: int) -> Cost:
        """Return about what a run costs: documents with needles, and documents with perplexity."""
        return _times(self.needle_cost, documents / self.documents) + _times(self.loss_cost, losses / self.documents)


def survey(spec: RunSpec) -> Survey:
    """Plan the run on a few documents, and count what they carry and cost. No weights are loaded.

    Raises:
        UsageError: anything that is wrong with the options, the model's configuration, or the text.
    """
    prepared = prepare(replace(spec, documents=SAMPLE, perplexity_documents=SAMPLE))
    rows: Counter[tuple[str, int]] = Counter()
    plan = "packed" if spec.packed else "exact"
    needles = losses = Cost()
    for unit in prepared.agenda.units():
        prompts, roots, _ = unit.tree(share=True)
        cost = tree_cost(prepared.geometry, roots, prompts, spec.chunk)
        if unit.measurements[0].columns["probe"] == "needle":
            needles += cost
        else:
            losses += cost
        rows.update(
            (unit.scaling.label, one.columns["context_length"])
            for one in unit.measurements
            if (one.columns["probe"], one.columns["control"], one.columns["plan"]) == ("needle", "", plan)
        )
    found = {length: max(rows[key] for key in rows if key[1] == length) / SAMPLE for _, length in rows}
    return Survey(prepared, SAMPLE, found, needles, losses)


def too_little_text(spec: RunSpec, documents: int) -> str:
    """Return what is wrong where the corpus has fewer documents than are needed; empty where it has enough."""
    try:
        prepare(replace(spec, documents=documents, perplexity_documents=None))
    except UsageError as error:
        return str(error)
    return ""


def measured_speed(prepared: Prepared, observer: Observer) -> tuple[Speed, Geometry]:
    """Load the weights and time a few passes.

    Raises:
        RunError: the weights cannot be loaded.
    """
    from ctxeval.model.calibrate import calibrate
    from ctxeval.runner import load_session

    session, _ = load_session(prepared, prepared.spec.model, observer)
    return calibrate(session.reader, session.geometry, session.chunk, prepared.longest), session.geometry


def _times(cost: Cost, factor: float) -> Cost:
    return Cost(
        round(cost.tokens * factor),
        round(cost.dense_flops * factor),
        round(cost.attention_flops * factor),
        round(cost.passes * factor),
    )
