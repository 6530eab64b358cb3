"""What a plan costs, before it runs: tokens and FLOPs exactly, bytes and minutes predicted. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ctxeval.engine.plan import Node, Prompt, segments


@dataclass(frozen=True)
class Geometry:
    """The sizes that cost depends on. `dense_parameters` excludes embeddings and the output head."""

    dense_parameters: int
    layers: int
    query_width: int
    kv_width: int
    hidden_size: int
    vocabulary: int
    weight_bytes: int
    bytes_per_value: int

    def dense_flops(self, tokens: int) -> int:
        """FLOPs of all matrix products with weights but the head, two a parameter and token."""
        return 2 * self.dense_parameters * tokens

    def attention_flops(self, start: int, tokens: int) -> int:
        """FLOPs of causal scores and weighted values for `tokens` new tokens after `start` cached ones."""
        pairs = tokens * start + tokens * (tokens + 1) // 2
        return 4 * self.query_width * self.layers * pairs

    def head_flops(self, rows: int) -> int:
        """FLOPs of projecting `rows` hidden states to the vocabulary."""
        return 2 * self.hidden_size * self.vocabulary * rows

    def kv_bytes(self, length: int) -> int:
        """Bytes of the KV cache of `length` tokens."""
        return 2 * self.layers * self.kv_width * length * self.bytes_per_value


@dataclass(frozen=True)
class Cost:
    """Work of a plan: forwarded tokens, and FLOPs by kind, since the kinds run at different speeds."""

    tokens: int = 0
    dense_flops: int = 0
    attention_flops: int = 0
    passes: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.tokens + other.tokens,
            self.dense_flops + other.dense_flops,
            self.attention_flops + other.attention_flops,
            self.passes + other.passes,
        )

    @property
    def flops(self) -> int:
        """All FLOPs."""
        return self.dense_flops + self.attention_flops


def segment_cost(geometry: Geometry, start: int, tokens: int) -> Cost:
    """Return the cost of one forward pass of `tokens` tokens after `start` cached ones, head excluded."""
    return Cost(tokens, geometry.dense_flops(tokens), geometry.attention_flops(start, tokens), 1)


def tree_cost(geometry: Geometry, roots: Sequence[Node], prompts: Sequence[Prompt], chunk: int) -> Cost:
    """Return the cost of executing a prefix tree."""
    total = Cost()
    for root in roots:
        for node in root.walk():
            for start, stop in segments(node.start, node.stop, chunk):
                total += segment_cost(geometry, start, stop - start)
    scored = {index for root in roots for index in root.members}
    rows = sum(prompts[index].score_stop - prompts[index].score_start for index in scored)
    return total + Cost(dense_flops=geometry.head_flops(rows))


@dataclass(frozen=True)
class Speed:
    """Measured speeds: FLOP/s in dense and attention work, and the fixed seconds of a forward pass."""

    dense: float
    attention: float
    per_pass: float

    def seconds(self, cost: Cost) -> float:
        """Predict the seconds that `cost` takes."""
        return cost.dense_flops / self.dense + cost.attention_flops / self.attention + cost.passes * self.per_pass


def total(costs: Iterable[Cost]) -> Cost:
    """Add costs."""
    result = Cost()
    for cost in costs:
        result += cost
    return result


def describe(cost: Cost, geometry: Geometry, longest: int, seconds: float | None = None) -> str:
    """Say in one line what a run will take."""
    needed = geometry.weight_bytes + geometry.kv_bytes(longest)
    parts = [
        f"{cost.tokens:,} tokens to forward",
        f"{cost.flops / 1e12:,.1f} TFLOP",
        f"{geometry.weight_bytes / 2**30:.2f} GiB of weights + {geometry.kv_bytes(longest) / 2**30:.2f} GiB of KV cache"
        f" = {needed / 2**30:.2f} GiB",
    ]
    if seconds is not None:
        parts.append(f"about {duration(seconds)}")
    return ", ".join(parts)


def duration(seconds: float) -> str:
    """Write a time span as `45 s`, `12 min` or `3 h 20 min`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02d} min"
