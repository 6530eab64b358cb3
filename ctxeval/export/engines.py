"""Which engines there are to export for. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from ctxeval.export.configs import hf, hf_v4
from ctxeval.export.extension import Export, Extension
from ctxeval.export.serving import llama_cpp, sglang, vllm

#: Engine → what it is given; each raises `UsageError`, with the reason, where the engine cannot express the scaling.
ENGINES: Mapping[str, Callable[[Extension], Export]] = MappingProxyType(
    {"hf": hf, "hf-v4": hf_v4, "vllm": vllm, "sglang": sglang, "llama.cpp": llama_cpp}
)
