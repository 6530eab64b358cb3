"""A measurement before it is taken: the prompts it needs, and how its row is read off their scores."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ctxeval.engine.plan import Prompt
from ctxeval.model.scores import TokenScores
from ctxeval.results.samples import Excerpt
from ctxeval.results.schema import CELL_TYPES, Cell, cell_id


@dataclass(frozen=True, eq=False)
class Measurement:
    """One row to be, for any scaling.

    columns: the row's columns that are known beforehand, but for `scale`, `factor` and `cell_id`.
    read: turns the scores of `prompts`, in order, into the columns that were measured.
    excerpt: the text around the needle, for the eye; no part of the row or its id.
    """

    columns: Mapping[str, Any]
    prompts: tuple[Prompt, ...]
    read: Callable[[Sequence[TokenScores]], Mapping[str, Any]]
    excerpt: Excerpt | None = None

    @property
    def length(self) -> int:
        """Tokens of context that the model reads: for a window of a longer text, those of the window."""
        length: int = self.columns.get("window", self.columns["context_length"])
        return length

    def bind(self, scale: str, factor: float, identity: Mapping[str, Any]) -> Cell:
        """Return the unmeasured cell of this row for one scaling.

        The id hashes `identity` (model, dtype, frequencies, chunk …), the known columns and the token ids read.
        """
        digest = hashlib.sha256()
        for prompt in self.prompts:
            digest.update(prompt.ids.tobytes())
            digest.update(f"|{prompt.score_start}:{prompt.score_stop}|".encode())
        known = {"scale": scale, "factor": factor, **self.columns}
        identifier = cell_id({"run": dict(identity), "row": known, "prompts": digest.hexdigest()})
        return CELL_TYPES[self.columns["probe"]](cell_id=identifier, **known)
