"""The manifest of a run: what determined its values (`identity`), what was resolved, and where it ran."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import platform
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ctxeval import __version__
from ctxeval.resolve import Resolved
from ctxeval.results.schema import SCHEMA_VERSION, SCORING_VERSION
from ctxeval.spec import RunSpec

if TYPE_CHECKING:
    from ctxeval.model.load import LanguageModel

#: Fields of a model configuration that say where and by what it was written, or how it is run, not what it is.
_VOLATILE_CONFIG = {"_name_or_path", "transformers_version", "dtype", "torch_dtype", "_attn_implementation"}
_PACKAGES = ("torch", "transformers", "tokenizers", "numpy")


def package_versions() -> dict[str, str]:
    """Return the versions of the packages that values depend on, and of Python."""
    versions = {"ctxeval": __version__}
    for name in _PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return {**versions, "python": platform.python_version()}


def git_commit(package: Path = Path(__file__).parent) -> str | None:
    """Return the commit of the checkout that `package` runs from, with `+` where it has uncommitted changes.

    None where it is installed: a virtual environment, or a copy, inside another project's checkout has that one's
    commit, which says nothing of ctxeval.
    """

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(package), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        if Path(git("rev-parse", "--show-toplevel")) != package.resolve().parent:
            return None
        git("ls-files", "--error-unmatch", "__init__.py")
        commit, dirty = git("rev-parse", "HEAD"), git("status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return None
    return commit + ("+" if dirty else "")


def now() -> str:
    """Return the time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def describe_model(loaded: LanguageModel, attention: str) -> dict[str, Any]:
    """Return what a manifest says of a loaded model: enough to tell whether another run had the same one.

    `fingerprint` hashes the configuration and the first values of every weight and buffer, rotary tables included: a
    folder may keep its name while its content changes.
    """
    config = {name: value for name, value in loaded.model.config.to_dict().items() if name not in _VOLATILE_CONFIG}
    digest = hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode())
    for name, values in (*loaded.model.named_parameters(), *loaded.model.named_buffers()):
        digest.update(f"{name}{tuple(values.shape)}{values.dtype}".encode())
        digest.update(values.detach().flatten()[:256].double().cpu().numpy().tobytes())
    # No key without an adapter: it would change the identity of runs that were begun before there were any.
    merged = {"adapter": dict(loaded.adapter)} if loaded.adapter else {}
    return {
        "name": loaded.name,
        "kind": loaded.kind,
        "revision": loaded.revision,
        "quantization": loaded.quantization,
        "n_parameters": loaded.n_parameters,
        "fingerprint": digest.hexdigest(),
        "dtype": loaded.dtype,
        "device": loaded.device.split(":")[0],
        "attention": attention,
        **merged,
    }


def describe_tokenizer(tokenizer: Any) -> dict[str, str]:
    """Return a hash of how text becomes tokens. Not part of the identity: weights and text already are.

    It takes in vocabulary, merges, normalisation and what is put around a text, but neither padding nor truncation,
    which are settings of a call.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None and hasattr(backend, "to_str"):
        rules = json.loads(backend.to_str())
        rules = {key: value for key, value in rules.items() if key not in ("padding", "truncation")}
    else:
        rules = {"class": type(tokenizer).__name__, "vocabulary": tokenizer.get_vocab()}
    return {"sha256": hashlib.sha256(json.dumps(rules, sort_keys=True).encode()).hexdigest()}


def identity(
    spec: RunSpec, resolved: Resolved, *, model: dict[str, Any], corpus: dict[str, Any], task: dict[str, Any]
) -> dict[str, Any]:
    """Return everything that determines a run's values: two runs of the same identity have the same rows.

    `probes`, `scales` and the grid are left out: they say which rows there are, not what is in them. They are part of
    it all the same where they move a row's neighbours in a shared context or its cuts, hence `plan`.
    """
    versions = package_versions()
    return {
        "schema_version": SCHEMA_VERSION,
        "scoring_version": SCORING_VERSION,
        "model": model,
        "corpus": corpus,
        "task": task,
        "versions": {name: versions[name] for name in ("torch", "transformers", "tokenizers")},
        "seed": spec.seed,
        "documents": spec.documents,
        "trials": spec.trials,
        "native_window": resolved.native_window,
        "lengths": list(resolved.all_lengths),
        "depths": list(resolved.depths),
        "plan": "packed" if spec.packed else "exact",
        "needles_per_context": spec.needles_per_context if spec.packed else 1,
        "protocol": spec.protocol,
        "stride": spec.stride,
        "chat": spec.chat,
        "chunk": spec.chunk,
        # Only where chosen, so that a run without them is the same as it was before they could be.
        **({"layer_types": sorted(spec.layer_types)} if spec.layer_types is not None else {}),
        # Left out where it is not used, so that runs from before it existed can be resumed.
        **({"from_scratch": True, "pretrain_window": resolved.pretrain_window} if spec.from_scratch else {}),
    }


def manifest(
    spec: RunSpec,
    resolved: Resolved,
    who: dict[str, Any],
    *,
    base: dict[str, Any],
    model: dict[str, Any],
    cost: dict[str, Any],
    planned_rows: int,
) -> dict[str, Any]:
    """Return the manifest of a run that begins now. `who` is its identity, `base` says what its scalings start from.

    `planned_rows` is how many rows the run has when it is finished: a file that has fewer has lost some.
    """
    return {
        "schema_version": SCHEMA_VERSION,
        "identity": who,
        "dtype": model["dtype"],
        "device": model["device"],
        "attention": model["attention"],
        "argv": sys.argv[1:],
        "spec": _plain(asdict(spec)),
        "resolved": {
            "target": resolved.target,
            "lengths": list(resolved.lengths),
            "reference_lengths": list(resolved.reference_lengths),
            "depths": list(resolved.depths),
            "documents": spec.documents,
            "perplexity_documents": resolved.perplexity_documents,
            "plan": "packed" if spec.packed else "exact",
            "task": spec.task,
            "protocol": spec.protocol,
            "scalings": [
                {
                    "label": one.label,
                    "method": one.method,
                    "factor": one.factor,
                    "options": dict(one.options),
                    "from_scratch": one.from_scratch,
                    "window": resolved.window(one),
                }
                for one in resolved.scalings
            ],
            **base,
        },
        "model": model,
        "versions": package_versions(),
        "platform": platform.platform(),
        "git_commit": git_commit(),
        "cost": cost,
        "proofs": {},
        "sessions": [],
        "planned_rows": planned_rows,
        "predicted_tokens": cost["tokens"],
        "forwarded_tokens": 0,
        "started": now(),
        "finished": None,
    }


def begin_session(record: dict[str, Any], predicted_tokens: int, planned_rows: int, processor: dict[str, Any]) -> None:
    """Note in a manifest that a process begins to measure what is left: `predicted_tokens` to forward.

    `planned_rows` is that of the whole run; manifests written before it was recorded do not have it. `processor` is no
    part of the identity: a run may be finished on another machine.
    """
    record["planned_rows"] = planned_rows
    tokens = {"predicted_tokens": predicted_tokens, "forwarded_tokens": 0}
    session = {"started": now(), "ended": None, "processor": processor, **tokens}
    record["sessions"] = [*record.get("sessions", []), session]


def update_session(record: dict[str, Any], *, forwarded_tokens: int, proofs: dict[str, Any], ended: bool) -> None:
    """Note how far the last session has come, and the sums over all; proofs of earlier sessions are kept.

    A session that was killed has no `ended`, and has forwarded more than it could note.
    """
    session = record["sessions"][-1]
    session["forwarded_tokens"] = forwarded_tokens
    session["ended"] = now() if ended else None
    record["forwarded_tokens"] = sum(one["forwarded_tokens"] for one in record["sessions"])
    record["proofs"] = {**record.get("proofs", {}), **proofs}


def _plain(value: Any) -> Any:
    """Turn tuples into lists, so that the manifest equals itself after a round trip through JSON."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item) for item in value]
    return value
