"""Where a model runs and in which number format."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ctxeval.errors import UsageError, unknown
from ctxeval.spec import DTYPES, ModelSpec
from ctxeval.wording import counted

if TYPE_CHECKING:
    import torch

    from ctxeval.model.load import LanguageModel

DTYPE_ALIASES = {
    "float32": "fp32",
    "float": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
}


class Dtype(NamedTuple):
    """A number format, and why it was chosen (empty where the user chose it)."""

    name: str
    dtype: torch.dtype
    why: str


def choose_device(spec: ModelSpec) -> str:
    """Return the torch device: the one asked for, or the first of cuda, mps, cpu that is there.

    Raises:
        UsageError: an unknown device or one that is not there, or both a device and a device map.
    """
    import torch

    wanted = spec.device
    if spec.device_map is not None:
        if wanted != "auto":
            raise UsageError(f"both --device {wanted} and --device-map {spec.device_map}", "give one of them")
        return "cuda" if torch.cuda.is_available() else "cpu"
    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    kind, _, index = wanted.partition(":")
    if kind not in ("cpu", "cuda", "mps") or (index and not (kind == "cuda" and index.isdecimal())):
        raise unknown("device", wanted, ("auto", "cpu", "cuda", "cuda:0", "mps"))
    if kind == "cuda" and not torch.cuda.is_available():
        raise UsageError(
            f"--device {wanted}: torch {torch.__version__} sees no CUDA device", "use --device cpu or auto"
        )
    if index and int(index) >= (there := torch.cuda.device_count()):
        raise UsageError(f"--device {wanted}: torch sees {counted(there, 'CUDA device')}", "they count from 0")
    if kind == "mps" and not torch.backends.mps.is_available():
        raise UsageError(f"--device {wanted}: torch {torch.__version__} sees no MPS device", "use --device cpu or auto")
    return wanted


def choose_dtype(spec: ModelSpec, device: str) -> Dtype:
    """Return the number format: the one asked for, or bf16 where the device is faster in it, else fp32.

    Raises:
        UsageError: an unknown format.
    """
    import torch

    formats = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    wanted = DTYPE_ALIASES.get(spec.dtype, spec.dtype)
    if wanted in formats:
        return Dtype(wanted, formats[wanted], "")
    if wanted != "auto":
        raise unknown("dtype", spec.dtype, (*DTYPES, *DTYPE_ALIASES))
    name, why = _fastest(device)
    return Dtype(name, formats[name], f"{device} {why}")


def _fastest(device: str) -> tuple[str, str]:
    """Return the faster of bf16 and fp32 on a device, and why it is."""
    import torch

    if device.startswith("cuda"):
        # Emulated bf16 (before Ampere) is slower than fp32 and no more precise.
        able = torch.cuda.is_bf16_supported(including_emulation=False)
        return ("bf16", "has bf16 arithmetic") if able else ("fp32", "has no bf16 arithmetic")
    if device == "cpu":
        # AVX512-BF16 alone is no gain: torch 2.13 then reaches 153 GFLOP/s in a linear layer (322 in fp32) and 122 in
        # flash attention (211 in fp32).
        if describe_processor()["amx_bf16"]:
            return "bf16", "has AMX-BF16 matrix units"
        return "fp32", "has no AMX-BF16 matrix units: bf16 would be slower"
    return "fp32", "has no bf16 arithmetic"


def describe_processor() -> dict[str, Any]:
    """Return what decides the speed, and the last bits, of arithmetic on this CPU."""
    import torch

    return {
        "vector": torch.backends.cpu.get_cpu_capability(),
        "amx_bf16": bool(torch.cpu.get_capabilities().get("amx_bf16", False)),
    }


#: Below this many parameters a matrix product is over before a second thread has woken up; on a busy machine the wait
#: for it is a hundred times the work.
SMALL_MODEL = 30_000_000


def choose_threads(loaded: LanguageModel) -> None:
    """Run small models on one CPU thread.

    The rule depends on the model alone, so that a resumed run adds in the same order.
    """
    import torch

    if loaded.device == "cpu" and loaded.n_parameters < SMALL_MODEL:
        torch.set_num_threads(1)
