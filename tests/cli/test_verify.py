"""`ctxeval verify`: what it says of a healthy model and of a broken one, and the exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from ctxeval.cli.main import run_command
from ctxeval.rope import patch as patching

TinyLlama = Callable[..., Path]


def test_a_healthy_model(tiny_llama: TinyLlama, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["verify", "-m", str(tiny_llama()), "--dtype", "fp32", "--device", "cpu"]) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert "native window 256 (max_position_embeddings), target 1,024" in err
    assert lines[0].split()[:3] == ["model", "sites", "ok"]
    assert "model.rotary_emb: LlamaRotaryEmbedding, rope type default, 8 pairs, scaled" in lines[0]
    names = [line.split()[1] for line in lines if line.startswith("yarn ")]
    assert names == ["frequencies", "temperature", "logits", "distance", "norm", "chunked", "fork"]
    assert {line.split()[0] for line in lines[:-2]} == {"model", "none", "pi", "ntk", "ntk-parts", "yarn", "llama3"}
    assert any("effective: 1.139 on cos and sin" in line for line in lines)
    assert any("none" in line and "the unpatched model's, bit for bit" in line for line in lines)
    assert lines[-2].split()[:3] == ["model", "restore", "ok"]
    assert lines[-1] == "44 of 44 hold, 0 of them with a note"


def test_json_with_the_users_scaling(tiny_llama: TinyLlama, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["verify", "-m", str(tiny_llama()), "--scale", "yarn", "--len", "512", "--beta-fast", "16"]
    assert run_command([*command, "--dtype", "bf16", "--device", "cpu", "--format", "json", "-q"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    report = json.loads(out)
    assert report["passed"] is True
    assert {check["scale"] for check in report["checks"]} == {None, "yarn[beta_fast=16.0]"}
    assert {check["status"] for check in report["checks"]} == {"ok"}


def test_a_broken_patch_is_exit_3(tiny_llama: TinyLlama, capsys: pytest.CaptureFixture[str]) -> None:
    with mock.patch.object(patching.RopePatch, "_write", lambda *_: None):
        command = ["verify", "-m", str(tiny_llama()), "--scale", "none,pi", "--dtype", "fp32", "--device", "cpu"]
        assert run_command(command) == 3
    out = capsys.readouterr().out.splitlines()
    (failed,) = [line for line in out if " fail " in line]
    assert failed.split()[:3] == ["pi", "patch", "fail"]
    assert "its inv_freq is not the intended one" in failed
    assert out[-1].startswith("11 of 12 hold")


def test_a_restore_that_forgets_is_exit_3(tiny_llama: TinyLlama, capsys: pytest.CaptureFixture[str]) -> None:
    right = patching.RopePatch.restore

    def forgetful(self: Any) -> None:
        scaled = self.applied.method != "none"
        right(self)
        if scaled:
            self.sites[0].module.attention_scaling = 1.25

    with mock.patch.object(patching.RopePatch, "restore", forgetful):
        command = ["verify", "-m", str(tiny_llama()), "--scale", "pi", "--dtype", "fp32", "--device", "cpu"]
        assert run_command(command) == 3
    assert "restore      fail model.rotary_emb is not as it was found" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ([], "no model given"),
        (["-m", "demo", "--format", "csv"], "unknown format 'csv'"),
        (["-m", "demo", "--dtype", "fp8"], "unknown dtype 'fp8'"),
        (["-m", "demo", "--scale", "yrn"], "unknown scaling 'yrn'"),
        (["-m", "demo", "--scale", "abf"], "scaling abf without rope_theta"),
        (["-m", "demo", "--layer-types", "global"], "layer types global on a model with one set of frequencies"),
    ],
)
def test_usage(more: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CTXEVAL_MODEL", raising=False)
    assert run_command(["verify", *more]) == 2
    assert said in capsys.readouterr().err
