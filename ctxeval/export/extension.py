"""A checkpoint and a scaling of it, on the way to an engine; and what comes out. Pure."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ctxeval.errors import UsageError
from ctxeval.export.official import Official


@dataclass(frozen=True)
class Extension:
    """A checkpoint and one scaling of it.

    `config` is the checkpoint's configuration as JSON has it; `text_key` names its text part, "" where it is the whole.
    `tables` has the scaled tables by layer type, "" where one serves all layers. `target` is the longest context and
    `native_window` the one that is extended, in tokens. `own` is the rope type that the checkpoint came with, and
    `architecture` llama.cpp's name of the model, where known.
    """

    config: Mapping[str, Any]
    text_key: str
    tables: Mapping[str, Official]
    method: str
    factor: float
    native_window: int
    target: int
    own: str = "default"
    architecture: str | None = None

    @property
    def text(self) -> Mapping[str, Any]:
        """The text part of the configuration."""
        part: Mapping[str, Any] = self.config[self.text_key] if self.text_key else self.config
        return part

    @property
    def rope_parameters(self) -> dict[str, Any]:
        """The rope parameters of all layers, the extended ones replaced."""
        if "" in self.tables:
            return self.tables[""].parameters
        return {**self.text["rope_parameters"], **{name: one.parameters for name, one in self.tables.items()}}

    @property
    def window(self) -> int:
        """The context length that a configuration states, in tokens.

        Of YaRN at least factor * L: engines divide it by the original window and compare that with the factor.
        """
        if self.method == "ntk-dynamic":  # which takes it for L
            return self.native_window
        if any(table.rope_type == "yarn" for table in self.tables.values()):
            return max(self.target, round(self.factor * self.native_window))
        return self.target


@dataclass(frozen=True)
class Export:
    """What ships: a whole configuration, or flags of a command line; and what the user should know about it."""

    config: dict[str, Any] | None = None
    flags: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The configuration as config.json has it, or the flags as one shell-quoted line."""
        if self.config is not None:
            return json.dumps(self.config, indent=2, ensure_ascii=False, sort_keys=True) + "\n"
        return shlex.join(self.flags) + "\n"


def length(extension: Extension, but: str = "") -> dict[str, Any]:
    """State the context length; not for rope type `but`, by whose factor an engine multiplies it itself."""
    if extension.method == "none" or any(table.rope_type == but for table in extension.tables.values()):
        return {}
    return {"max_position_embeddings": extension.window}


def refuse_lost_temperature(extension: Extension, engine: str) -> None:
    """Refuse a factor on cos and sin that the rope type cannot carry."""
    for table in extension.tables.values():
        wanted = table.wanted.attention_factor
        if extension.method != "none" and not math.isclose(table.carried, wanted, rel_tol=1e-9):
            raise UsageError(
                f"attention_factor {wanted:g} with {extension.method}: {engine} has none for rope_type "
                f"{table.rope_type}",
                "drop --attention-factor, or choose yarn",
            )


def truncate_note(extension: Extension) -> tuple[str, ...]:
    """Say that `truncate` is newer than YaRN is."""
    if not any("truncate" in table.parameters for table in extension.tables.values()):
        return ()
    return ("releases of before 2025-12 may pass over truncate=false, which changes frequencies by up to 16 %",)
