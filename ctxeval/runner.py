"""Run an evaluation: plan it, load the weights once, and for each document and scaling measure and append rows."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from ctxeval.engine.budget import Cost, describe, tree_cost
from ctxeval.errors import RunError, UsageError
from ctxeval.manifest import describe_model, identity, manifest, now
from ctxeval.model.calibrate import calibrate
from ctxeval.model.load import load_model
from ctxeval.model.placement import choose_threads
from ctxeval.model.reader import choose_attention
from ctxeval.prepare import Prepared, prepare
from ctxeval.report.artifacts import write_artifacts
from ctxeval.results.store import Run, RunStore, load_run
from ctxeval.rope.windows import Windows
from ctxeval.session import Observer, Session, measured_geometry
from ctxeval.spec import RunSpec


def run(
    spec: RunSpec,
    output: str | Path | None = None,
    *,
    resume: str | Path | None = None,
    observer: Observer | None = None,
    prepared: Prepared | None = None,
) -> Run:
    """Measure what `spec` asks for and return the run, whose folder holds rows, manifest and tables.

    Args:
        spec: what to measure.
        output: the run folder; `results/<model>/<UTC time>` when left out.
        resume: a run folder to finish instead; rows that are there are not measured again.
        observer: told about progress.
        prepared: the result of `prepare(spec)`, where the caller has it already.

    Raises:
        UsageError: found before any weights are loaded.
        RunError: the weights cannot be loaded, a proof failed, the results cannot be written, every cell failed.
    """
    observer = observer or Observer()
    prepared = prepared or prepare(spec)
    folder = Path(resume or output or default_folder(spec))
    check_writable(folder)
    for line in prepared.summary():
        observer.say(line)
    language_model = load_model(spec.model)
    choose_threads(language_model)
    path = choose_attention(language_model.model, spec.model.attn_implementation)
    described = describe_model(language_model, path)
    observer.say(
        f"model {language_model.name} {language_model.quantization}, {language_model.n_parameters / 1e6:,.0f} M parameters, "
        f"{language_model.dtype} ({language_model.dtype_reason or 'as asked'}) on {language_model.device}, attention {path}"
    )
    geometry = measured_geometry(prepared.geometry, language_model)
    who = identity(
        spec,
        prepared.resolved,
        model=described,
        corpus={"name": prepared.corpus.name, "sha256": prepared.corpus.sha256},
        task={"name": spec.task, "sha256": prepared.agenda.needle.task.sha256 if prepared.agenda.needle else None},
    )
    session = Session(prepared, language_model, geometry, who, observer)
    cost, left = session.count(set())
    record = manifest(
        spec,
        prepared.resolved,
        who,
        windows=asdict_windows(prepared.windows),
        model=described,
        cost={"tokens": cost.tokens, "flops": cost.flops},
    )
    with RunStore.resume(folder, record) if resume else RunStore.create(folder, record) as store:
        if resume:
            record = load_run(folder).manifest | {"resumed": now()}
            _, left = session.count(store.ids)
        speed = calibrate(session.reader, geometry, spec.chunk, prepared.longest)
        observer.say(describe(left, geometry, prepared.longest, speed.seconds(left)))
        observer.begin(speed.seconds(left))
        session.measure(store, speed)
        record |= {
            "finished": now(),
            "proofs": session.proofs,
            "forwarded_tokens": session.forwarded,
            "predicted_tokens": left.tokens,
        }
        store.write_manifest(record)
    finished = load_run(folder)
    if len(finished.cells) and not (finished.cells["status"] == "ok").any():
        raise RunError(f"every cell of {folder} failed", f"first reason: {finished.cells['reason'].iloc[0]}")
    write_artifacts(finished)
    return finished


def dry(spec: RunSpec, observer: Observer) -> None:
    """Say what a run would do and what it would cost, without loading the weights."""
    prepared = prepare(spec)
    for line in prepared.summary():
        observer.say(line)
    cost = Cost()
    for unit in prepared.agenda.units():
        prompts, roots, _ = unit.tree(share=True)
        cost += tree_cost(prepared.geometry, roots, prompts, spec.chunk)
    observer.say(describe(cost, prepared.geometry, prepared.longest))


def asdict_windows(windows: Windows) -> dict[str, Any]:
    """Return the windows under the manifest's names."""
    found = asdict(windows)
    return {
        "native_window": found["native"],
        "native_window_source": found["native_source"],
        "pretrain_window": found["pretrain"],
        "pretrain_window_source": found["pretrain_source"],
    }


def default_folder(spec: RunSpec) -> Path:
    """Return results/<model>/<UTC time>."""
    name = spec.model.name_or_path.rstrip("/")
    short = Path(name).name if Path(name).exists() else name.replace("/", "--")
    return Path("results") / (short or "model") / now().replace(":", "").replace("+0000", "Z")


def check_writable(folder: Path) -> None:
    """Find out before hours are spent whether the run folder can be written.

    Raises:
        UsageError: it cannot.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".writable"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise UsageError(f"cannot write to {folder}: {error.strerror}", "give another folder with --output") from None
