"""ctxeval: does this context extension really work?

The public names are imported on first use, so that `import ctxeval` loads neither torch nor transformers.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ctxeval.model.load import LanguageModel as LanguageModel
    from ctxeval.model.load import load_model as load_model
    from ctxeval.results.store import Run as Run
    from ctxeval.results.store import load_run as load_run
    from ctxeval.rope.scaled import scaled_rope as scaled_rope
    from ctxeval.runner import run as run
    from ctxeval.spec import ModelSpec as ModelSpec
    from ctxeval.spec import RunSpec as RunSpec

_HOMES = {
    "LanguageModel": "ctxeval.model.load",
    "ModelSpec": "ctxeval.spec",
    "Run": "ctxeval.results.store",
    "RunSpec": "ctxeval.spec",
    "load_model": "ctxeval.model.load",
    "load_run": "ctxeval.results.store",
    "run": "ctxeval.runner",
    "scaled_rope": "ctxeval.rope.scaled",
}

__version__ = "0.1.0"

__all__ = ["LanguageModel", "ModelSpec", "Run", "RunSpec", "load_model", "load_run", "run", "scaled_rope"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'ctxeval' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
