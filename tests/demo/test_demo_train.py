"""Training resumes where it was stopped, and ends with the weights of an uninterrupted run."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ctxeval.demo import train as training
from ctxeval.demo import training_files
from ctxeval.demo.train import Recipe, length_at, lr_at, train, weighted_loss

TINY = Recipe(steps=4, tokens=256, warmup=2)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three speeches, no measurements."""
    monkeypatch.setattr(training, "training_files", lambda: training_files()[:3])
    monkeypatch.setattr(training, "check", lambda *_, **__: {})
    monkeypatch.setattr(training, "finish", lambda *_: None)


def weights_in(out: Path) -> dict[str, torch.Tensor]:
    state = torch.load(out / "checkpoint.pt", weights_only=True)
    assert state["step"] == TINY.steps
    return state["model"]


def test_resumed_equals_uninterrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(TINY, tmp_path / "whole", check_every=2)
    step = training.train_step

    def stops(*args: Any) -> float:
        if args[-1] == 3:
            raise KeyboardInterrupt
        return step(*args)

    monkeypatch.setattr(training, "train_step", stops)
    with pytest.raises(KeyboardInterrupt):
        train(TINY, tmp_path / "cut", check_every=2)
    monkeypatch.setattr(training, "train_step", step)
    train(TINY, tmp_path / "cut", check_every=2)
    whole, cut = weights_in(tmp_path / "whole"), weights_in(tmp_path / "cut")
    assert all(torch.equal(whole[name], cut[name]) for name in whole)


def test_other_recipe_is_refused(tmp_path: Path) -> None:
    train(TINY, tmp_path, check_every=4)
    with pytest.raises(SystemExit, match="another recipe"):
        train(Recipe(steps=5, tokens=256), tmp_path, check_every=4)


def test_schedules() -> None:
    recipe = Recipe(steps=1000, warmup=100)
    assert [length_at(recipe, step) for step in (0, 149, 150, 399, 400, 999)] == [64, 64, 128, 128, 256, 256]
    rates = [lr_at(recipe, step) for step in range(1000)]
    assert max(rates) == recipe.lr and np.argmax(rates) in (99, 100) and rates[-1] < recipe.lr / 40


def test_loss_counts_only_weighted_targets() -> None:
    logits = torch.zeros(1, 3, 4)
    logits[0, 0, 2] = 50.0  # sure of the first target, which is right
    ids, weights = torch.tensor([[0, 2, 3]]), torch.tensor([[9.0, 1.0, 0.0]])
    assert weighted_loss(logits, ids, weights).item() == pytest.approx(0.0, abs=1e-6)
