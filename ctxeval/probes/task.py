"""Needle tasks are data: a YAML file in tasks/ says what is hidden and how it is asked for. Pure but for reading it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import yaml

from ctxeval.errors import UsageError, unknown
from ctxeval.resources import tasks_dir

_FIELDS = {"name", "title", "family", "isolates", "value", "wordings", "keys"}


@dataclass(frozen=True)
class Wording:
    """One way to state a needle and to ask for it; `{key}` and `{value}` are filled in."""

    statement: str
    question: str
    lead: str


@dataclass(frozen=True)
class NeedleTask:
    """A single-needle task: wordings, keys, and five-digit (or other) values."""

    name: str
    title: str
    isolates: str
    wordings: tuple[Wording, ...]
    keys: tuple[str, ...]
    digits: int
    multiple_of: int
    sha256: str


@dataclass(frozen=True)
class Needle:
    """A fact that is hidden and asked for."""

    needle_id: str
    wording: int
    key: str
    value: str
    statement: str
    question: str
    lead: str


def available_tasks() -> dict[str, Path]:
    """Return the task files that ship with ctxeval, by name."""
    return {path.stem: path for path in sorted(tasks_dir().glob("*.yaml"))}


def load_task(name: str) -> NeedleTask:
    """Load a task by its name, or from a YAML file.

    Raises:
        UsageError: no such task, or a file that is not a valid task.
    """
    path = Path(name)
    if path.suffix not in {".yaml", ".yml"}:
        tasks = available_tasks()
        if name not in tasks:
            raise unknown("task", name, tasks)
        path = tasks[name]
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UsageError(f"cannot read the task {path}: {error}", "give a YAML file like tasks/needle.yaml") from None
    return parse_task(data, str(path))


def parse_task(data: Any, source: str) -> NeedleTask:
    """Validate the content of a task file; `source` is named in errors."""
    if not isinstance(data, Mapping) or set(data) != _FIELDS:
        found = sorted(data) if isinstance(data, Mapping) else type(data).__name__
        raise UsageError(f"{source}: fields {found}", f"a task has exactly {sorted(_FIELDS)}")
    value = data["value"]
    if not isinstance(value, Mapping) or set(value) != {"kind", "digits", "multiple_of"} or value["kind"] != "digits":
        raise UsageError(f"{source}: value is {value!r}", "write {kind: digits, digits: 5, multiple_of: 1}")
    digits, multiple = value["digits"], value["multiple_of"]
    if not (
        type(digits) is int and 3 <= digits <= 12 and type(multiple) is int and 1 <= multiple <= 10 ** (digits - 1)
    ):
        raise UsageError(f"{source}: value is {value!r}", "digits must be 3 to 12 and multiple_of at least 1")
    wordings = tuple(_parse_wording(entry, source) for entry in _listed(data["wordings"]))
    keys = tuple(_listed(data["keys"]))
    if not wordings or not keys or not all(isinstance(key, str) for key in keys) or len(set(keys)) != len(keys):
        raise UsageError(
            f"{source}: {len(wordings)} wordings, {len(keys)} keys", "both are lists of at least one, keys unique text"
        )
    digest = hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()
    return NeedleTask(
        name=str(data["name"]),
        title=str(data["title"]),
        isolates=str(data["isolates"]),
        wordings=wordings,
        keys=keys,
        digits=digits,
        multiple_of=multiple,
        sha256=digest,
    )


def _parse_wording(entry: Any, source: str) -> Wording:
    if not isinstance(entry, Mapping) or set(entry) != {"statement", "question", "lead"}:
        raise UsageError(f"{source}: wording {entry!r}", "each wording has statement, question and lead")
    if not all(isinstance(text, str) for text in entry.values()):
        raise UsageError(f"{source}: wording {entry!r}", "statement, question and lead are text")
    wording = Wording(**entry)
    if "{key}" not in wording.statement or "{value}" not in wording.statement or "{key}" not in wording.question:
        raise UsageError(
            f"{source}: wording {wording.statement!r}", "{key} and {value} must be in it, {key} in the question"
        )
    if "{value}" in wording.question + wording.lead:
        raise UsageError(f"{source}: wording {wording.question!r}", "the question must not give the value away")
    try:
        (wording.statement + wording.question + wording.lead).format(key="", value="")
    except (KeyError, IndexError, ValueError):
        raise UsageError(f"{source}: wording {entry!r}", "only {key} and {value} may stand in braces") from None
    return wording


def _listed(value: Any) -> list[Any]:
    """Return a YAML list, and nothing for anything else."""
    return value if isinstance(value, list) else []


def make_needle(task: NeedleTask, *, seed: int, document: int, trial: int, site: int, forbidden: str = "") -> Needle:
    """Return the needle of one absolute site: a pure function of its arguments, never of the context length.

    `site` is the text token before which it stands. Values that occur in `forbidden` (the haystack) are skipped.
    """
    random = Random(f"{task.name}:{seed}:{document}:{trial}:{site}")
    wording = random.randrange(len(task.wordings))
    key = random.choice(task.keys)
    low, high = 10 ** (task.digits - 1), 10**task.digits
    first = -(-low // task.multiple_of) * task.multiple_of
    for _ in range(1000):
        value = str(random.randrange(first, high, task.multiple_of))
        if value not in forbidden:
            break
    else:
        raise UsageError(f"the text contains every value that task {task.name!r} tried", "use a task with more digits")
    form = task.wordings[wording]
    return Needle(
        needle_id=f"{document}.{trial}.{site}",
        wording=wording,
        key=key,
        value=value,
        statement=form.statement.format(key=key, value=value),
        question=form.question.format(key=key),
        lead=form.lead.format(key=key),
    )
