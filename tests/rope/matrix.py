"""The coverage matrix: every causal-LM type of transformers, as a document that a test holds against the code.

`python -m tests.rope.matrix` examines all types, some minutes, and writes docs/coverage.md.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
import transformers

from tests.rope.examine import VERIFIED, Finding, examine
from tests.rope.zoo import causal_types

DOCUMENT = Path(__file__).parents[2] / "docs" / "coverage.md"
#: One of each kind: half, interleaved, partial, tables, by layer type, MLA, complex, M-RoPE, NoPE layers, several
#: modules, inert temperature, PhiMoE's own recomputing, and two without RoPE.
SAMPLE = (
    "llama",
    "cohere",
    "gpt_neox",
    "gptj",
    "roformer",
    "gemma3_text",
    "deepseek_v2",
    "llama4_text",
    "qwen3_5_text",
    "smollm3",
    "granite_swa",
    "hunyuan_v1_dense",
    "phimoe",
    "bloom",
    "xlnet",
)
COLUMNS = ("pi", "ntk", "ntk-dynamic", "ntk-parts", "yarn", "llama3", "longrope", "abf")
#: (type, column) → how its outcome begins, and why there is nothing to compare with.
EXCEPTIONS: Mapping[tuple[str, str], tuple[str, str]] = {
    **{
        ("recurrent_gemma", column): ("no reference: ValueError", "transformers' class takes plain RoPE only")
        for column in ("pi", "ntk-dynamic", "ntk-parts", "yarn", "llama3", "longrope")
    },
    ("phimoe", "ntk-dynamic"): ("no reference: transformers ignores", "transformers' class never grows its base"),
    ("blt", "ntk-dynamic"): ("inv_freq differs by 0.0037", "its modules read one patch more than there are bytes"),
    ("deepseek_v4", "ntk-dynamic"): ("inv_freq differs", "its modules read compressed positions, each its own length"),
    ("deepseek_v4", "longrope"): ("inv_freq differs", "its modules read compressed positions, each its own length"),
}
#: Type with RoPE → how its failure begins, and what that means.
NOT_VERIFIED: Mapping[str, tuple[str, str]] = {
    "gemma3n": (
        "ImportError: TimmWrapperModel requires the timm library",
        "its vision tower needs the package timm; its text decoder is `gemma3n_text`, which is verified",
    ),
    "gemma4_assistant": (
        "ValueError: inputs_embeds and shared_kv_states cannot be None",
        "a drafter: it reads another model's keys, so it has no logits of its own",
    ),
    "gemma4_unified_assistant": (
        "ValueError: inputs_embeds and shared_kv_states cannot be None",
        "a drafter: it reads another model's keys, so it has no logits of its own",
    ),
}


def problems(found: Finding) -> list[str]:
    """Say what of a finding is neither verified nor an exception that is known, with its reason still true."""
    if found.scheme:
        unknown = "no position encoding" in found.scheme
        return [f"{found.kind}: has no rotary frequencies, and nothing says how it knows positions"] if unknown else []
    if found.kind in NOT_VERIFIED:
        begins, _ = NOT_VERIFIED[found.kind]
        holds = found.failure.startswith(begins)
        return [] if holds else [f"{found.kind}: its reason does not hold, found {found.failure or found.outcomes}"]
    if found.failure:
        return [f"{found.kind}: {found.failure}"]
    wrong = []
    for column in COLUMNS:
        outcome = found.outcomes.get(column, "not compared")
        begins, _ = EXCEPTIONS.get((found.kind, column), ("", ""))
        if begins and not outcome.startswith(begins):
            wrong.append(f"{found.kind}: {column} is an exception ({begins}), found {outcome}")
        elif not begins and outcome not in VERIFIED:
            wrong.append(f"{found.kind}: {column}: {outcome}")
    others = [column for column in found.outcomes if column not in COLUMNS]
    return wrong + [
        f"{found.kind}: {column}: {found.outcomes[column]}"
        for column in others
        if found.outcomes[column] not in VERIFIED
    ]


def row(found: Finding) -> str:
    """Return the line of the document that a finding makes."""
    name, model = f"`{found.kind}`", found.model
    if found.scheme:
        return f"| {name} | {model} | {_scheme(found.scheme)} |"
    if found.kind in NOT_VERIFIED:
        return f"| {name} | {NOT_VERIFIED[found.kind][1]} |"
    cells = ["✓" if found.outcomes.get(column) in VERIFIED else "–" for column in COLUMNS]
    more = [f"{column} ✓" for column in found.outcomes if column not in COLUMNS]
    return f"| {name} | {model} | {'; '.join((*found.traits, *more))} | {' | '.join(cells)} | {found.temperature} |"


def document(findings: Iterable[Finding]) -> str:
    """Return docs/coverage.md."""
    findings = sorted(findings, key=lambda found: found.kind)
    rotary = [found for found in findings if not found.scheme]
    verified = [found for found in rotary if found.kind not in NOT_VERIFIED]
    others = [found for found in findings if found.scheme]
    missing = [found for found in rotary if found.kind in NOT_VERIFIED]
    schemes = Counter(_scheme(found.scheme).split(" (")[0] for found in others)
    why: dict[tuple[str, str], list[str]] = {(kind, reason): [] for (kind, _), (_, reason) in EXCEPTIONS.items()}
    for (kind, column), (_, reason) in EXCEPTIONS.items():
        why[kind, reason].append(column)
    lines = [
        "# Models that are covered",
        "",
        f"**{len(verified)} of {len(rotary)}** model types with rotary position embeddings are verified, of the "
        f"{len(findings)} causal-LM types of transformers {transformers.__version__}. This file is written by "
        "`python -m tests.rope.matrix`; `pytest -m acceptance tests/rope` makes it again and compares, and `make test` "
        "does so for a sample and fails where transformers has a type that is not here.",
        "",
        "Verified means, for a tiny random model of the type in fp32: patched in place, its logits on 272 tokens (16 "
        "of them beyond its window of 256) equal those of the same weights under transformers' own configuration of "
        "that scaling, within 1e-5 absolute; or its frequencies are within two fp32 roundings of the official ones, "
        "and the logits within 1e-5 once those are copied in. Besides, ctxeval's own proof holds for positions up to "
        "1,023, `none` changes no bit of the logits, and after restoring every weight, buffer and attribute is the "
        "same, bit for bit. `ntk` and `abf` are compared with another `rope_theta`, `ntk-parts` with YaRN without "
        "temperature.",
        "GPT-J, CodeGen and RoFormer have no such configuration: their tables are compared with ones made from "
        "transformers' own frequencies.",
        "",
        "*Temperature* is whether the model follows YaRN's: `inert` where it normalises q and k after RoPE, so that "
        "`yarn` is `ntk-parts` there.",
        "",
        f"| type | model | remarks | {' | '.join(COLUMNS)} | temperature |",
        f"|---|---|---|{':-:|' * len(COLUMNS)}---|",
        *map(row, verified),
        "",
        "A dash means that transformers has nothing to compare with:",
        "",
        *(f"- `{kind}`, {', '.join(columns)}: {reason}." for (kind, reason), columns in why.items()),
        "- `phimoe`, longrope is compared with equal short and long factors: transformers' class reads the short ones "
        "at every length. Such a checkpoint is refused, with this reason.",
        "",
        "## With RoPE, not verified here",
        "",
        "| type | why |",
        "|---|---|",
        *map(row, missing),
        "",
        "## Without RoPE",
        "",
        f"{len(others)} types: {', '.join(f'{count} {scheme}' for scheme, count in schemes.most_common())}. They can "
        "be measured as they are, with `--scale none`; a scaling is refused with the scheme's name.",
        "",
        "| type | model | positions |",
        "|---|---|---|",
        *map(row, others),
        "",
    ]
    return "\n".join(lines)


def documented() -> dict[str, str]:
    """Return the committed document's line of each type."""
    lines = DOCUMENT.read_text(encoding="utf-8").splitlines()
    return {match[1]: line for line in lines if (match := re.match(r"\| `([^`]+)` \|", line))}


def _scheme(text: str) -> str:
    """Shorten "it uses a learned table of absolute positions (transformer.wpe). hint" to its noun."""
    short = re.sub(r"^it (uses|has|is) (a |an )?", "", text.partition(". ")[0])
    return short.partition(" (")[0]


def main() -> None:
    """Examine every type and write the document; end with 1 where something is not as it should be."""
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    findings, wrong = [], []
    for kind in causal_types():
        findings.append(examine(kind))
        wrong += problems(findings[-1])
        print(findings[-1].kind, "; ".join(problems(findings[-1])) or "ok", file=sys.stderr, flush=True)
    DOCUMENT.parent.mkdir(exist_ok=True)
    DOCUMENT.write_text(document(findings), encoding="utf-8")
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
