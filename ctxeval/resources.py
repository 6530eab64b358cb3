"""Data files that come with the package: found in a checkout and in an installed wheel."""

from __future__ import annotations

from pathlib import Path

from ctxeval.errors import RunError

PACKAGE = Path(__file__).resolve().parent


def tasks_dir() -> Path:
    """Return the folder of task and gate definitions (YAML).

    A wheel carries it inside the package as `_tasks`; in a checkout it is `tasks/` beside the package.

    Raises:
        RunError: neither is there.
    """
    for folder in (PACKAGE / "_tasks", PACKAGE.parent / "tasks"):
        if (folder / "needle.yaml").is_file():
            return folder
    raise RunError(f"no task definitions beside {str(PACKAGE)!r}", "the installation is incomplete: install it again")
