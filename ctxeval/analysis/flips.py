"""Many sign-flip tests on the same documents, with p-values that hold for all of them together."""

from __future__ import annotations

import numpy as np

from ctxeval.analysis.stats import EXACT_SIGN_FLIPS, SAMPLED_SIGN_FLIPS, Array


def sign_flip_family(differences: Array, seed: int = 0) -> tuple[Array, Array]:
    """Return the p-values of paired differences under random signs of whole documents: (tests,) raw and adjusted.

    Each test's statistic is |Σ d| / ‖d‖, which under sign-flips orders the patterns as t does. The adjusted p-value is
    the chance that any test of the table is as extreme: the single-step max-T of Westfall and Young (1993), which keeps
    the chance of one false claim in the whole table at its level, as Holm's correction does. Holm's multiplies the
    smallest p-value by the number of tests: with 8 documents, whose smallest is 2 / 256, a table of 7 tests could never
    show anything. This one knows that the tests share their documents. With one pair a document, ±1 or 0, the raw
    p-value is that of McNemar's exact test.

    Args:
        differences: (documents, tests); 0 where a test lacks a document.
        seed: of the 20,000 patterns that are drawn where there are more than 14 documents; else all are counted.
    """
    size = np.sqrt((differences**2).sum(axis=0))
    scaled = differences / np.where(size > 0, size, 1.0)
    scaled = scaled[np.any(scaled != 0, axis=1)]
    observed = np.abs(scaled.sum(axis=0)) - 1e-12
    exact = len(scaled) <= EXACT_SIGN_FLIPS
    flipped = np.abs(_signs(len(scaled), exact, seed) @ scaled)
    raw, adjusted = flipped >= observed, flipped.max(axis=1, initial=0.0)[:, None] >= observed
    if exact:
        return raw.mean(axis=0), adjusted.mean(axis=0)
    return (raw.sum(axis=0) + 1) / (len(raw) + 1), (adjusted.sum(axis=0) + 1) / (len(raw) + 1)


def _signs(documents: int, exact: bool, seed: int) -> Array:
    """Return sign patterns (patterns, documents); the first sign stays, since the tests are two-sided."""
    if not exact:
        return np.random.default_rng(seed).choice((-1.0, 1.0), size=(SAMPLED_SIGN_FLIPS, documents))
    patterns = np.arange(2 ** max(documents - 1, 0))[:, None] << 1
    return np.asarray(1.0 - 2.0 * ((patterns >> np.arange(documents)) & 1), dtype=np.float64)
