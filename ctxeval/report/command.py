"""The command line that repeats a run, from the spec in its manifest: also where it was run from Python. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

#: Field of the spec → option. What equals the default of the option is left out.
MODEL_OPTIONS = {
    "revision": "--revision",
    "dtype": "--dtype",
    "device": "--device",
    "device_map": "--device-map",
    "attn_implementation": "--attn-implementation",
    "trust_remote_code": "--trust-remote-code",
    "adapter": "--adapter",
}
RUN_OPTIONS = {
    "scales": "--scale",
    "length": "--len",
    "factor": "--factor",
    "native_window": "--native-window",
    "pretrain_window": "--pretrain-window",
    "from_scratch": "--from-scratch",
    "layer_types": "--layer-types",
    "lengths": "--lengths",
    "depths": "--depths",
    "documents": "--docs",
    "perplexity_documents": "--ppl-docs",
    "trials": "--trials",
    "seed": "--seed",
    "corpus": "--corpus",
    "task": "--task",
    "packed": "--packed",
    "needles_per_context": "--needles-per-context",
    "exact_subset": "--exact-subset",
    "chat": "--chat",
    "protocol": "--protocol",
    "stride": "--stride",
    "chunk": "--chunk",
}
_DEFAULTS: Mapping[str, Any] = {
    "dtype": "auto",
    "device": "auto",
    "scales": ["none"],
    "documents": 16,
    "trials": 1,
    "seed": 0,
    "corpus": "sotu",
    "task": "needle",
    "needles_per_context": 10,
    "exact_subset": 12,
    "protocol": "tail",
    "chunk": 1024,
}
_NEEDLE = ("depths", "trials", "task", "packed", "needles_per_context", "exact_subset", "chat")
_PERPLEXITY = ("protocol", "stride")
_PACKED = ("needles_per_context", "exact_subset")
#: Options of scalings that have a flag of their own; the others go through --rope-option.
_FLAGS = ("rope_theta", "attention_factor", "beta_fast", "beta_slow", "truncate")


def command_line(manifest: Mapping[str, Any]) -> str:
    """Return the `ctxeval` command that measures the same again; empty where the manifest has no spec."""
    spec = manifest.get("spec")
    if not isinstance(spec, Mapping) or not isinstance(spec.get("model"), Mapping):
        return ""
    probes = list(spec.get("probes") or ())
    name = {("needle",): "needle", ("perplexity",): "ppl"}.get(tuple(probes), "run")
    foreign = {"needle": (*_PERPLEXITY, "perplexity_documents"), "ppl": (*_NEEDLE, "perplexity_documents")}.get(
        name, ()
    )
    words = ["ctxeval", name, "-m", str(spec["model"].get("name_or_path"))]
    for field, option in MODEL_OPTIONS.items():
        words += _words(option, spec["model"].get(field), _DEFAULTS.get(field))
    for field, option in RUN_OPTIONS.items():
        if field not in foreign and (spec.get("packed") or field not in _PACKED):
            words += _words(option, spec.get(field), _DEFAULTS.get(field))
    return shlex.join([*words, *_scaling_words(spec.get("scaling_options") or {})])


def _scaling_words(options: Mapping[str, Any]) -> list[str]:
    words = []
    for field, value in options.items():
        flag = f"--{field.replace('_', '-')}"
        if isinstance(value, list):  # LongRoPE's: the manifest has them, a command line only the name of a file
            words += [] if "--rope-factors" in words else ["--rope-factors", "FACTORS.json"]
        elif field not in _FLAGS:
            words += ["--rope-option", f"{field}={str(value).lower()}"]
        else:
            words += [f"--no-{flag[2:]}"] if value is False else _words(flag, value, None)
    return words


def _words(option: str, value: Any, default: Any) -> list[str]:
    if value is None or value is False or value in ([], default):
        return []
    if value is True:
        return [option]
    if isinstance(value, list):
        text = ",".join(f"{one!r}" if isinstance(one, float) else str(one) for one in value)
        # A bare count of depths would mean evenly spaced ones.
        return [option, f"{text}," if option == "--depths" and len(value) == 1 else text]
    return [option, str(value)]
