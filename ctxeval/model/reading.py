"""How a model's prompts may be read: pieces behind a cache, or each prompt whole. Decided by a proof on the very model.

A cache that is ignored, a bias that starts again at every piece, a state that is lost at a branch: all give plausible
numbers and no error. So nothing is concluded from a model's type.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ctxeval.errors import RunError
from ctxeval.model.cache import PreallocatedLayer, new_cache
from ctxeval.model.precise import in_fp32
from ctxeval.model.reader import FP32_TOLERANCE, Reader, deviation, tolerance
from ctxeval.model.source import reason

#: Where configurations keep a length beyond which layers work otherwise: windows, chunks, sparse attention's top-k.
SPANS = ("sliding_window", "attention_chunk_size", "window_size", "attention_window_size", "index_topk", "chunk_size")
#: Tokens of a branch in the proof, and of what is read beyond the longest span.
BRANCH, BEYOND = 48, 96
#: What modelling code raises on a cache that it was not made for.
_UNFIT = (TypeError, ValueError, RuntimeError, NotImplementedError, IndexError, KeyError, AttributeError)


@dataclass(frozen=True)
class Reading:
    """How prompts are read: `whole` means one forward pass a prompt, without a cache.

    `note` says what is not as usual, and why, for the cost line and the manifest; "" where every shared prefix is read
    once and the cache is cropped on the way back.
    """

    whole: bool = False
    note: str = ""


def choose_reading(model: Any, longest: int, chunk: int) -> Reading:
    """Read random tokens whole, and in pieces with the cache, with branches and returns, as a run does.

    Args:
        model: as loaded, on its stock attention.
        longest: tokens of the longest context that will be read.
        chunk: tokens of the largest piece.

    Returns:
        Pieces with a cache where that gives the whole pass's logits, whole sequences otherwise.

    Raises:
        RunError: the model cannot be read at all, its logits are not finite, or it sees later tokens.
    """
    try:
        reading = _prove(model, longest, chunk, tolerance(model))
    except _UNFIT as error:
        raise RunError(
            f"{type(model).__name__} cannot read a prompt in one pass: {reason(error)}",
            "is it a decoder that transformers can run as it is?",
        ) from error
    if reading.whole or tolerance(model) <= FP32_TOLERANCE:
        return reading
    try:
        with in_fp32(model):
            return _prove(model, longest, chunk, FP32_TOLERANCE)
    except _UNFIT:
        return reading  # a kernel without fp32, or weights placed by accelerate: the coarser proof has to do


def _prove(model: Any, longest: int, chunk: int, allowed: float) -> Reading:
    branch = max(min(BRANCH, longest // 4), 1)
    trunk = max(min(_span(model) + BEYOND, longest - branch), 1)
    vocabulary = model.get_input_embeddings().weight.shape[0]
    ids = np.random.default_rng(0).integers(0, vocabulary, trunk + 2 * branch).astype(np.int32)
    common, ends = ids[:trunk], (ids[trunk : trunk + branch], ids[trunk + branch :])
    expected = [_whole(model, np.concatenate([common, end]), 2 * branch) for end in ends]
    _check_causal(model, expected[0][:-branch], expected[1][:-branch], allowed)
    try:
        reader = Reader(model, trunk + branch)
        found = _in_pieces(reader, common, ends, min(chunk, -(-trunk // 2)))
    except _UNFIT as error:
        return Reading(True, f"every prompt is read whole: the model takes no cache ({reason(error)})")
    wanted = torch.stack([expected[index][-branch:] for index, _ in found])
    off = deviation(torch.stack([logits for _, logits in found]), wanted)
    if not off <= allowed:  # NaN too
        return Reading(
            True, f"every prompt is read whole: in pieces behind a cache, this model's logits are off by {off:.2g} σ"
        )
    return Reading() if reader.can_rewind else Reading(note=_copied(model))


def _span(model: Any) -> int:
    """Return the longest length in tokens at which a layer begins to work otherwise; 0 where there is none."""
    config = model.config.get_text_config(decoder=True)
    return max((value for name in SPANS if isinstance(value := getattr(config, name, None), int)), default=0)


def _whole(model: Any, ids: NDArray[np.int32], last: int) -> torch.Tensor:
    """Return the logits (last, vocabulary) in fp32 of the last tokens of `ids`, read in one pass without a cache."""
    reader = Reader(model, len(ids), whole=True)
    logits = reader.read(ids, range(max(len(ids) - last, 0), len(ids))).float()
    if not bool(torch.isfinite(logits).all()):
        raise RunError("the model's logits are not finite on a short prompt", "are its weights and dtype intact?")
    return logits


def _check_causal(model: Any, one: torch.Tensor, other: torch.Tensor, allowed: float) -> None:
    """The same tokens, followed by different ones, must have the same logits."""
    off = deviation(other[None], one[None])
    if off > allowed:
        raise RunError(
            f"{type(model).__name__} sees later tokens: other text behind a prompt moves its logits by {off:.2g} σ",
            "perplexity and recall need a causal model: is `is_decoder` set in its configuration?",
        )


def _in_pieces(
    reader: Reader, trunk: NDArray[np.int32], ends: Sequence[NDArray[np.int32]], chunk: int
) -> list[tuple[int, torch.Tensor]]:
    """Read the trunk and its two ends in several ways; return (index of the end, its logits in fp32) of each."""
    found = []

    def read(index: int, *cuts: int) -> None:
        pieces = np.split(ends[index], [cut for cut in cuts if cut < len(ends[index])])
        found.append((index, torch.cat([reader.read(piece, range(len(piece))) for piece in pieces]).float()))

    for again in (False, True):
        reader.restart()
        for start in range(0, len(trunk), chunk):
            reader.read(trunk[start : start + chunk], [])
        if again:
            read(1)
            continue
        reader.keep()
        read(0)
        reader.rewind(len(trunk))
        # One token takes another way through recurrent layers, fewer than a convolution is wide a third one.
        read(1, 1, 3)
        reader.rewind(len(trunk))
        read(0, len(ends[0]) // 2)
    return found


def _copied(model: Any) -> str:
    """Say which kinds of layers are copied."""
    layers = new_cache(model.config.get_text_config(decoder=True), 1).layers
    kinds = Counter(type(layer).__name__ for layer in layers if not isinstance(layer, PreallocatedLayer))
    named = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    return f"cache layers that cannot be cropped are copied where prompts part ({named}, of {len(layers)} layers)"
