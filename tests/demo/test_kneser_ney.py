"""The n-gram baseline is itself a proper model: it sums to one and beats a shorter context."""

import numpy as np
import pytest

from tests.demo.kneser_ney import KneserNey


@pytest.fixture(scope="module")
def stream() -> np.ndarray:
    """A noisy cycle: the last token tells most of the next."""
    rng = np.random.default_rng(0)
    ids = (3 * np.arange(4000)) % 13
    noise = rng.random(4000) < 0.2
    return np.where(noise, rng.integers(0, 13, 4000), ids)


@pytest.mark.parametrize("order", [1, 2, 3, 5])
@pytest.mark.parametrize("context", [(3, 6, 9, 12), (1, 1, 1, 1), (15, 15, 15, 15)])
def test_probabilities_sum_to_one(stream: np.ndarray, order: int, context: tuple[int, ...]) -> None:
    model = KneserNey(stream, order, vocabulary=16)
    rows = np.array([[*context, token][-order:] for token in range(16)])
    assert model.probabilities(rows).sum() == pytest.approx(1.0)


def test_context_helps(stream: np.ndarray) -> None:
    rows = stream[:3000].reshape(1, -1)
    assert KneserNey(stream, 3, 16).perplexity(rows) < 0.6 * KneserNey(stream, 1, 16).perplexity(rows)


def test_bigram_by_hand() -> None:
    # a b a b a c: P(b | a) = (2 - D)/3 + D * 2/3 * P1(b), D = n1/(n1 + 2 n2) = 1/5 over {ab: 2, ba: 2, ac: 1}
    ids = np.array([0, 1, 0, 1, 0, 2])
    model = KneserNey(ids, 2, vocabulary=3)
    discount = 1 / 5
    # continuation counts are all 1, so D1 = 1: everything goes to the uniform distribution
    expected = (2 - discount) / 3 + discount * 2 / 3 * (1 / 3)
    assert model.probabilities(np.array([[0, 1]]))[0, 0] == pytest.approx(expected)
