"""One setting of a patch: a scaling with all that determines its frequencies. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Applied:
    """What a patch was last asked for; `native_window` in tokens, None only under `none`. See `RopePatch.apply`."""

    method: str = "none"
    factor: float = 1.0
    native_window: int | None = None
    options: dict[str, Any] = field(default_factory=dict)
    from_scratch: bool = False
    context_length: int | None = None
