"""Files that are never seen half written, and values as standard JSON has them."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ctxeval.errors import RunError


def plain(value: Any) -> Any:
    """Return the value as standard JSON has it: nan and the infinities become null, tuples lists, keys text."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def write_whole(path: Path, data: bytes) -> None:
    """Write a file beside `path` and rename it, so that a reader sees the old or the new one, never half.

    Raises:
        RunError: the disk refuses.
    """
    partial = path.parent / f".{path.name}.{os.getpid()}.tmp"
    try:
        with partial.open("wb") as handle:
            handle.write(data)
            handle.flush()
            os.fsync(handle.fileno())
        partial.replace(path)
    except OSError as error:
        _discard(partial)
        raise RunError(f"cannot write {path}: {error.strerror}", "is the disk full, or the folder read-only?") from None


def _discard(path: Path) -> None:
    # What failed first is what the user must hear.
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)
