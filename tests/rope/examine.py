"""Patch a tiny model of one type with every scaling, and compare it with what transformers makes of the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from ctxeval.errors import RunError, UsageError
from ctxeval.model.positions import TOWER_WORDS
from ctxeval.rope.patch import RopePatch
from ctxeval.rope.tables import TableSite
from ctxeval.rope.verify import prove
from tests.rope.references import TOKENS, Reference, references
from tests.rope.zoo import WINDOW, build, scaled, tiny_config

PROMPT = torch.randint(3, 250, (1, TOKENS), generator=torch.Generator().manual_seed(1))
#: Largest difference of logits, absolute, that counts as equal; and of frequencies, relative: two fp32 roundings.
LOGITS = 1e-5
FREQUENCIES = 2.5e-7
#: Ours is the longest context that the proofs are for.
TARGET = 4 * WINDOW
VERIFIED = ("equal", "rounding")


@dataclass
class Finding:
    """What was found of one model type.

    `scheme` says how a type without rotary frequencies knows positions; "" for all others. `outcomes` are by column:
    `equal` (logits within 1e-5), `rounding` (frequencies within two fp32 roundings, and logits within 1e-5 once the
    official ones are copied in), or what is wrong. `failure` is an exception on the way.
    """

    kind: str
    model: str = ""
    tables: tuple[str, ...] = ()
    traits: tuple[str, ...] = ()
    scheme: str = ""
    outcomes: dict[str, str] = field(default_factory=dict)
    temperature: str = ""
    failure: str = ""

    @property
    def verified(self) -> bool:
        """Whether at least one scaling was compared, and all that were compared agree."""
        compared = [outcome for outcome in self.outcomes.values() if not outcome.startswith("no reference")]
        return not self.failure and bool(compared) and all(outcome in VERIFIED for outcome in compared)


def examine(kind: str) -> Finding:
    """Build, patch, compare, restore. What goes wrong is in the finding, not raised."""
    found = Finding(kind)
    try:
        config = tiny_config(kind)
        model = build(config)
        found.model = type(model).__name__
        patch = RopePatch(model)
    except UsageError as error:
        found.scheme = error.message.partition(": ")[2]
        return found
    except Exception as error:  # whatever a type needs that is not here: the reason goes into the document
        found.failure = f"{type(error).__name__}: {' '.join(str(error).split())}"
        return found
    found.tables = tuple(site.label for site in patch.sites)
    found.traits = tuple(_traits(patch))
    try:
        _compare_all(kind, patch, found)
    except Exception as error:
        found.failure = f"{type(error).__name__}: {' '.join(str(error).split())}"
    return found


def _compare_all(kind: str, patch: RopePatch, found: Finding) -> None:
    before, native = everything(patch.model), forward(patch.model, PROMPT[:, :WINDOW])
    for reference in references(kind, patch):
        subject = patch
        if reference.native:
            config = tiny_config(kind)
            set_rope(config, reference.native)
            subject = RopePatch(build(config, patch.model.state_dict()))
        found.outcomes[reference.name] = _compare(kind, subject, reference, found)
    patch.apply("none", target_length=TOKENS)
    if not torch.equal(forward(patch.model, PROMPT[:, :WINDOW]), native):
        found.outcomes["none"] = "none changes logits"
    prove(patch, native_window=WINDOW, target_length=TOKENS)
    patch.restore()
    after = everything(patch.model)
    if before.keys() != after.keys() or not all(_same(before[name], after[name]) for name in before):
        found.outcomes["restore"] = "not restored"
    elif not torch.equal(forward(patch.model, PROMPT[:, :WINDOW]), native):
        found.outcomes["restore"] = "logits are not restored"


def _compare(kind: str, patch: RopePatch, reference: Reference, found: Finding) -> str:
    patch.apply("none", target_length=TOKENS)
    unscaled = forward(patch.model, PROMPT)
    patch.apply(
        reference.method,
        factor=reference.factor,
        native_window=WINDOW,
        target_length=TARGET,
        **reference.options,
    )
    proof = prove(patch, native_window=WINDOW, target_length=TARGET)
    if reference.method == "yarn":
        found.temperature = found.temperature or proof.temperature
    got = forward(patch.model, PROMPT)
    try:
        official, expected = _official(kind, patch, reference)
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        return f"no reference: {type(error).__name__}: {' '.join(str(error).split())}"
    if torch.equal(expected, unscaled):
        return f"no reference: transformers ignores {reference.parameters.get('rope_type', 'rope_theta')} here"
    if difference(got, expected) <= LOGITS:
        return "equal"
    for site in patch.sites:
        if site.label in proof.unused:
            continue
        twin = replace(site, module=official.get_submodule(site.name))
        wanted = twin.inv_freq
        if not torch.allclose(site.inv_freq, wanted, rtol=FREQUENCIES, atol=0):
            worst = float(((site.inv_freq - wanted).abs() / wanted).nan_to_num().max())
            return f"inv_freq differs by {worst:.2g}, logits by {difference(got, expected):.2g}"
        if twin.table is not None:
            site.put_table(twin.table.detach().clone())
        else:
            site.write_inv_freq(wanted)
    left = difference(forward(patch.model, PROMPT), expected)
    return "rounding" if left <= LOGITS else f"logits differ by {left:.2g} at equal frequencies"


def _official(kind: str, patch: RopePatch, reference: Reference) -> tuple[Any, Tensor]:
    """Return the model of the official configuration, with the same weights, and its logits."""
    weights = patch.model.state_dict()
    tables = [site for site in patch.sites if isinstance(site, TableSite)]
    config = tiny_config(kind)
    if tables:
        return _with_official_table(config, tables[0], reference, weights)
    set_rope(config, {**reference.native, **reference.parameters})
    official = build(config, weights)
    return official, forward(official, PROMPT)


def _with_official_table(
    config: Any, site: TableSite, reference: Reference, weights: Mapping[str, Tensor]
) -> tuple[Any, Tensor]:
    """No configuration of these types has a scaling: make their table from transformers' own frequencies for Llama."""
    from transformers import LlamaConfig

    size = 2 * site.inv_freq.numel()
    rope = scaled({"rope_type": "default", "rope_theta": 1e4}, reference.parameters)
    llama = LlamaConfig(head_dim=size, max_position_embeddings=WINDOW, rope_parameters=rope)
    if rope["rope_type"] == "default":
        inv_freq, factor = 1.0 / rope["rope_theta"] ** (torch.arange(0, size, 2).float() / size), 1.0
    else:
        inv_freq, factor = ROPE_INIT_FUNCTIONS[rope["rope_type"]](llama, seq_len=TOKENS)
    angles = torch.arange(TOKENS, dtype=torch.float32)[:, None] * inv_freq
    table = torch.cat([angles.sin(), angles.cos()], dim=1) * factor
    kept = {name: value for name, value in weights.items() if not name.startswith(site.name)}
    official = build(config)
    official.load_state_dict(kept, strict=False)
    module = official.get_submodule(site.name)
    setattr(module, site.attribute, torch.nn.Parameter(table) if site.attribute == "weight" else table)
    return official, forward(official, PROMPT)


def set_rope(config: Any, scaling: Mapping[str, Any]) -> None:
    """Put `scaling` on the rope parameters of a configuration and of its parts, towers excepted."""
    if getattr(config, "rope_parameters", None):
        config.rope_parameters = scaled(config.rope_parameters, scaling)
    if getattr(config, "layer_rope_theta", None):  # Granite with sliding windows: a base a layer, beside the others
        bases = [scaled({"rope_theta": theta}, scaling)["rope_theta"] for theta in config.layer_rope_theta]
        config.layer_rope_theta = bases
    for name in config.sub_configs:
        part = getattr(config, name, None)
        if part is not None and not any(word in name for word in TOWER_WORDS):
            set_rope(part, scaling)


def forward(model: Any, prompt: Tensor) -> Tensor:
    """Return logits (1, tokens, vocabulary) without a cache."""
    with torch.no_grad():
        logits: Tensor = model(input_ids=prompt, use_cache=False).logits
    return logits


def difference(one: Tensor, other: Tensor) -> float:
    """Return the largest absolute difference."""
    return float((one - other).abs().max())


def everything(model: Any) -> dict[str, Any]:
    """Return all weights, buffers and plain attributes that a patch could change."""
    found: dict[str, Any] = {}
    for name, module in model.named_modules():
        for key, value in (*module.named_buffers(recurse=False), *module.named_parameters(recurse=False)):
            found[f"{name}.{key}"] = value.detach().clone()
        for key, value in vars(module).items():
            if isinstance(value, str | int | float | dict) and not key.startswith("_"):
                found[f"{name}.{key}"] = repr(value)
    return found


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return isinstance(other, Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    return bool(one == other)


def _traits(patch: RopePatch) -> Iterator[str]:
    """Say what is unusual about a type's rotary embedding, as its modules show it."""
    modules = list(patch.model.modules())
    sites = patch.sites
    if any(site.prefix for site in sites):
        yield "by layer type"
    if len({id(site.module) for site in sites}) > 1:
        yield f"{len({id(site.module) for site in sites})} rotary modules"
    if any(isinstance(site, TableSite) for site in sites):
        yield "table of sin and cos"
    if any(hasattr(module, "qk_rope_head_dim") for module in modules):
        yield "MLA"
    if any(hasattr(site.module, "mrope_section") for site in sites):
        yield "M-RoPE"
    if any("A_log" in dict(module.named_parameters(recurse=False)) for module in modules):
        yield "with a recurrent part"
    heads = {getattr(module, "head_dim", None) for module in modules} - {None}
    if heads and all(2 * site.inv_freq.numel() < min(heads) for site in sites):
        yield "partial rotary"
    if any(bool((site.inv_freq == 0).any()) for site in sites):
        yield "dimensions without position"


__all__ = ["Finding", "RunError", "examine"]
