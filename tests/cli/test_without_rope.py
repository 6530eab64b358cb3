"""Commands that are about rotary frequencies, on models that have none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.rope.zoo import build, tiny_config


@pytest.mark.parametrize(
    ("kind", "positions"),
    [("gpt2", "a learned table"), ("bloom", "ALiBi"), ("mamba", "a state-space or recurrent model")],
)
@pytest.mark.parametrize("command", ["verify", "rope", "export"])
def test_the_scheme_is_named(
    command: str, kind: str, positions: str, invoke: Callable[..., Any], tmp_path: Path
) -> None:
    """Not a missing window, which BLOOM and Mamba do not have either: to give one would not help."""
    build(tiny_config(kind)).save_pretrained(tmp_path / kind)
    more = ("--for", "hf") if command == "export" else ()
    done = invoke(command, "-m", tmp_path / kind, "--scale", "yarn", "--factor", "4", *more)
    assert done.code == 2
    assert "has no rotary frequencies to scale" in done.err and positions in done.err
