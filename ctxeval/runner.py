"""Run an evaluation: plan it, load the weights once, and for each document and scaling measure and append rows."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ctxeval.engine.budget import Cost, describe, tree_cost
from ctxeval.errors import RunError
from ctxeval.folder import default_folder, earlier_manifest, reserved
from ctxeval.manifest import begin_session, describe_model, describe_tokenizer, identity, manifest, now, update_session
from ctxeval.model.calibrate import calibrate
from ctxeval.model.geometry import read_geometry
from ctxeval.model.head import widen_head
from ctxeval.model.load import load_model
from ctxeval.model.placement import choose_device, choose_dtype, choose_threads, describe_processor
from ctxeval.model.reader import choose_attention
from ctxeval.model.reading import choose_reading
from ctxeval.prepare import Prepared, prepare
from ctxeval.report.artifacts import write_artifacts
from ctxeval.results.store import Run, RunStore, load_run, same_identity
from ctxeval.session import Observer, Session
from ctxeval.spec import ModelSpec, RunSpec
from ctxeval.wording import counted


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
    folder = Path(resume or output or default_folder(spec))
    earlier = earlier_manifest(folder, spec) if resume else None
    with reserved(folder, resume=resume is not None):
        choose_dtype(spec.model, choose_device(spec.model))
        prepared = prepared or prepare(spec)
        for line in prepared.summary():
            observer.say(line)
        session, record = load_session(prepared, _as_begun(spec.model, earlier), observer)
        _measure(session, folder, record, earlier)
    finished = load_run(folder)
    if len(finished.cells) and not (finished.cells["status"] == "ok").any():
        raise RunError(f"every cell of {folder} failed", f"first reason: {finished.cells['reason'].iloc[0]}")
    write_artifacts(finished)
    return finished


def _as_begun(model: ModelSpec, earlier: dict[str, Any] | None) -> ModelSpec:
    """Give `auto` the number format that the run to resume began with, whatever this machine is fastest in."""
    return replace(model, dtype=earlier["dtype"]) if earlier and model.dtype == "auto" else model


def load_session(prepared: Prepared, wanted: ModelSpec, observer: Observer) -> tuple[Session, dict[str, Any]]:
    """Load the weights as `wanted`; return what measures with them, and the manifest of a run that begins now."""
    spec = prepared.spec
    loaded = load_model(wanted)
    choose_threads(loaded)
    reading = choose_reading(loaded.model, prepared.longest, spec.chunk)
    path = loaded.attn_implementation
    if not reading.whole:
        path = choose_attention(loaded.model, spec.model.attn_implementation)
    head = "fp32" if widen_head(loaded.model) else loaded.dtype
    described = describe_model(loaded, path) | {"head": head}
    if reading.note:
        described["reading"] = reading.note
    name = f"{loaded.name} ({loaded.quantization})" if loaded.quantization else loaded.name
    if loaded.adapter:
        name += f" with the adapter {loaded.adapter['name']} merged"
    why = loaded.dtype_reason or ("as this run began" if spec.model.dtype == "auto" else "as asked")
    observer.say(
        f"model {name}, {loaded.n_parameters / 1e6:,.1f} M parameters, "
        f"{loaded.dtype} ({why}) on {loaded.device}, attention {path}, head in {head}"
    )
    task = prepared.agenda.needle.task if prepared.agenda.needle else None
    who = identity(
        spec,
        prepared.resolved,
        model=described,
        corpus={"name": prepared.corpus.name, "sha256": prepared.corpus.sha256},
        task={"name": spec.task, "sha256": task.sha256 if task else None},
    )
    size = next(loaded.model.parameters()).element_size()
    session = Session(prepared, loaded, read_geometry(loaded.config, loaded.model, size), who, observer, reading)
    cost, _ = session.count(set())
    record = manifest(
        spec,
        prepared.resolved,
        who,
        base=prepared.base(),
        model=described,
        cost={"tokens": cost.tokens, "flops": cost.flops},
        planned_rows=session.planned_rows,
    )
    return session, record | {"tokenizer": describe_tokenizer(loaded.tokenizer)}


def _measure(session: Session, folder: Path, record: dict[str, Any], earlier: dict[str, Any] | None) -> None:
    """Measure what is left, and keep the manifest true whichever way it ends.

    Raises:
        RunError: also where the model read other tokens than were planned.
    """
    longest, observer = session.prepared.longest, session.observer
    with RunStore.resume(folder, record) if earlier else RunStore.create(folder, record) as store:
        record = earlier or record
        session.earlier_proofs = dict(record.get("proofs", {}))
        _, left = session.count(store.ids)
        begin_session(record, left.tokens, session.planned_rows, describe_processor())

        def note(*, ended: bool = False) -> None:
            update_session(record, forwarded_tokens=session.forwarded, proofs=session.proofs, ended=ended)
            store.write_manifest(record)

        speed = calibrate(session.reader, session.geometry, session.chunk, longest)
        if earlier:
            observer.say(f"{counted(len(store.ids), 'row')} there already")
        line = describe(left, session.geometry, longest, speed.seconds(left))
        observer.say(f"{line}; {session.reading.note}" if session.reading.note else line)
        observer.begin(speed.seconds(left))
        try:
            session.measure(store, speed, note)
            read = session.forwarded + session.given_up
            if read != left.tokens:
                raise RunError(f"{read} tokens were read, {left.tokens} were planned", "please report this")
            if len(store.ids) != session.planned_rows:
                raise RunError(
                    f"{len(store.ids)} rows are there, {session.planned_rows} were planned", "please report this"
                )
            record["finished"] = now()
        except BaseException:
            with suppress(RunError):  # what failed first is what the user must hear
                note(ended=True)
            raise
        note(ended=True)


@dataclass(frozen=True)
class Forecast:
    """What a run would do and cost: as lines to read, and as values for JSON (bytes, seconds)."""

    lines: tuple[str, ...]
    values: dict[str, Any]


def dry(spec: RunSpec, observer: Observer, resume: Path | None = None) -> Forecast:
    """Go as far as a run goes before it measures: say what is left to do, and what it costs on this machine.

    The weights are loaded for the minutes; the other figures are said before.

    Raises:
        UsageError, RunError: as `run` would.
    """
    earlier = earlier_manifest(resume, spec) if resume else None
    choose_dtype(spec.model, choose_device(spec.model))
    prepared = prepare(spec)
    cost, rows = Cost(), 0
    for unit in prepared.agenda.units():
        prompts, roots, _ = unit.tree(share=True)
        cost += tree_cost(prepared.geometry, roots, prompts, spec.chunk)
        rows += len(unit.measurements)
    observer.say(f"{describe(cost, prepared.geometry, prepared.longest)}; loading the weights, to tell the minutes")
    session, record = load_session(prepared, _as_begun(spec.model, earlier), observer)
    if earlier:
        same_identity(earlier, record)
    _, left = session.count(load_run(resume).done if resume else set())
    geometry, longest = session.geometry, prepared.longest
    seconds = calibrate(session.reader, geometry, session.chunk, longest).seconds(left)
    lines = (*prepared.summary(), f"{counted(rows, 'row')}: {describe(left, geometry, longest, seconds)}")
    values = {
        **{name: record[name] for name in ("model", "spec", "resolved")},
        "rows": rows,
        "tokens": left.tokens,
        "flops": left.flops,
        "weight_bytes": geometry.weight_bytes,
        "kv_cache_bytes": geometry.kv_bytes(longest),
        "seconds": seconds,
    }
    return Forecast(lines, values)
