"""What transformers does not tell about a GGUF file: its metadata as they are, and its quantisation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from ctxeval.errors import UsageError


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
