"""An interpolated Kneser-Ney n-gram model: the bar that the demo model's perplexity has to clear.

Chen and Goodman 1999, "An empirical study of smoothing techniques for language modeling", with one
absolute discount an order, D = n1 / (n1 + 2 n2). The highest order counts occurrences; a lower order
counts in how many different left contexts an n-gram was seen.
"""

import math
from dataclasses import dataclass

import numpy as np

BITS = 10  # a token id; five of them fit into an int64


@dataclass(frozen=True)
class Order:
    """Counts of one order, with sorted codes so that a look-up is a binary search."""

    grams: np.ndarray
    counts: np.ndarray
    contexts: np.ndarray
    totals: np.ndarray  # sum of counts after a context
    types: np.ndarray  # number of different tokens after a context
    discount: float


def codes(ids: np.ndarray, order: int) -> np.ndarray:
    """One integer for each n-gram along the last axis, first token in the highest bits."""
    size = ids.shape[-1] - order + 1
    result = np.zeros((*ids.shape[:-1], size), dtype=np.int64)
    for i in range(order):
        result = (result << BITS) | ids[..., i : i + size]
    return result


def make_order(grams: np.ndarray, counts: np.ndarray) -> Order:
    """What the sorted distinct n-grams of one order and their counts say about their contexts."""
    contexts, begin, types = np.unique(grams >> BITS, return_index=True, return_counts=True)
    n1, n2 = (counts == 1).sum(), (counts == 2).sum()
    discount = n1 / (n1 + 2 * n2) if n1 else 0.0  # every token seen often: nothing to discount
    return Order(grams, counts, contexts, np.add.reduceat(counts, begin), types, discount)


def look_up(keys: np.ndarray, values: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The value of each wanted key, 0 where there is none."""
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[place] == wanted, values[place], 0)


class KneserNey:
    """Trained on one stream of token ids."""

    def __init__(self, ids: np.ndarray, order: int = 5, vocabulary: int = 1024) -> None:
        assert vocabulary <= 1 << BITS and order * BITS < 64
        self.vocabulary = vocabulary
        grams, counts = np.unique(codes(ids, order), return_counts=True)
        self.orders = [make_order(grams, counts)]  # highest first
        for size in range(order - 1, 0, -1):
            grams, counts = np.unique(grams & ((1 << (BITS * size)) - 1), return_counts=True)
            self.orders.append(make_order(grams, counts))

    def probabilities(self, rows: np.ndarray) -> np.ndarray:
        """Of the tokens order - 1 .. of each row, each given the order - 1 tokens before it."""
        full = codes(rows, len(self.orders))
        result = np.full(full.shape, 1.0 / self.vocabulary)
        for size, order in enumerate(reversed(self.orders), start=1):
            gram = full & ((1 << (BITS * size)) - 1)
            total = look_up(order.contexts, order.totals, gram >> BITS)
            types = look_up(order.contexts, order.types, gram >> BITS)
            count = look_up(order.grams, order.counts, gram)
            kept, freed = np.maximum(count - order.discount, 0.0), order.discount * types
            result = np.where(total > 0, (kept + freed * result) / np.maximum(total, 1), result)
        return result

    def perplexity(self, rows: np.ndarray) -> float:
        """Over the tokens order - 1 .. of each row."""
        return math.exp(-np.log(self.probabilities(rows)).mean())
