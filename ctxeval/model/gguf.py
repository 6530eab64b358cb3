"""What transformers does not tell about a GGUF file: its quantisation, and RoPE scaling that it would drop."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from ctxeval.errors import UsageError

#: Tensors that hold per-pair frequency factors (Llama 3.1, LongRoPE).
ROPE_TENSORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")


def read_metadata(path: Path) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Read the metadata and tensor names of a GGUF file, in milliseconds: neither vocabulary nor weights.

    Raises:
        UsageError: damaged, or of an unknown version.
    """
    import struct

    from transformers.integrations.gguf.reader import read_gguf_metadata

    try:
        return read_gguf_metadata(str(path))
    # IndexError, struct.error: the file ends inside its header.
    except (OSError, ValueError, KeyError, IndexError, struct.error) as error:
        raise UsageError(f"GGUF file {str(path)!r} is damaged: {error}", "fetch it again") from error


@contextmanager
def no_gguf_bar() -> Iterator[None]:
    """Hide the dequantisation bar, which transformers draws with tqdm's own class and so without its own switch."""
    loader: Any = import_module("transformers.modeling_gguf_pytorch_utils")
    bar = getattr(loader, "tqdm", None)
    if bar is None:  # not in this version: nothing to hide
        yield
        return
    loader.tqdm = partial(bar, disable=True)
    try:
        yield
    finally:
        loader.tqdm = bar


def quantization(path: Path) -> str:
    """Name the quantisation as the file states it, for example `GGUF Q4_1, dequantised`."""
    from gguf import LlamaFileType

    stated = read_metadata(path)[0].get("general.file_type")
    known = {int(kind): kind.name for kind in LlamaFileType}
    name = known.get(int(stated), f"type {stated}") if stated is not None else "of unstated type"
    return f"GGUF {name.removeprefix('MOSTLY_').removeprefix('ALL_')}, dequantised"


def check_rope(path: Path) -> None:
    """Refuse a file with RoPE scaling of its own, which transformers 5.24 loads as plain RoPE without a word.

    Raises:
        UsageError: `*.rope.scaling.*` metadata or frequency tensors; gpt-oss, whose scaling is read, excepted.
    """
    metadata, tensors = read_metadata(path)
    architecture = metadata.get("general.architecture", "")
    scaling = metadata.get(f"{architecture}.rope.scaling.type", "none")
    dropped = [name for name in ROPE_TENSORS if name in tensors]
    if scaling != "none" and architecture != "gpt-oss":
        dropped.append(f"rope.scaling.type = {scaling}")
    if dropped:
        raise UsageError(
            f"GGUF file {str(path)!r} carries RoPE scaling ({', '.join(dropped)}) that transformers does not read",
            "its frequencies would be wrong: use the model's safetensors files",
        )
