"""A peft adapter, merged into the weights before anything is patched or measured, with proof that it took."""

from __future__ import annotations

import hashlib
import json
import warnings
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ctxeval.errors import RunError, UsageError
from ctxeval.model.source import quiet, reason

if TYPE_CHECKING:
    from transformers import PreTrainedModel

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
#: These prepend learnt tokens or gates: there is nothing to merge, and positions would shift.
NOT_MERGEABLE = {"PROMPT_TUNING", "MULTITASK_PROMPT_TUNING", "P_TUNING", "PREFIX_TUNING", "ADAPTION_PROMPT", "CPT"}
PROBE_TOKENS = 32


@dataclass(frozen=True)
class Adapter:
    """An adapter in a folder; `sha256` is that of its configuration and weights, `kind` peft's name of the method."""

    folder: Path
    kind: str
    sha256: str

    def describe(self) -> dict[str, str]:
        """Return what a manifest says of it."""
        return {"name": self.folder.resolve().name, "kind": self.kind, "sha256": self.sha256}


def read_adapter(path: str) -> Adapter:
    """See that a folder holds an adapter that can be merged, before any weights are loaded.

    Raises:
        UsageError: no adapter, pickled weights only, one that cannot be merged, or peft is not installed.
    """
    folder = Path(path).expanduser()
    hint = "give a folder with adapter_config.json and adapter_model.safetensors, as peft's save_pretrained writes it"
    if find_spec("peft") is None:
        raise UsageError("--adapter needs peft, which is not installed", "pip install 'ctxeval[adapter]'")
    try:
        config = (folder / CONFIG).read_bytes()
        content = json.loads(config)
    except OSError as error:
        raise UsageError(f"no adapter at {path!r}: {CONFIG}: {error.strerror}", hint) from None
    except ValueError:
        raise UsageError(f"adapter {path!r}: {CONFIG} is not JSON", hint) from None
    kind = str(content.get("peft_type", "of unstated type")) if isinstance(content, dict) else "of unstated type"
    if not (folder / WEIGHTS).is_file():
        pickled = sorted(one.name for pattern in ("*.bin", "*.pt*") for one in folder.glob(pattern))
        found = f"only {', '.join(pickled)}: pickled weights are never loaded" if pickled else "no weights"
        raise UsageError(f"adapter {path!r} has no {WEIGHTS}, {found}", "save it with safe_serialization")
    if kind in NOT_MERGEABLE:
        raise UsageError(f"adapter {path!r} is {kind}, which cannot be merged into weights", "LoRA and its kin can")
    with (folder / WEIGHTS).open("rb") as handle:
        weights = hashlib.file_digest(handle, "sha256").digest()
    return Adapter(folder, kind, hashlib.sha256(config + weights).hexdigest())


def merge_adapter(model: PreTrainedModel, adapter: Adapter) -> PreTrainedModel:
    """Return the model with the adapter in its weights.

    Proved on the logits of a short prompt: the adapter changes them, and what the merged weights change is what the
    adapter beside the weights changed, up to half of it. That would not be so where a small adapter is lost in the
    rounding of bf16, or where it changes an embedding that is tied to the head.

    Raises:
        RunError: it does not fit the model, does nothing, or is not the same once it is merged.
    """
    from peft import PeftModel

    where = str(adapter.folder)
    before = _logits(model)
    try:
        with quiet(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what they tell of is checked below, or harmless
            wrapped = PeftModel.from_pretrained(model, where, torch_device=str(model.device))
            _check_complete(wrapped, adapter)
            wrapped.eval()
            beside = _logits(wrapped)
            merged: PreTrainedModel = wrapped.merge_and_unload(safe_merge=True)
    except RunError:
        raise
    # What peft raises where names, shapes or options do not fit has no common type.
    except (ValueError, RuntimeError, TypeError, KeyError, AttributeError, OSError, ImportError) as error:
        raise RunError(
            f"cannot merge adapter {where!r}: {reason(error)}", "was it trained on this model, and saved by peft?"
        ) from error
    merged.requires_grad_(False)
    effect, off = _distance(beside, before), _distance(_logits(merged), beside)
    if not effect > 0:
        raise RunError(f"adapter {where!r} changes nothing: the logits stay what they are", "was it trained?")
    if not off <= effect / 2:
        raise RunError(
            f"adapter {where!r} is not itself once merged: logits are off by {off:.3g}, its whole effect is "
            f"{effect:.3g}",
            "try --dtype fp32; or it changes an embedding that this model ties to its head",
        )
    merged.eval()
    return merged


def _check_complete(wrapped: Any, adapter: Adapter) -> None:
    """See that the file fills every weight of the adapter and leaves none over: peft only warns, or does not."""
    from peft import get_peft_model_state_dict
    from safetensors import safe_open

    with safe_open(adapter.folder / WEIGHTS, framework="pt") as file:
        stored = set(file.keys())
    # Not `auto`: that would ask the Hub whether the vocabulary has grown.
    wanted = set(get_peft_model_state_dict(wrapped, save_embedding_layers=False))
    for lacking, what in ((wanted - stored, "lacks"), (stored - wanted, "has weights that the model has no place for")):
        if lacking:
            raise RunError(
                f"adapter {str(adapter.folder)!r} {what}: {len(lacking)}, among them {min(lacking)}",
                "was it trained on this model?",
            )


def _logits(model: Any) -> Any:
    """Return the logits of a fixed prompt, (tokens, vocabulary) in fp32."""
    import torch

    embedding = model.get_input_embeddings().weight
    ids = (torch.arange(PROBE_TOKENS, device=embedding.device) * 7919 + 1) % embedding.shape[0]
    with torch.no_grad():
        return model(input_ids=ids[None], use_cache=False).logits[0].float()


def _distance(one: Any, other: Any) -> float:
    """Return the root mean square of the difference of two sets of logits."""
    return float((one - other).square().mean().sqrt())
