"""How a model's prompts may be read: pieces behind a cache, or each prompt whole. Decided by a proof on the very model.

A cache that is ignored, a bias that starts again at every piece, a state that is lost at a branch: all give plausible
numbers and no error. So nothing is concluded from a model's type.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ctxeval.errors import RunError
from ctxeval.model.cache import PreallocatedLayer, new_cache
from ctxeval.model.memory import is_out_of_memory
from ctxeval.model.precise import in_fp32
from ctxeval.model.reader import FP32_TOLERANCE, Reader, deviation, tolerance
from ctxeval.model.source import reason

#: Where configurations keep a length beyond which layers work otherwise: windows, chunks, sparse attention's top-k.
SPANS = ("sliding_window", "attention_chunk_size", "window_size", "attention_window_size", "index_topk", "chunk_size")
#: Tokens of a branch in the proof, and of what is read beyond the longest span.
BRANCH, BEYOND = 48, 96
#: Longer spans are left to the proof in the model's own format: fp32 takes long, and lost states show at any length.
LONGEST_FP32_SPAN = 512
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
    span = _span(model)
    try:
        reading = _proved_to(span, model, longest, chunk)
    except _UNFIT as error:
        raise RunError(
            f"{type(model).__name__} cannot read a prompt in one pass: {reason(error)}",
            "is it a decoder that transformers can run as it is?",
        ) from error
    if reading.whole or tolerance(model) <= FP32_TOLERANCE:
        return reading
    try:
        with in_fp32(model):
            precise = _prove(model, min(span, LONGEST_FP32_SPAN), longest, chunk, FP32_TOLERANCE)
    except _UNFIT:
        return reading  # a kernel without fp32, or weights placed by accelerate: the coarser proof has to do
    return precise if precise.whole else reading


def _proved_to(span: int, model: Any, longest: int, chunk: int) -> Reading:
    """Prove with a trunk beyond `span`; where memory ends before that, with a short one, and say so."""
    try:
        return _prove(model, span, longest, chunk, tolerance(model))
    except _UNFIT as error:
        if not span or not is_out_of_memory(error):
            raise
    reading = _prove(model, 0, longest, chunk, tolerance(model))
    said = f"that a cache changes nothing was proved on {BEYOND + BRANCH} tokens only, not beyond {span}: out of memory"
    return reading if reading.whole else Reading(note=f"{reading.note}; {said}".removeprefix("; "))


def _prove(model: Any, span: int, longest: int, chunk: int, allowed: float) -> Reading:
    branch = max(min(BRANCH, longest // 4), 1)
    length = max(min(span + BEYOND, longest - branch), branch)
    vocabulary = model.get_input_embeddings().weight.shape[0]
    ids = np.random.default_rng(0).integers(0, vocabulary, length + 2 * branch).astype(np.int32)
    trunk, end, detour = ids[:length], ids[length : length + branch], ids[length + branch :]
    _check_causal(model, trunk[:branch], end, detour, allowed)
    behind, alone = _whole(model, np.concatenate([trunk, end]), branch), _whole(model, end, branch)
    try:
        reader = Reader(model, length + branch)
        found = _in_pieces(reader, trunk, end, detour, min(chunk, -(-length // 2)))
    except _UNFIT as error:
        if is_out_of_memory(error):
            raise
        return Reading(True, f"every prompt is read whole: the model takes no cache ({reason(error)})")
    off = max(deviation(found[:-1], behind), deviation(found[-1:], alone))
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


def _check_causal(
    model: Any, head: NDArray[np.int32], end: NDArray[np.int32], other: NDArray[np.int32], allowed: float
) -> None:
    """The same tokens must have the same logits, whatever follows them."""
    one, two = (_whole(model, np.concatenate([head, tail]), len(head) + len(tail)) for tail in (end, other))
    off = deviation(two[None, : len(head)], one[: len(head)])
    if off > allowed:
        raise RunError(
            f"{type(model).__name__} sees later tokens: other text behind a prompt moves its logits by {off:.2g} σ",
            "perplexity and recall need a causal model: is `is_decoder` set in its configuration?",
        )


def _in_pieces(
    reader: Reader, trunk: NDArray[np.int32], end: NDArray[np.int32], detour: NDArray[np.int32], chunk: int
) -> torch.Tensor:
    """Return the logits (4, tokens, vocabulary) of `end`: three times behind the trunk, the last time on its own.

    One token takes another way through recurrent layers, fewer than a convolution is wide a third one: hence the cuts.
    """

    def read(*cuts: int) -> torch.Tensor:
        pieces = np.split(end, [cut for cut in cuts if cut < len(end)])
        return torch.cat([reader.read(piece, range(len(piece))) for piece in pieces]).float()

    for start in range(0, len(trunk), chunk):
        reader.read(trunk[start : start + chunk], [])
    reader.keep()
    reader.read(detour, [])
    found = []
    for cuts in ((), (1, 3), (len(end) // 2,)):
        reader.rewind(len(trunk))
        found.append(read(*cuts))
    reader.restart()
    return torch.stack([*found, read()])


def _copied(model: Any) -> str:
    """Say which kinds of layers are copied."""
    layers = new_cache(model.config.get_text_config(decoder=True), 1).layers
    kinds = Counter(type(layer).__name__ for layer in layers if not isinstance(layer, PreallocatedLayer))
    named = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    return f"cache layers that cannot be cropped are copied where prompts part ({named}, of {len(layers)} layers)"
