"""Everything about a run that is settled before the weights are loaded: grid, text, prompts, cost."""

from __future__ import annotations

from dataclasses import dataclass

from ctxeval.engine.agenda import Agenda
from ctxeval.engine.budget import Geometry
from ctxeval.errors import UsageError
from ctxeval.model.geometry import read_geometry
from ctxeval.model.load import read_config, read_tokenizer
from ctxeval.model.positions import check_positions, read_positions
from ctxeval.model.skeleton import skeleton
from ctxeval.probes.needle import NeedleGrid, NeedleProbe
from ctxeval.probes.perplexity import PerplexityProbe
from ctxeval.probes.task import load_task
from ctxeval.resolve import Resolved, resolve
from ctxeval.rope.sites import has_sites
from ctxeval.rope.windows import Windows, read_windows
from ctxeval.spec import RunSpec
from ctxeval.text.assemble import Frame
from ctxeval.text.corpus import Corpus, load_corpus
from ctxeval.text.documents import cut_documents


@dataclass(frozen=True, eq=False)
class Prepared:
    """Everything that is known before the weights are loaded."""

    spec: RunSpec
    resolved: Resolved
    windows: Windows
    corpus: Corpus
    agenda: Agenda
    geometry: Geometry
    positions: str | None = None

    @property
    def longest(self) -> int:
        """The longest context of the run, in tokens."""
        return max(self.resolved.all_lengths)

    def summary(self) -> list[str]:
        """Say what was resolved from defaults, a line each."""
        resolved, windows = self.resolved, self.windows
        scalings = ", ".join(f"{one.label} ×{one.factor:g}" for one in resolved.scalings)
        plain = [f"positions: {self.positions}"] if self.positions else []
        return [
            *plain,
            f"native window {windows.native:,} ({windows.native_source}), "
            f"pretrain window {windows.pretrain:,} ({windows.pretrain_source})",
            f"scalings {scalings}",
            f"lengths {', '.join(f'{length:,}' for length in resolved.lengths)} tokens, {len(resolved.depths)} depths, "
            f"{len(self.agenda.documents)} documents of {self.corpus.name}",
        ]


def prepare(spec: RunSpec) -> Prepared:
    """Resolve, read the text and plan; no weights are loaded.

    Raises:
        UsageError: anything wrong with the options, the model's configuration, or the text.
    """
    config = read_config(spec.model)
    model = skeleton(spec.model, config)
    without_rope = None if model is None or has_sites(model) else model
    if without_rope is not None:
        check_positions(without_rope, spec.scales, longest=0)
    windows = read_windows(config, spec.native_window)
    resolved = resolve(spec, windows.native)
    if without_rope is not None:
        check_positions(without_rope, spec.scales, max(resolved.all_lengths))
    positions = None if without_rope is None else read_positions(without_rope).text
    tokenizer = read_tokenizer(spec.model)
    corpus = load_corpus(spec.corpus)
    documents = cut_documents(corpus, tokenizer, count=spec.documents, length=max(resolved.all_lengths), seed=spec.seed)
    needle = perplexity = None
    if "needle" in spec.probes:
        grid = NeedleGrid(
            resolved.all_lengths, resolved.depths, windows.native, spec.seed, spec.trials, spec.needles_per_context
        )
        needle = NeedleProbe(load_task(spec.task), Frame(tokenizer, chat=spec.chat), grid)
        _check_room(needle, resolved)
    if "perplexity" in spec.probes:
        perplexity = PerplexityProbe(Frame(tokenizer), resolved.all_lengths, windows.native, spec.protocol, spec.stride)
    agenda = Agenda(spec, resolved, documents, needle, perplexity)
    return Prepared(spec, resolved, windows, corpus, agenda, read_geometry(config, model), positions)


def _check_room(needle: NeedleProbe, resolved: Resolved) -> None:
    """Refuse a grid whose shortest context cannot hold a needle."""
    shortest, rule = min(resolved.all_lengths), needle.rule
    if rule.fits(shortest):
        return
    why = f"they need {rule.lead_in + rule.reserve + rule.prefix} tokens"
    raise UsageError(
        f"a context of {shortest} tokens has no room for lead-in, needle, question and answer",
        f"{why}: raise --lengths"
        if shortest in resolved.lengths
        else f"{why}, and half the native window is always measured: this model's is too short for {needle.task.name}",
    )
