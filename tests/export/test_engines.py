"""What each engine is given, word for word, and what each is refused."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from ctxeval.errors import UsageError
from tests.export.conftest import configuration, ship

USUAL = 0.1 * math.log(4) + 1
ONES = (1.0,) * 16
TWOS = (2.0,) * 16


def flags(line: tuple[str, ...]) -> dict[str, Any]:
    """Read `--name value` pairs; what is JSON is read as JSON."""
    pairs = dict(zip(line[::2], line[1::2], strict=True))
    return {name: json.loads(value) if value.startswith("{") else value for name, value in pairs.items()}


def test_vllm_yarn() -> None:
    made = flags(ship("vllm", configuration(), "yarn").flags)
    assert made["--max-model-len"] == "1024"
    assert made["--hf-overrides"] == {
        "max_position_embeddings": 1024,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 256,
            "attention_factor": pytest.approx(USUAL),
            "beta_fast": 32.0,
            "beta_slow": 1.0,
        },
    }


def test_vllm_derives_the_length_of_a_linear_scaling_itself() -> None:
    made = flags(ship("vllm", configuration(), "pi").flags)
    assert made == {
        "--hf-overrides": {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}},
        "--max-model-len": "1024",
    }


def test_vllm_ntk_states_base_and_length() -> None:
    made = flags(ship("vllm", configuration(), "ntk").flags)["--hf-overrides"]
    assert made["max_position_embeddings"] == 1024
    assert made["rope_parameters"]["rope_theta"] == pytest.approx(10000 * 4 ** (32 / 30))


def test_vllm_reaches_into_the_text_part() -> None:
    made = flags(ship("vllm", configuration("gemma3", text_config=GEMMA), "yarn").flags)["--hf-overrides"]
    assert list(made) == ["text_config"]
    assert made["text_config"]["rope_parameters"]["full_attention"]["rope_type"] == "yarn"
    assert made["text_config"]["rope_parameters"]["sliding_attention"] == {
        "rope_type": "default",
        "rope_theta": 10000.0,
    }


GEMMA = {
    "num_hidden_layers": 2,
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 256,
    "sliding_window": 32,
    "layer_types": ["sliding_attention", "full_attention"],
}


def test_sglang_multiplies_its_own_temperature() -> None:
    yarn = flags(ship("sglang", configuration(), "yarn").flags)
    assert yarn["--context-length"] == "1024"
    told = yarn["--json-model-override-args"]
    assert (told["max_position_embeddings"], told["rope_theta"]) == (1024, 10000.0)
    assert told["rope_scaling"] == {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 256,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
    }
    parts = flags(ship("sglang", configuration(), "ntk-parts").flags)["--json-model-override-args"]["rope_scaling"]
    assert parts["attn_factor"] * USUAL == pytest.approx(1.0) and "attention_factor" not in parts


def test_llama_cpp_flags() -> None:
    yarn = flags(ship("llama.cpp", configuration(), "yarn").flags)
    assert yarn == {
        "--rope-scaling": "yarn",
        "--rope-scale": "4",
        "--yarn-orig-ctx": "256",
        "--rope-freq-base": "10000",
        "--yarn-ext-factor": "1",
        "--yarn-attn-factor": "1",
        "--yarn-beta-fast": "32",
        "--yarn-beta-slow": "1",
        "--ctx-size": "1024",
        "--override-kv": "llama.context_length=int:1024",
    }
    pi = flags(ship("llama.cpp", configuration(), "pi", attention_factor=1.2).flags)
    assert (pi["--rope-scaling"], pi["--rope-scale"], pi["--yarn-attn-factor"]) == ("linear", "4", "1.2")
    ntk = flags(ship("llama.cpp", configuration(), "ntk").flags)
    assert ntk["--rope-scaling"] == "none" and "--rope-scale" not in ntk
    assert float(ntk["--rope-freq-base"]) == 10000 * 4 ** (32 / 30)


def test_llama_cpp_of_an_unknown_architecture_says_what_to_add() -> None:
    made = ship("llama.cpp", configuration("glm"), "pi")
    assert "--override-kv" not in made.flags and "--override-kv ARCHITECTURE.context_length=int:1024" in made.notes[0]


def test_the_text_is_one_shell_line() -> None:
    text = ship("vllm", configuration(), "yarn").text
    assert text.count("\n") == 1 and text.startswith('--hf-overrides \'{"max_position_embeddings": 1024')


def test_none_ships_as_it_is() -> None:
    assert ship("vllm", configuration(), "none", 256).flags == ("--max-model-len", "256")
    assert ship("llama.cpp", configuration(), "none", 256).flags == ("--ctx-size", "256")
    with pytest.raises(UsageError, match="scaling none at 1024 tokens: the native window is 256"):
        ship("vllm", configuration(), "none")


def test_longrope_carries_its_temperature_to_servers() -> None:
    options: dict[str, Any] = {"short_factor": TWOS, "long_factor": TWOS}
    made = flags(ship("vllm", configuration(), "longrope", **options).flags)["--hf-overrides"]["rope_parameters"]
    wanted = math.sqrt(1 + math.log(4) / math.log(256))
    assert made["short_mscale"] == made["long_mscale"] == pytest.approx(wanted)


#: (engine, scaling, options) → what the refusal says.
REFUSED: list[tuple[str, str, dict[str, Any], str]] = [
    ("vllm", "ntk-parts", {}, r"ntk-parts with attention factor 1: vLLM.*multiply cos and sin by 1\.13863"),
    ("vllm", "yarn", {"attention_factor": 1.0}, "yarn with attention factor 1"),
    ("vllm", "ntk-dynamic", {}, r"vLLM fixes one table.*ntk with --factor 4"),
    ("sglang", "ntk-dynamic", {"dynamic_factor": 2.0}, r"SGLang fixes one table.*ntk with --factor 7"),
    ("vllm", "longrope", {"short_factor": ONES, "long_factor": TWOS}, r"up to 256 tokens than beyond: vLLM"),
    ("llama.cpp", "ntk-parts", {}, r"attention factor 1 with llama\.cpp's yarn.*1\.13863.*PR 17945"),
    ("llama.cpp", "yarn", {"truncate": False}, r"truncate=false: llama\.cpp always rounds"),
    ("llama.cpp", "llama3", {}, r"rope_type llama3: llama\.cpp reads its frequencies from the GGUF"),
    ("llama.cpp", "ntk-dynamic", {}, "rope_type dynamic"),
    (
        "hf",
        "pi",
        {"attention_factor": 1.2},
        r"attention_factor 1\.2 with pi: transformers has none for rope_type linear",
    ),
    ("hf-v4", "ntk", {"attention_factor": 1.2}, "transformers 4 has none for rope_type default"),
    ("sglang", "abf", {"rope_theta": 1e6, "attention_factor": 1.2}, "SGLang has none"),
]


@pytest.mark.parametrize(("engine", "scale", "options", "said"), REFUSED)
def test_what_an_engine_cannot_express_is_refused(engine: str, scale: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        ship(engine, configuration(), scale, **options)


@pytest.mark.parametrize(
    ("engine", "said"),
    [
        ("hf-v4", "transformers 4 has no common form"),
        ("sglang", "overrides do not reach"),
        ("llama.cpp", "local layers"),
    ],
)
def test_a_table_a_layer_type_is_refused_where_an_engine_has_one(engine: str, said: str) -> None:
    with pytest.raises(UsageError, match=f"a table a layer type: .*{said}"):
        ship(engine, configuration("gemma3_text", **GEMMA), "yarn")


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llama.cpp"])
def test_latent_attention_has_rules_of_its_own(engine: str) -> None:
    with pytest.raises(UsageError, match="yarn on multi-head latent attention"):
        ship(engine, configuration("deepseek_v3"), "yarn")
    assert ship(engine, configuration("deepseek_v3"), "ntk").flags


def test_truncate_is_read_at_the_top_only() -> None:
    with pytest.raises(UsageError, match="truncate=false on a model with a table a layer type"):
        ship("hf", configuration("gemma3_text", **GEMMA), "yarn", truncate=False)
