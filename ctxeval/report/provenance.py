"""What was measured with what: everything that a second measurement would need, from the manifest. Pure.

A manifest may be of another version, or edited: what is not there, or is not what it should be, is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ctxeval.analysis.onset import length_label
from ctxeval.report.text import one_line


def facts(manifest: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return (name, value) pairs: model, quantisation, windows, text, task, grid, protocol, versions, times."""
    model, who, spec = (_object(manifest.get(key)) for key in ("model", "identity", "spec"))
    resolved, corpus, task = (_object(part) for part in (manifest.get("resolved"), who.get("corpus"), who.get("task")))
    parameters = model.get("n_parameters")
    needles = spec.get("needles_per_context") if spec.get("packed") else None
    found = [
        ("model", _line(model.get("name"), model.get("kind"))),
        ("revision", _line(model.get("revision"))),
        ("quantisation", _line(model.get("quantization") or "none")),
        ("adapter", _line(model.get("adapter"))),
        ("parameters", f"{parameters / 1e6:,.1f} M" if isinstance(parameters, (int, float)) else ""),
        ("fingerprint", _line(model.get("fingerprint"))),
        ("arithmetic", _line(manifest.get("dtype"), _named("head in", model.get("head")))),
        ("device", _line(manifest.get("device"), _named("attention", manifest.get("attention")))),
        ("native window", _window(resolved, "native_window")),
        ("pre-trained window", _window(resolved, "pretrain_window")),
        ("corpus", _line(corpus.get("name"), _named("sha256", corpus.get("sha256")))),
        ("task", _line(task.get("name"), _named("sha256", task.get("sha256")))),
        ("documents", _line(resolved.get("documents"), _named("for perplexity", resolved.get("perplexity_documents")))),
        ("trials a document", _line(spec.get("trials"))),
        ("seed", _line(spec.get("seed"))),
        ("lengths", ", ".join(f"{length:,}" for length in _numbers(resolved.get("lengths")))),
        ("depths", ", ".join(f"{depth:g} %" for depth in _numbers(resolved.get("depths")))),
        ("plan", _line(resolved.get("plan"), _named("needles a context", needles))),
        ("perplexity", _line(resolved.get("protocol"), _named("stride", spec.get("stride")))),
        ("chunk", _line(spec.get("chunk"))),
        ("versions", ", ".join(f"{key} {value}" for key, value in _object(manifest.get("versions")).items())),
        ("platform", _line(manifest.get("platform"))),
        ("commit", _line(manifest.get("git_commit"))),
        ("started", _line(manifest.get("started"))),
        ("finished", _line(manifest.get("finished") or "not yet")),
        ("tokens read", _tokens(manifest)),
    ]
    return [(name, one_line(value)) for name, value in found if value]


PROOF_HEADER = ("Scaling", "Factor", "Largest error", "Tolerance", "Attention factor", "Logits moved by", "Frequencies")


def proofs(manifest: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return a line a scaling, as in `PROOF_HEADER`: what the model emitted, compared with what was asked for."""
    keys = ("factor", "max_error", "tolerance", "attention_factor", "logits_change", "frequencies_sha256")
    lines = []
    for label, proof in _object(manifest.get("proofs")).items():
        values = (_object(proof).get(key) for key in keys)
        lines.append((one_line(label), *(_value(value) for value in values)))
    return lines


def _value(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, (int, float)) else one_line(str(value)) if value is not None else "–"


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _numbers(value: Any) -> list[float]:
    return [one for one in value if isinstance(one, (int, float))] if isinstance(value, Sequence) else []


def _named(name: str, value: Any) -> str:
    return f"{name} {value}" if value is not None else ""


def _line(*parts: Any) -> str:
    return " · ".join(str(part) for part in parts if part not in (None, ""))


def _window(resolved: Mapping[str, Any], key: str) -> str:
    length = resolved.get(key)
    if not isinstance(length, int):
        return ""
    return _line(f"{length:,} ({length_label(length)})", _named("read from", resolved.get(f"{key}_source")))


def _tokens(manifest: Mapping[str, Any]) -> str:
    read, planned = manifest.get("forwarded_tokens"), manifest.get("predicted_tokens")
    if not (isinstance(read, int) and isinstance(planned, int)):
        return ""
    sessions = manifest.get("sessions")
    count = len(sessions) if isinstance(sessions, Sequence) else 0
    return f"{read:,} of {planned:,} planned" + (f", in {count} sessions" if count > 1 else "")
