"""Everything about a run that is settled before the weights are loaded: grid, text, prompts, cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ctxeval.engine.agenda import Agenda
from ctxeval.engine.budget import Geometry
from ctxeval.errors import UsageError
from ctxeval.model.adapter import read_adapter
from ctxeval.model.load import read_config, read_tokenizer
from ctxeval.probes.needle import NeedleGrid, NeedleProbe
from ctxeval.probes.perplexity import PerplexityProbe
from ctxeval.probes.task import load_task
from ctxeval.resolve import Resolved, resolve
from ctxeval.rope.windows import Windows, read_windows
from ctxeval.spec import RunSpec
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

    @property
    def longest(self) -> int:
        """The longest context of the run, in tokens."""
        return max(self.resolved.all_lengths)

    def summary(self) -> list[str]:
        """Say what was resolved from defaults, a line each."""
        resolved, windows = self.resolved, self.windows
        scalings = ", ".join(f"{one.label} ×{one.factor:g}" for one in resolved.scalings)
        return [
            f"native window {windows.native:,} ({windows.native_source}), "
            f"pretrain window {windows.pretrain:,} ({windows.pretrain_source})",
            f"scalings {scalings}",
            f"lengths {', '.join(f'{length:,}' for length in resolved.lengths)} tokens, "
            f"{counted(len(resolved.depths), 'depth')}, "
            f"{counted(len(self.agenda.documents), 'document')} of {self.corpus.name}",
        ]


def prepare(spec: RunSpec) -> Prepared:
    """Resolve, read the text and plan; no weights are loaded.

    Raises:
        UsageError: anything wrong with the options, the model's configuration, or the text.
    """
    if spec.model.adapter is not None:
        read_adapter(spec.model.adapter)  # so that a dry run finds what is wrong with it, too
    config = read_config(spec.model)
    windows = read_windows(config, spec.native_window)
    resolved = resolve(spec, windows.native)
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
    return Prepared(spec, resolved, windows, corpus, agenda, read_geometry(config))


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


def read_geometry(config: Any) -> Geometry:
    """Read from a configuration the sizes that the cost depends on, for a decoder with gated MLPs.

    Mixture-of-experts models are counted with all their experts: an upper bound.
    """
    text = config.get_text_config(decoder=True)
    heads = text.num_attention_heads
    kv_heads = getattr(text, "num_key_value_heads", None) or heads
    head_dim = getattr(text, "head_dim", None) or text.hidden_size // heads
    layers, hidden = text.num_hidden_layers, text.hidden_size
    attention = hidden * head_dim * (2 * heads + 2 * kv_heads)
    mlp = 3 * hidden * (getattr(text, "intermediate_size", None) or 4 * hidden)
    dense = layers * (attention + mlp)
    embeddings = text.vocab_size * hidden * (1 if getattr(text, "tie_word_embeddings", False) else 2)
    return Geometry(
        dense_parameters=dense,
        layers=layers,
        query_width=heads * head_dim,
        kv_width=kv_heads * head_dim,
        hidden_size=hidden,
        vocabulary=text.vocab_size,
        weight_bytes=2 * (dense + embeddings),
        bytes_per_value=2,
    )
