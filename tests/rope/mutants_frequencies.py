"""Mutants of what a patch writes: frequencies and temperatures, see `tests.rope.mutants`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from ctxeval.rope import scaling
from ctxeval.rope.frequencies import Scaled, turns
from ctxeval.rope.scaling import scale_frequencies
from tests.rope.mutants import FACTOR, TARGET, YARN, alarm, formula, mutant, native_of, patched, write
from tests.rope.zoo import WINDOW


@mutant("MakazhanAlpamys/Soup #793: inv_freq byte-identical after 'long context enabled' on transformers 5")
def no_op() -> str:
    patch = patched()
    patch.set_native()
    return alarm(patch)


@mutant("manncodes src/models/extensions.py: its YaRN returns the original frequencies")
def original_frequencies_as_yarn() -> str:
    patch = patched()
    return write(patch, native_of(patch))


@mutant("manncodes src/models/extensions.py: YaRN without a temperature")
def missing_temperature() -> str:
    patch = patched()
    patch.sites[0].write_attention_scaling(1.0)
    return alarm(patch)


@mutant("ggml-org/llama.cpp #17945: the temperature is folded in twice")
def squared_temperature() -> str:
    patch = patched()
    patch.sites[0].write_attention_scaling(YARN**2)
    return alarm(patch)


@mutant("as squared temperature, in the formula, so that the reference has it too")
def squared_temperature_in_the_formula() -> str:
    right = scaling.SCALINGS["yarn"]
    return formula("yarn", lambda *a: Scaled(right(*a).inv_freq, right(*a).attention_factor ** 2))


@mutant("vllm-project/vllm #46280, ml-explore/mlx-lm #1507: an explicit attention_factor is ignored")
def explicit_attention_factor_ignored() -> str:
    patch = patched(attention_factor=1.0)
    patch.sites[0].write_attention_scaling(YARN)
    return alarm(patch)


@mutant("vllm-project/vllm #56446: 0.07 ln s + 1 and 0.1 ln s + 1 confused")
def other_temperature_coefficient() -> str:
    patch = patched()
    patch.sites[0].write_attention_scaling(0.07 * math.log(FACTOR) + 1)
    return alarm(patch)


@mutant("bloc97's NTK-aware base: theta * s^(d/(d-2)) written with the exponent 1, i.e. d/d")
def ntk_exponent() -> str:
    patch = patched(method="ntk")
    return write(patch, (1e4 * FACTOR) ** (-np.arange(0, 16, 2) / 16) * native_of(patch)[0])


@mutant("as ntk exponent, in the formula, so that the reference has it too")
def ntk_exponent_in_the_formula() -> str:
    return formula("ntk", lambda native, window, s: Scaled(native * s ** (-np.arange(native.size) / native.size), 1.0))


@mutant("manncodes src/models/extensions.py: NTK by alpha, which scales the slowest pair by 1/16 for s = 2")
def ntk_by_alpha() -> str:
    patch = patched(method="ntk")
    native = native_of(patch)
    return write(patch, native * (2 * FACTOR) ** (-np.arange(native.size) / (native.size - 1) * 4 / 3))


@mutant("arXiv:2309.00071 eq. 18: gamma is the share that is kept, taken for the interpolated one")
def swapped_ramp() -> str:
    right = scaling.SCALINGS["yarn"]

    def backwards(native: Any, window: int, factor: float) -> Scaled:
        kept = right(native, window, factor)
        return Scaled(native * native / factor / kept.inv_freq, kept.attention_factor)

    return formula("yarn", backwards)


@mutant("arXiv:2309.00071 def. 2: a ramp over turns, where jquesnelle/yarn and every checkpoint have one over pairs")
def ramp_over_turns() -> str:
    patch = patched()
    native = native_of(patch)
    kept = np.clip((turns(native, WINDOW) - 1) / 31, 0, 1)
    return write(patch, native * kept + native / FACTOR * (1 - kept))


@mutant("vllm-project/vllm #27722, sgl-project/sglang #14270: truncate: false is ignored")
def truncate_ignored() -> str:
    patch = patched(truncate=False)
    return write(patch, scale_frequencies("yarn", native_of(patch), native_window=WINDOW, factor=FACTOR).inv_freq)


@mutant("huggingface/transformers #25681, #29285; NVIDIA-NeMo/Automodel #2549: model.to(bf16) rounds inv_freq")
def bf16_frequencies() -> str:
    patch = patched()
    patch.model.to(torch.bfloat16)
    return alarm(patch)


@mutant("huggingface/transformers #29285: bf16 values in an fp32 table")
def frequencies_rounded_through_bf16() -> str:
    patch = patched()
    return write(patch, patch.sites[0].inv_freq.bfloat16().float().numpy())


@mutant("huggingface/transformers #29496, #30709: position ids in bf16, where 32,767 is 32,768")
def bf16_positions() -> str:
    patch = patched()
    forward = patch.model.model.rotary_emb.forward
    patch.model.model.rotary_emb.forward = lambda x, position_ids: forward(x, position_ids.bfloat16())
    return alarm(patch)


@mutant("huggingface/transformers #38224: the factor is max_position_embeddings / original, whatever was asked for")
def factor_from_the_wrong_window() -> str:
    patch = patched()
    return write(patch, scale_frequencies("yarn", native_of(patch), native_window=WINDOW, factor=2.0).inv_freq)


@mutant("microsoft/LongRoPE load_model; transformers standardize_rope_params: L is the extended window")
def ramp_for_the_wrong_window() -> str:
    patch = patched()
    return write(patch, scale_frequencies("yarn", native_of(patch), native_window=TARGET, factor=FACTOR).inv_freq)


@mutant("vllm-project/vllm #56446, #55116: scaled twice")
def scaled_twice() -> str:
    patch = patched(method="pi")
    return write(patch, native_of(patch) / FACTOR**2)


@mutant("sgl-project/sglang: an override drops rope_theta, and 10,000 takes its place (issue 41227 of its test files)")
def theta_fell_back_to_10000() -> str:
    patch = patched(native={"rope_theta": 1e6})
    plain = 1e4 ** (-np.arange(0, 16, 2) / 16)
    return write(patch, scale_frequencies("yarn", plain, native_window=WINDOW, factor=FACTOR).inv_freq)


@mutant("manncodes src/models/extensions.py: its llama3 multiplies the fastest pairs by 4")
def llama3_speeds_up_fast_pairs() -> str:
    right = scaling.SCALINGS["llama3"]

    def faster(native: Any, window: int, factor: float, **options: Any) -> Scaled:
        table = right(native, window, factor, **options).inv_freq
        return Scaled(np.where(turns(native, window) > 4, table * 4, table), 1.0)

    return formula("llama3", faster)


@mutant("vllm-project/vllm #5093, #41236: dynamic NTK taken for a fixed factor, 13 times the base at 4 L")
def dynamic_factor_taken_for_the_ratio() -> str:
    patch = patched(method="ntk-dynamic")
    wrong = scale_frequencies(
        "ntk-dynamic", native_of(patch), native_window=WINDOW, factor=FACTOR, dynamic_factor=FACTOR
    )
    return write(patch, wrong.inv_freq)
