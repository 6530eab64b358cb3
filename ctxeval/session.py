"""The part of a run that has the weights: patch, prove, measure, append."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from ctxeval.engine.agenda import Unit
from ctxeval.engine.budget import Cost, Geometry, Speed, segment_cost, tree_cost
from ctxeval.engine.execute import execute
from ctxeval.engine.plan import forwarded_tokens, prune
from ctxeval.errors import RunError
from ctxeval.model.load import LanguageModel
from ctxeval.model.memory import is_out_of_memory
from ctxeval.model.positions import check_positions, make_room, read_positions
from ctxeval.model.reader import Reader
from ctxeval.model.reading import Reading
from ctxeval.model.scores import TokenScores
from ctxeval.model.source import reason as reason_of
from ctxeval.prepare import Prepared
from ctxeval.probes.perplexity import BASELINE
from ctxeval.results.samples import SampleStore
from ctxeval.results.schema import Cell, PerplexityCell
from ctxeval.results.store import RunStore, load_run
from ctxeval.rope.patch import RopePatch
from ctxeval.rope.sites import has_sites
from ctxeval.rope.verify import prove
from ctxeval.wording import counted


class Observer:
    """What a run tells while it goes on. The default says nothing; the command line shows it on stderr."""

    def say(self, line: str) -> None:
        """Report one line of talk."""

    def detail(self, line: str) -> None:
        """Report one line that only some want to read."""

    def begin(self, seconds: float) -> None:
        """Announce the predicted seconds of the work that is left."""

    def advance(self, seconds: float) -> None:
        """Report work done, in predicted seconds."""


@dataclass(eq=False)
class Session:
    """The part of a run that has the weights.

    `forwarded` counts the tokens read, `given_up` those that were planned but not read after memory ran out;
    `planned_rows`, known after `count`, all rows of the run.
    """

    prepared: Prepared
    language_model: LanguageModel
    geometry: Geometry
    identity: dict[str, Any]
    observer: Observer
    reading: Reading

    def __post_init__(self) -> None:
        model = self.language_model.model
        self.patch = RopePatch(model, self.prepared.spec.layer_types) if has_sites(model) else None
        if self.patch is None:
            # `prepare` has done so already, unless the model's code cannot be built without its weights.
            check_positions(model, self.prepared.spec.scales, self.prepared.longest)
            make_room(model, self.prepared.longest)
        else:
            # Models with a table of sin and cos cannot even be timed beyond its last row.
            self.patch.apply("none", target_length=self.prepared.longest)
        self.reader = Reader(model, self.prepared.longest + 1, whole=self.reading.whole)
        self.chunk = self.reader.capacity if self.reading.whole else self.prepared.spec.chunk
        self.proofs: dict[str, Any] = {}
        self.earlier_proofs: Mapping[str, Any] = {}
        self.forwarded = self.given_up = self.planned_rows = 0
        self._applied: str | None = None
        self._baselines: dict[tuple[int, int], float | None] = {}

    def count(self, done: set[str]) -> tuple[Cost, Cost]:
        """Return the cost of the whole run, and of what is left where the cells in `done` are there already."""
        whole = left = Cost()
        self.planned_rows = 0
        for unit in self.prepared.agenda.units():
            self.planned_rows += len(unit.measurements)
            prompts, roots, ranges = unit.tree(share=not self.reading.whole)
            whole += tree_cost(self.geometry, roots, prompts, self.chunk)
            wanted = self._wanted(unit, ranges, done)
            if wanted:
                left += tree_cost(self.geometry, prune(roots, wanted), prompts, self.chunk)
        return whole, left

    def measure(self, store: RunStore, speed: Speed, proved: Callable[[], None] = lambda: None) -> None:
        """Measure everything that is not in the store, appending each row as soon as it is complete.

        `proved` is called after a scaling was proved for the first time, with the proof in `proofs`.
        """
        for row in load_run(store.path).cells.to_dict("records"):
            self._remember(row)
        with SampleStore(store.path) as samples:
            self._measure_units(store, samples, speed, proved)

    def _measure_units(self, store: RunStore, samples: SampleStore, speed: Speed, proved: Callable[[], None]) -> None:
        for unit in self.prepared.agenda.units():
            cells = self._cells(unit)
            missing = sum(cell.cell_id not in store.ids for cell in cells)
            if not missing:
                continue
            if self._apply(unit):
                proved()
            began, before = time.perf_counter(), self.forwarded
            excerpts = {cell.cell_id: one.excerpt for cell, one in zip(cells, unit.measurements, strict=True)}
            for cell in self._measure_unit(unit, cells, store.ids, speed):
                samples.offer(cell, excerpts[cell.cell_id])
                store.append([cell])
                self._remember(cell.to_row())
            self.observer.detail(
                f"document {unit.document}, {unit.setting}: {counted(missing, 'row')}, "
                f"{counted(self.forwarded - before, 'token')}, "
                f"{time.perf_counter() - began:.1f} s"
            )

    def _cells(self, unit: Unit) -> list[Cell]:
        scaling = unit.scaling
        extra = self.identity | {"options": dict(scaling.options)}
        return [one.bind(scaling.label, scaling.factor, extra) for one in unit.measurements]

    def _wanted(self, unit: Unit, ranges: list[tuple[int, int]], done: set[str]) -> frozenset[int]:
        missing = [ranges[index] for index, cell in enumerate(self._cells(unit)) if cell.cell_id not in done]
        return frozenset(index for start, stop in missing for index in range(start, stop))

    def _apply(self, unit: Unit) -> bool:
        """Put the unit's frequencies in force; the first time, prove that the model really emits them.

        Returns whether it was the first time.
        """
        scaling, window = unit.scaling, self.prepared.resolved.window(unit.scaling)
        if self._applied == unit.setting:
            return False
        if self.patch is None:
            self._applied = unit.setting
            self.proofs[unit.setting] = {
                "method": scaling.method,
                "positions": read_positions(self.language_model.model).text,
            }
            return True
        self.patch.apply(
            scaling.method,
            factor=scaling.factor,
            native_window=window,
            from_scratch=scaling.from_scratch,
            context_length=unit.frozen_length,
            target_length=self.prepared.longest,
            **scaling.options,
        )
        self._applied = unit.setting
        digest = self.patch.frequencies_sha256()
        if unit.setting not in self.proofs:
            longest = unit.frozen_length or self.prepared.longest
            proof = prove(self.patch, native_window=window, target_length=longest)
            self.proofs[unit.setting] = proof.as_dict() | {"frequencies_sha256": digest}
            if self.earlier_proofs.get(unit.setting, {}).get("frequencies_sha256", digest) != digest:
                raise RunError(
                    f"{unit.setting} gives other frequencies than when this run began",
                    "the rows would not be alike: start a new run",
                )
            return True
        if self.proofs[unit.setting]["frequencies_sha256"] != digest:
            raise RunError(f"{unit.setting} gave other frequencies than the first time", "please report this")
        return False

    def _measure_unit(self, unit: Unit, cells: list[Cell], done: set[str], speed: Speed) -> Iterator[Cell]:
        prompts, roots, ranges = unit.tree(share=not self.reading.whole)
        roots = prune(roots, self._wanted(unit, ranges, done))
        owner = {index: row for row, (start, stop) in enumerate(ranges) for index in range(start, stop)}
        scores: dict[int, dict[int, TokenScores]] = {row: {} for row in range(len(cells))}
        pending = {row for row, cell in enumerate(cells) if cell.cell_id not in done}
        began, planned = time.perf_counter(), self.forwarded + forwarded_tokens(roots)
        self.reader.restart()
        try:
            for index, score in execute(self.reader, prompts, roots, self.chunk, self._advance(speed)):
                row = owner[index]
                scores[row][index] = score
                start, stop = ranges[row]
                if len(scores[row]) == stop - start:
                    read = unit.measurements[row].read([scores[row][one] for one in range(start, stop)])
                    taken, began = time.perf_counter() - began, time.perf_counter()
                    pending.discard(row)
                    yield self._finish(replace(cells[row], seconds=round(taken, 3), **read))
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            reason = f"out of memory at {self.reader.length} tokens: {reason_of(error)}"
        else:
            return
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        self.given_up += planned - self.forwarded
        for row in sorted(pending):
            yield replace(cells[row], status="oom", reason=reason)

    def _advance(self, speed: Speed) -> Callable[[int, int], None]:
        def advance(start: int, tokens: int) -> None:
            self.forwarded += tokens
            self.observer.advance(speed.seconds(segment_cost(self.geometry, start, tokens)))

        return advance

    def _finish(self, cell: Cell) -> Cell:
        """Put the unpatched model's loss on the same tokens beside a perplexity row's own."""
        if not isinstance(cell, PerplexityCell):
            return cell
        if cell.control == BASELINE:
            return replace(cell, baseline_nll=cell.nll)
        return replace(cell, baseline_nll=self._baselines.get((cell.document, cell.context_length)))

    def _remember(self, row: Mapping[Any, Any]) -> None:
        if row["probe"] == "perplexity" and row["control"] == BASELINE and row["status"] == "ok":
            self._baselines[int(row["document"]), int(row["context_length"])] = float(row["nll"])
