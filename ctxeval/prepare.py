"""Everything about a run that is settled before the weights are loaded: grid, text, prompts, cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ctxeval.engine.agenda import Agenda
from ctxeval.engine.budget import Geometry
from ctxeval.errors import UsageError
from ctxeval.model.adapter import read_adapter
from ctxeval.model.geometry import read_geometry
from ctxeval.model.load import read_config, read_tokenizer
from ctxeval.model.positions import check_positions, read_positions
from ctxeval.model.skeleton import skeleton
from ctxeval.probes.needle import NeedleGrid, NeedleProbe
from ctxeval.probes.perplexity import PerplexityProbe
from ctxeval.probes.task import load_task
from ctxeval.resolve import Resolved, resolve
from ctxeval.rope.factors import NAMES, with_factors
from ctxeval.rope.sites import find_sites, has_sites
from ctxeval.rope.windows import Windows, check_pretrain_window, checkpoint_scaling, native_varies, read_windows
from ctxeval.spec import RunSpec, ScalingSpec
from ctxeval.text.assemble import Frame
from ctxeval.text.corpus import Corpus, load_corpus
from ctxeval.text.documents import cut_documents
from ctxeval.wording import counted


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
    checkpoint_scaling: str = ""

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
            *self._starting_point(),
            f"lengths {', '.join(f'{length:,}' for length in resolved.lengths)} tokens, "
            f"{counted(len(resolved.depths), 'depth')}, "
            f"{counted(len(self.agenda.documents), 'document')} of {self.corpus.name}",
        ]

    def base(self) -> dict[str, Any]:
        """Return what the manifest says of the windows and of what the scalings start from."""
        return {
            "native_window": self.windows.native,
            "native_window_source": self.windows.native_source,
            "pretrain_window": self.windows.pretrain,
            "pretrain_window_source": self.windows.pretrain_source,
            "checkpoint_scaling": self.checkpoint_scaling,
            "from_scratch": self.spec.from_scratch,
            "frozen_at_each_length": sorted(one.label for one in self._frozen()),
        }

    def _frozen(self) -> list[ScalingSpec]:
        return [one for one in self.resolved.with_reference if one.method in self.resolved.varying]

    def _starting_point(self) -> list[str]:
        """Say what the scalings start from where there is a choice, and which are frozen at each length."""
        lines = []
        stretched = [one.label for one in self.resolved.scalings if one.method != "none"]
        own = self.checkpoint_scaling
        if stretched and self.spec.from_scratch:
            instead = f", in place of the checkpoint's {own}" if own else ""
            window = f"L = pretrain window {self.resolved.pretrain_window:,}"
            lines.append(f"{', '.join(stretched)}: from scratch, on plain RoPE{instead}; {window}")
        elif stretched and own:
            window = f"L = native window {self.resolved.native_window:,}"
            lines.append(
                f"{', '.join(stretched)}: on top of the checkpoint's {own} frequencies and temperature; {window}"
            )
        if frozen := self._frozen():
            lines.append(f"{', '.join(one.label for one in frozen)}: frequencies frozen at each context length")
        return lines


def prepare(spec: RunSpec) -> Prepared:
    """Resolve, read the text and plan; no weights are loaded.

    Raises:
        UsageError: anything wrong with the options, the model's configuration, or the text.
    """
    if spec.model.adapter is not None:
        read_adapter(spec.model.adapter)  # so that a dry run finds what is wrong with it, too
    config = read_config(spec.model)
    model = skeleton(spec.model, config)
    without_rope = None if model is None or has_sites(model) else model
    if without_rope is not None:
        check_positions(without_rope, spec.scales, longest=0)
    elif model is not None:
        find_sites(model, spec.layer_types)
    windows, scaling, resolved = resolve_scalings(spec, config)
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
    geometry = read_geometry(config, model)
    return Prepared(spec, resolved, windows, corpus, agenda, geometry, positions, scaling)


def resolve_scalings(spec: RunSpec, config: Any) -> tuple[Windows, str, Resolved]:
    """Read a model's windows and the scaling it already has ("" for none), and resolve the grid and the scalings.

    Raises:
        UsageError: what is asked for cannot be done to such a model.
    """
    windows = read_windows(config, spec.native_window, spec.pretrain_window)
    scaling = checkpoint_scaling(config)
    if spec.from_scratch and spec.pretrain_window is None:
        check_pretrain_window(windows, scaling)
    resolved = resolve(
        spec,
        windows.native,
        windows.pretrain,
        native_varies=native_varies(config),
        factors=_factors(spec, config),
    )
    return windows, scaling, resolved


def _factors(spec: RunSpec, config: Any) -> dict[str, Any]:
    """Return the LongRoPE factors for this run: as given, or the checkpoint's own; {} where none are asked for."""
    if "longrope" not in spec.scales:
        return {}
    found = with_factors("longrope", spec.scaling_options, config, from_scratch=spec.from_scratch)
    return {name: found[name] for name in NAMES if name in found}


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
