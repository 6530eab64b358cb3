"""An adapter is merged, or the run ends: one that does nothing would pass the base model off as the tuned one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ctxeval.errors import ExitCode, RunError, UsageError
from ctxeval.manifest import describe_model, describe_tokenizer
from ctxeval.model.adapter import read_adapter
from ctxeval.model.load import LanguageModel, load_model
from ctxeval.prepare import prepare
from ctxeval.spec import ModelSpec, RunSpec, differences, spec_from_dict
from tests.conftest import TinyLlama

peft = pytest.importorskip("peft")
Save = Callable[..., Path]


@pytest.fixture(scope="module")
def model(tiny_llama: TinyLlama) -> Path:
    return tiny_llama()


@pytest.fixture(scope="module")
def save(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Save:
    """Train nothing: fill a LoRA with random numbers of the size `spread` and save it; `None` leaves it untrained."""

    def make(spread: float | None = 0.1, base: Path = model, targets: Any = ("q_proj", "down_proj")) -> Path:
        from transformers import AutoModelForCausalLM

        config = peft.LoraConfig(r=4, target_modules=list(targets), task_type="CAUSAL_LM")
        tuned = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(base), config)
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for name, parameter in tuned.named_parameters():
                if "lora_" in name and spread is not None:
                    parameter.normal_(0.0, spread, generator=generator)
        folder = tmp_path_factory.mktemp("adapter") / "tuned"
        tuned.save_pretrained(folder, save_embedding_layers=False)
        return folder

    return make


@pytest.fixture(scope="module")
def adapter(save: Save) -> Path:
    return save()


def load(model: Path, adapter: Path | None, dtype: str = "fp32") -> LanguageModel:
    return load_model(str(model), dtype=dtype, device="cpu", adapter=str(adapter) if adapter else None)


def logits(loaded: LanguageModel) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = loaded.model(input_ids=torch.arange(3, 50)[None]).logits
    return found


def test_the_merged_model_is_the_base_with_the_adapter_beside_it(model: Path, adapter: Path) -> None:
    base, tuned = load(model, None), load(model, adapter)
    beside = peft.PeftModel.from_pretrained(load(model, None).model, str(adapter)).eval()
    with torch.no_grad():
        wanted = beside(input_ids=torch.arange(3, 50)[None]).logits
    torch.testing.assert_close(logits(tuned), wanted, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(logits(tuned), logits(base), atol=1e-2)
    assert type(tuned.model) is type(base.model)
    assert not any(parameter.requires_grad for parameter in tuned.model.parameters())
    assert tuned.n_parameters == base.n_parameters


def test_the_manifest_names_it_and_runs_without_one_stay_what_they_were(model: Path, adapter: Path) -> None:
    base, tuned = (describe_model(load(model, one), "sdpa") for one in (None, adapter))
    assert "adapter" not in base
    assert tuned["adapter"] == {"name": "tuned", "kind": "LORA", "sha256": read_adapter(str(adapter)).sha256}
    assert tuned["fingerprint"] != base["fingerprint"]
    old = {"model": {"name_or_path": "x"}, "scales": ["none"]}  # a manifest from before there were adapters
    assert spec_from_dict(old) == RunSpec(ModelSpec("x"))
    assert differences(RunSpec(ModelSpec("x")), RunSpec(ModelSpec("x", adapter="a"))) == ["adapter None → 'a'"]


def test_an_adapter_that_does_nothing(model: Path, save: Save) -> None:
    with pytest.raises(RunError, match="changes nothing") as caught:  # LoRA begins with B = 0
        load(model, save(None))
    assert caught.value.exit_code == ExitCode.RUN_FAILED


def test_an_adapter_that_is_lost_in_rounding(model: Path, save: Save) -> None:
    faint = save(2e-3)
    assert load(model, faint).adapter
    with pytest.raises(RunError, match="not itself once merged.*try --dtype fp32"):
        load(model, faint, dtype="bf16")


def test_an_adapter_of_a_tied_embedding(model: Path, save: Save) -> None:
    with pytest.raises(RunError, match="ties to its head"):
        load(model, save(targets=("lm_head",)))


def test_an_adapter_of_another_model(model: Path, tiny_llama: TinyLlama, save: Save) -> None:
    with pytest.raises(RunError, match="has weights that the model has no place for: 4"):
        load(model, save(base=tiny_llama(layers=3)))
    with pytest.raises(RunError, match="lacks: 4, among them base_model.model.model.layers.2"):
        load(tiny_llama(layers=3), save())
    with pytest.raises(RunError, match="cannot merge adapter"):
        load(model, save(base=tiny_llama(intermediate_size=96)))


def damaged(adapter: Path, folder: Path) -> Path:
    return Path(shutil.copytree(adapter, folder))


def test_what_is_refused_before_weights_are_loaded(
    model: Path, adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pickled = damaged(adapter, tmp_path / "pickled")
    (pickled / "adapter_model.safetensors").rename(pickled / "adapter_model.bin")
    prompt = damaged(adapter, tmp_path / "prompt")
    config = json.loads((prompt / "adapter_config.json").read_text())
    (prompt / "adapter_config.json").write_text(json.dumps({**config, "peft_type": "PREFIX_TUNING"}))
    broken = damaged(adapter, tmp_path / "broken")
    (broken / "adapter_config.json").write_text("{")
    for folder, words in (
        (tmp_path / "nowhere", "no adapter at .*nowhere.*No such file"),
        (pickled, "only adapter_model.bin: pickled weights are never loaded"),
        (prompt, "PREFIX_TUNING, which cannot be merged"),
        (broken, "not JSON"),
    ):
        with pytest.raises(UsageError, match=words):
            load(model, folder)
        with pytest.raises(UsageError, match=words):  # a dry run finds it, too
            prepare(RunSpec(ModelSpec(str(model), adapter=str(folder))))
    monkeypatch.setattr("ctxeval.model.adapter.find_spec", lambda name: None)
    with pytest.raises(UsageError, match="peft, which is not installed.*ctxeval\\[adapter\\]"):
        read_adapter(str(adapter))


def test_the_hash_of_a_tokenizer(tiny_tokenizer: Callable[..., Any], model: Path) -> None:
    loaded = load(model, None).tokenizer
    assert describe_tokenizer(loaded) == describe_tokenizer(tiny_tokenizer(True))
    assert describe_tokenizer(loaded) != describe_tokenizer(tiny_tokenizer(False))
    before = describe_tokenizer(loaded)
    loaded("one two", truncation=True, max_length=1)
    assert describe_tokenizer(loaded) == before


def test_from_the_command_line(model: Path, adapter: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from ctxeval.cli.main import run_command
    from ctxeval.results.store import load_run

    options = ("-m", model, "--lengths", "128,256", "--docs", "2", "--corpus", "demo", "--dtype", "fp32", "-o")

    def call(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = run_command([str(one) for one in arguments])
        return (code, *capsys.readouterr())

    base, tuned, copy = tmp_path / "base", tmp_path / "run", tmp_path / "copy"
    shutil.copytree(adapter, copy)
    assert call("ppl", *options, base)[0] == 0
    code, out, err = call("ppl", *options, tuned, "--adapter", copy)
    assert code == 0 and "with the adapter copy merged" in err and "adapter copy" in out
    manifest = load_run(tuned).manifest
    assert manifest["spec"]["model"]["adapter"] == str(copy)
    assert manifest["identity"]["model"]["adapter"]["sha256"] == read_adapter(str(adapter)).sha256
    assert manifest["tokenizer"] == load_run(base).manifest["tokenizer"] and manifest["tokenizer"]["sha256"]
    code, out, err = call("compare", base, tuned)
    assert code == 0 and "model      adapter none → copy (" in out and "flagged" not in out
    assert "perplexity" in out and "identical" not in out
    code, _, err = call("ppl", "--resume", tuned, "--adapter", tmp_path / "other")
    assert code == 2 and "begun with other options: adapter is" in err
    config = json.loads((copy / "adapter_config.json").read_text())
    (copy / "adapter_config.json").write_text(json.dumps({**config, "lora_alpha": 80}))
    code, _, err = call("run", "--resume", tuned)
    assert code == 2 and "the run to resume differs: model: " in err
    code, _, err = call("ppl", *options, tmp_path / "new", "--adapter", tmp_path / "nowhere")
    assert code == 2 and "no adapter at" in err and not (tmp_path / "new").exists()
