"""Every command-line option in one place, as reusable annotated types."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ctxeval.cli.config import FLAGS, read_config_file

ENVIRONMENT = (
    "Environment: `CTXEVAL_` and a flag's name gives that option: `CTXEVAL_MODEL`, `CTXEVAL_LEN`, "
    "`CTXEVAL_PPL_DOCS`, … (flag > environment > file > default)."
)
MODEL, ROPE, GRID, PROBE, GATE, OUTPUT = "Model", "RoPE", "Grid", "Probe", "Gate", "Output"


def _load_config(context: typer.Context, value: Path | None) -> Path | None:
    """Let a YAML file provide defaults: click then ranks flag > environment > file > default."""
    if value is None:
        return None
    known = {name for parameter in context.command.params if (name := parameter.name)} - {"config"}
    context.default_map = {**(context.default_map or {}), **read_config_file(value, known)}
    return value


ModelOpt = Annotated[
    str | None,
    typer.Option(
        "-m",
        "--model",
        show_default=False,
        rich_help_panel=MODEL,
        help="Hub id, folder, GGUF file, or `demo` for the bundled model.",
    ),
]
RevisionOpt = Annotated[
    str | None, typer.Option("--revision", rich_help_panel=MODEL, help="Branch, tag or commit on the Hub.")
]
DtypeOpt = Annotated[
    str, typer.Option("--dtype", rich_help_panel=MODEL, help="auto, fp32, bf16 or fp16. auto: bf16 where it is fast.")
]
DeviceOpt = Annotated[str, typer.Option("--device", rich_help_panel=MODEL, help="auto, cpu, cuda[:n] or mps.")]
DeviceMapOpt = Annotated[
    str | None,
    typer.Option("--device-map", rich_help_panel=MODEL, help="Spread over devices by accelerate, e.g. auto."),
]
AttentionOpt = Annotated[
    str | None,
    typer.Option(
        "--attn-implementation",
        rich_help_panel=MODEL,
        help="A transformers attention; default: the fastest proved one.",
    ),
]
AdapterOpt = Annotated[
    str | None,
    typer.Option("--adapter", rich_help_panel=MODEL, help="Folder of a peft adapter (safetensors), merged first."),
]
TrustOpt = Annotated[
    bool,
    typer.Option("--trust-remote-code", rich_help_panel=MODEL, help="Run code that comes with the model. Recorded."),
]
ScaleOpt = Annotated[
    str,
    typer.Option(
        "--scale",
        rich_help_panel=ROPE,
        help="Comma list of none, pi, ntk, ntk-dynamic, ntk-parts, yarn, llama3, longrope, abf.",
    ),
]
LengthOpt = Annotated[
    str | None,
    typer.Option(
        "--len",
        rich_help_panel=ROPE,
        help="Target context length in tokens: 32768 or 32k. Factor = this / native window.",
    ),
]
FactorOpt = Annotated[
    float | None,
    typer.Option("--factor", rich_help_panel=ROPE, help="Scaling factor, where it is not --len / native window."),
]
NativeOpt = Annotated[
    int | None,
    typer.Option("--native-window", rich_help_panel=ROPE, help="Overrides the window read from the configuration."),
]
PretrainOpt = Annotated[
    int | None,
    typer.Option(
        "--pretrain-window", rich_help_panel=ROPE, help="Overrides the window before the checkpoint's own scaling."
    ),
]
ScratchOpt = Annotated[
    bool,
    typer.Option(
        "--from-scratch",
        rich_help_panel=ROPE,
        help="Start from plain RoPE at the pretrain window, not on top of the checkpoint's own scaling.",
    ),
]
RopeOptionOpt = Annotated[
    list[str] | None,
    typer.Option(
        "--rope-option",
        rich_help_panel=ROPE,
        show_default=False,
        help="NAME=VALUE of a scaling, repeatable: beta_fast=16, low_freq_factor=1, dynamic_factor=2 …",
    ),
]
RopeFactorsOpt = Annotated[
    Path | None,
    typer.Option(
        "--rope-factors",
        rich_help_panel=ROPE,
        help="longrope: JSON or YAML with short_factor and long_factor, or one list; default: the checkpoint's.",
    ),
]
ThetaOpt = Annotated[float | None, typer.Option("--rope-theta", rich_help_panel=ROPE, help="New RoPE base, for abf.")]
AttentionFactorOpt = Annotated[
    float | None,
    typer.Option(
        "--attention-factor", rich_help_panel=ROPE, help="Multiplies cos and sin; default for yarn: 0.1 ln s + 1."
    ),
]
BetaFastOpt = Annotated[
    float | None,
    typer.Option("--beta-fast", rich_help_panel=ROPE, help="yarn, ntk-parts: turns above which a pair is kept (32)."),
]
BetaSlowOpt = Annotated[
    float | None,
    typer.Option(
        "--beta-slow", rich_help_panel=ROPE, help="yarn, ntk-parts: turns below which a pair is interpolated (1)."
    ),
]
TruncateOpt = Annotated[
    bool | None,
    typer.Option(
        "--truncate/--no-truncate", rich_help_panel=ROPE, help="yarn, ntk-parts: round the ramp's ends to whole pairs."
    ),
]
LayerTypesOpt = Annotated[
    str | None,
    typer.Option(
        "--layer-types",
        rich_help_panel=ROPE,
        help="Which layers are scaled, where types differ: all, or a comma list; default: the global ones.",
    ),
]
LengthsOpt = Annotated[
    str | None,
    typer.Option(
        "--lengths",
        rich_help_panel=GRID,
        help="Comma list of lengths; default: native × ½, 1, 1¼, 1½, 2, 3, 4 … up to --len.",
    ),
]
DepthsOpt = Annotated[
    str,
    typer.Option(
        "--depths", rich_help_panel=GRID, help="Depths in percent, 0,25,50,75,100, or a count of evenly spaced ones."
    ),
]
DocsOpt = Annotated[
    int, typer.Option("--docs", min=1, rich_help_panel=GRID, help="Documents: the units of all statistics.")
]
PplDocsOpt = Annotated[
    int | None,
    typer.Option("--ppl-docs", min=1, rich_help_panel=GRID, help="Documents for perplexity, where fewer than --docs."),
]
TrialsOpt = Annotated[int, typer.Option("--trials", min=1, rich_help_panel=GRID, help="Needle trials a document.")]
SeedOpt = Annotated[int, typer.Option("--seed", rich_help_panel=GRID, help="Seed of needles and documents.")]
CorpusOpt = Annotated[
    str,
    typer.Option(
        "--corpus",
        rich_help_panel=GRID,
        help="sotu, demo (its held-out part), a text file or folder, or hf:NAME[:CONFIG]:SPLIT[:COLUMN].",
    ),
]
TaskOpt = Annotated[
    str, typer.Option("--task", rich_help_panel=PROBE, help="A task by name (see `ctxeval tasks`) or a YAML file.")
]
PackedOpt = Annotated[
    bool,
    typer.Option(
        "--packed",
        rich_help_panel=PROBE,
        help="Several needles a context: several times faster, checked on an exact subset.",
    ),
]
NeedlesOpt = Annotated[
    int,
    typer.Option(
        "--needles-per-context", min=1, rich_help_panel=PROBE, help="With --packed: at most this many needles."
    ),
]
SubsetOpt = Annotated[
    int,
    typer.Option(
        "--exact-subset", min=0, rich_help_panel=PROBE, help="With --packed: rows a scaling that are repeated unpacked."
    ),
]
ChatOpt = Annotated[bool, typer.Option("--chat", rich_help_panel=PROBE, help="Ask through the model's chat template.")]
ProtocolOpt = Annotated[
    str, typer.Option("--protocol", rich_help_panel=PROBE, help="Perplexity protocol: tail, all or strided.")
]
StrideOpt = Annotated[
    int | None,
    typer.Option(
        "--stride", min=1, rich_help_panel=PROBE, help="For strided: tokens a window advances; default a quarter."
    ),
]
ChunkOpt = Annotated[
    int,
    typer.Option(
        "--chunk", min=1, rich_help_panel=OUTPUT, help="Tokens a forward pass; part of what determines the values."
    ),
]
MinRecallOpt = Annotated[
    float | None,
    typer.Option(
        "--min-recall",
        rich_help_panel=GATE,
        help="From the native window to --len recall must be at least this share: else exit 1, if undecided 4.",
    ),
]
MaxRatioOpt = Annotated[
    float | None,
    typer.Option(
        "--max-ratio",
        rich_help_panel=GATE,
        help="From the native window to --len the ratio must be at most this: else exit 1, if undecided 4.",
    ),
]
OutputOpt = Annotated[
    Path | None,
    typer.Option("-o", "--output", rich_help_panel=OUTPUT, help="Run folder; default results/MODEL/TIME."),
]
ResumeOpt = Annotated[
    Path | None,
    typer.Option(
        "--resume", rich_help_panel=OUTPUT, help="Finish the run in this folder; its options are taken from there."
    ),
]
DryRunOpt = Annotated[
    bool, typer.Option("--dry-run", rich_help_panel=OUTPUT, help="Say what would be done and what it costs, and stop.")
]
FormatOpt = Annotated[
    str, typer.Option("--format", rich_help_panel=OUTPUT, help="What stdout gets: table, md, csv or json.")
]
ConfigOpt = Annotated[
    Path | None,
    typer.Option(
        "-c",
        "--config",
        is_eager=True,
        callback=_load_config,
        rich_help_panel=OUTPUT,
        help="YAML file of options (flag > environment > file > default).",
    ),
]
VerboseOpt = Annotated[
    bool, typer.Option("-v", "--verbose", rich_help_panel=OUTPUT, help="A line for each unit as it is measured.")
]
QuietOpt = Annotated[bool, typer.Option("-q", "--quiet", rich_help_panel=OUTPUT, help="Nothing on stderr but errors.")]


#: Parameter name → (type, default): the defaults of every evaluating command.
OPTIONS: dict[str, tuple[Any, Any]] = {
    "model": (ModelOpt, None),
    "scale": (ScaleOpt, "none"),
    "length": (LengthOpt, None),
    "factor": (FactorOpt, None),
    "native_window": (NativeOpt, None),
    "pretrain_window": (PretrainOpt, None),
    "from_scratch": (ScratchOpt, False),
    "rope_option": (RopeOptionOpt, None),
    "rope_factors": (RopeFactorsOpt, None),
    "rope_theta": (ThetaOpt, None),
    "attention_factor": (AttentionFactorOpt, None),
    "beta_fast": (BetaFastOpt, None),
    "beta_slow": (BetaSlowOpt, None),
    "truncate": (TruncateOpt, None),
    "layer_types": (LayerTypesOpt, None),
    "lengths": (LengthsOpt, None),
    "depths": (DepthsOpt, "9"),
    "documents": (DocsOpt, 16),
    "perplexity_documents": (PplDocsOpt, None),
    "trials": (TrialsOpt, 1),
    "seed": (SeedOpt, 0),
    "corpus": (CorpusOpt, "sotu"),
    "task": (TaskOpt, "needle"),
    "packed": (PackedOpt, False),
    "needles_per_context": (NeedlesOpt, 10),
    "exact_subset": (SubsetOpt, 12),
    "chat": (ChatOpt, False),
    "protocol": (ProtocolOpt, "tail"),
    "stride": (StrideOpt, None),
    "revision": (RevisionOpt, None),
    "dtype": (DtypeOpt, "auto"),
    "device": (DeviceOpt, "auto"),
    "device_map": (DeviceMapOpt, None),
    "attn_implementation": (AttentionOpt, None),
    "trust_remote_code": (TrustOpt, False),
    "adapter": (AdapterOpt, None),
    "chunk": (ChunkOpt, 1024),
    "min_recall": (MinRecallOpt, None),
    "max_ratio": (MaxRatioOpt, None),
    "output": (OutputOpt, None),
    "resume": (ResumeOpt, None),
    "dry_run": (DryRunOpt, False),
    "format": (FormatOpt, "table"),
    "config": (ConfigOpt, None),
    "verbose": (VerboseOpt, False),
    "quiet": (QuietOpt, False),
}
#: Options of scalings that have a flag of their own; --rope-option takes every one.
ROPE_FLAGS = ("rope_theta", "attention_factor", "beta_fast", "beta_slow", "truncate")
NEEDLE = ("depths", "trials", "task", "packed", "needles_per_context", "exact_subset", "chat", "min_recall")
PERPLEXITY = ("protocol", "stride", "max_ratio")
SHARED = tuple(name for name in OPTIONS if name not in (*NEEDLE, *PERPLEXITY, "perplexity_documents"))


def _name_variables() -> None:
    """Let the environment variable CTXEVAL_<FLAG> give every option: CTXEVAL_MODEL, CTXEVAL_LEN, CTXEVAL_PPL_DOCS."""
    flags = {parameter: flag for flag, parameter in FLAGS.items()}
    for name, (alias, _) in OPTIONS.items():
        (option,) = alias.__metadata__
        option.envvar = f"CTXEVAL_{flags.get(name, name).replace('-', '_').upper()}"
        option.show_envvar = False  # forty times the same rule: said once, below the options


_name_variables()
