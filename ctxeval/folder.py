"""A run's folder before the run: its name, whether it can be written, and what an earlier part left in it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

from ctxeval.errors import UsageError
from ctxeval.model.source import resolve_source
from ctxeval.results.store import load_run
from ctxeval.spec import RunSpec, differences, spec_from_dict


def default_folder(spec: RunSpec) -> Path:
    """Return results/<model>/<UTC time>, with a number behind it where two runs begin in one second.

    Raises:
        UsageError: the model is neither a Hub id nor a path of a model.
    """
    model = resolve_source(spec.model.name_or_path).name.replace("/", "--")
    time = datetime.now(UTC).strftime("%Y-%m-%dT%H%M%SZ")
    names = (time if number == 1 else f"{time}-{number}" for number in count(1))
    return next(folder for name in names if not (folder := Path("results", model or "model", name)).exists())


@contextmanager
def reserved(folder: Path, *, resume: bool) -> Iterator[None]:
    """Make the folder and write into it before hours are spent; if the block then fails first, leave no empty one.

    Raises:
        UsageError: it cannot be written, or it holds something and is not to be resumed.
    """
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        _check(folder, resume)
        yield
    except BaseException:
        for path in made:
            with contextlib.suppress(OSError):  # not empty: there is something to keep
                path.rmdir()
        raise


def _check(folder: Path, resume: bool) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not resume and any(folder.iterdir()):
            raise UsageError(f"output folder {folder} is not empty", "choose a new one, or continue it with --resume")
        probe = folder / ".writable"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise UsageError(f"cannot write to {folder}: {error.strerror}", "give another folder with --output") from None


def stored_spec(folder: Path) -> RunSpec:
    """Return what the run in `folder` was asked for.

    Raises:
        UsageError: there is no run, or its manifest is damaged.
    """
    data = load_run(folder).manifest.get("spec")
    if not isinstance(data, dict):
        raise UsageError(f"{folder} has a manifest without a spec", "was it written by another version?")
    return spec_from_dict(data)


def earlier_manifest(folder: Path, spec: RunSpec) -> dict[str, Any]:
    """Return the manifest of the run to resume, once it is clear that it was asked for the same.

    Raises:
        UsageError: no run, a damaged one, or one with another spec; the differences are named.
    """
    differ = differences(stored_spec(folder), spec)
    if differ:
        raise UsageError(f"{folder} was begun with other options: {'; '.join(differ)}", "resume with the same options")
    return load_run(folder).manifest
