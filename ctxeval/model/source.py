"""What `--model` names, and its configuration and tokenizer: all that can be known before weights load."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ctxeval.errors import UsageError
from ctxeval.spec import ModelSpec

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase

Kind = Literal["hub", "folder", "gguf", "demo"]
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
KNOWN = "give a Hub id, a folder with config.json, a GGUF file, or demo"


@dataclass(frozen=True)
class Source:
    """Where a model comes from. `location` and `gguf_file` are what transformers' from_pretrained takes."""

    kind: Kind
    name: str
    location: str
    gguf_file: str | None = None

    @property
    def gguf_path(self) -> Path | None:
        """The GGUF file, where the model is one."""
        return Path(self.location, self.gguf_file) if self.gguf_file else None

    @property
    def arguments(self) -> dict[str, str]:
        """Keyword arguments for from_pretrained."""
        return {"gguf_file": self.gguf_file} if self.gguf_file else {}


def resolve_source(name: str) -> Source:
    """Say what a model name is. Reads folder listings and four bytes of a GGUF file; loads nothing.

    Raises:
        UsageError: not a Hub id and no such path, or a path that is no model.
    """
    if name == "demo":
        from ctxeval.demo import MODEL_DIR

        return Source("demo", "demo", str(MODEL_DIR))
    path = Path(name).expanduser()
    if path.is_dir():
        return _folder(name, path)
    if path.exists():
        return _gguf(name, path)
    if path.suffix.lower() == ".gguf":
        raise UsageError(f"no GGUF file {name!r}", KNOWN)
    if HUB_ID.fullmatch(name):
        return Source("hub", name, name)
    raise UsageError(f"no model at {name!r}", KNOWN)


def _folder(name: str, folder: Path) -> Source:
    if (folder / "config.json").is_file():
        return Source("folder", folder.resolve().name, str(folder))
    files = sorted(path for path in folder.iterdir() if path.suffix.lower() == ".gguf")
    if len(files) == 1:
        return _gguf(name, files[0])
    if files:
        raise UsageError(
            f"folder {name!r} has {len(files)} GGUF files", f"name one: {', '.join(path.name for path in files)}"
        )
    raise UsageError(f"folder {name!r} has neither config.json nor a .gguf file", KNOWN)


def _gguf(name: str, path: Path) -> Source:
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise UsageError(f"cannot read {name!r}: {error.strerror}", KNOWN) from error
    if magic != b"GGUF":
        raise UsageError(f"{name!r} is not a GGUF file", f"{KNOWN}; weights in other files are never unpickled")
    return Source("gguf", path.stem, str(path.parent), path.name)


def read_config(spec: ModelSpec) -> PreTrainedConfig:
    """Read the configuration, and see that it is of a causal language model.

    A GGUF file of 49k tokens takes about 3 s (transformers reads its vocabulary too); a second read is free.

    Raises:
        UsageError: no such model or not to be had, a configuration that transformers refuses, an encoder-decoder or
            other non-causal model, or a GGUF file with RoPE scaling that cannot be applied.
    """
    source = resolve_source(spec.name_or_path)
    if spec.revision is not None and source.kind != "hub":
        raise UsageError(f"revision {spec.revision!r} of {spec.name_or_path!r}", "--revision is for Hub ids")
    path = source.gguf_path
    config = copy.deepcopy(_gguf_config(path, path.stat().st_mtime_ns)) if path else _auto_config(spec, source)
    _check_causal(spec, config)
    return config


@lru_cache(maxsize=4)
def _gguf_config(path: Path, modified_ns: int) -> PreTrainedConfig:
    """Read a GGUF file's configuration; `modified_ns` only makes a changed file a new key of the cache."""
    from ctxeval.model.gguf_rope import apply_scaling, native_scaling

    scaling = native_scaling(path)
    config = _auto_config(ModelSpec(str(path)), Source("gguf", path.stem, str(path.parent), path.name))
    if scaling is not None:
        apply_scaling(config, scaling, path)
    return config


def _auto_config(spec: ModelSpec, source: Source) -> PreTrainedConfig:
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig

    try:
        with quiet():
            config: PreTrainedConfig = AutoConfig.from_pretrained(source.location, **_arguments(spec, source))
    # OSError: not there, not to be had, not JSON; ValueError: not a known model type, or code of its own;
    # KeyError: a GGUF file without the metadata of its architecture.
    except (OSError, ValueError, KeyError, StrictDataclassError) as error:
        raise UsageError(
            f"cannot read the configuration of {spec.name_or_path!r}: {reason(error)}", _hint(source)
        ) from error
    return config


def read_tokenizer(spec: ModelSpec) -> PreTrainedTokenizerBase:
    """Read the tokenizer.

    Raises:
        UsageError: no such model, or it has no tokenizer that transformers can read.
    """
    source = resolve_source(spec.name_or_path)
    path = source.gguf_path
    return _gguf_tokenizer(path, path.stat().st_mtime_ns) if path else _auto_tokenizer(spec, source)


@lru_cache(maxsize=4)
def _gguf_tokenizer(path: Path, modified_ns: int) -> PreTrainedTokenizerBase:
    """Read a GGUF file's tokenizer; `modified_ns` as in `_gguf_config`."""
    return _auto_tokenizer(ModelSpec(str(path)), Source("gguf", path.stem, str(path.parent), path.name))


def _auto_tokenizer(spec: ModelSpec, source: Source) -> PreTrainedTokenizerBase:
    from transformers import AutoTokenizer

    try:
        with quiet():
            tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
                source.location, **_arguments(spec, source)
            )
    # TypeError, KeyError: a tokenizer_config.json or a GGUF file without what the tokenizer class wants.
    except (OSError, ValueError, ImportError, KeyError, TypeError) as error:
        raise UsageError(
            f"cannot read the tokenizer of {spec.name_or_path!r}: {reason(error)}", _hint(source)
        ) from error
    return tokenizer


def _arguments(spec: ModelSpec, source: Source) -> dict[str, Any]:
    arguments: dict[str, Any] = {"trust_remote_code": spec.trust_remote_code, **source.arguments}
    if source.kind == "hub" and spec.revision is not None:
        arguments["revision"] = spec.revision
    return arguments


def _hint(source: Source) -> str:
    if source.kind == "hub":
        return "is the id right, and are the network and HF_TOKEN there, or HF_HUB_OFFLINE with a filled cache?"
    return KNOWN


def reason(error: BaseException) -> str:
    """Return the first line of an exception's text, or its type where it has none."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".") if lines else type(error).__name__


def _check_causal(spec: ModelSpec, config: PreTrainedConfig) -> None:
    """Refuse what transformers would load as a causal model without it being one (an encoder, a bare embedding)."""
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    )

    hint = "a decoder-only language model is needed"
    if getattr(config, "is_encoder_decoder", False):
        raise UsageError(f"{spec.name_or_path!r} is an encoder-decoder model ({config.model_type})", hint)
    if spec.trust_remote_code and "AutoModelForCausalLM" in (getattr(config, "auto_map", None) or {}):
        return
    if config.model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise UsageError(f"{spec.name_or_path!r} is no causal language model ({config.model_type})", hint)
    causal: set[str] = set()
    for value in (*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values(), *MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.values()):
        causal.update([value] if isinstance(value, str) else value)
    declared = list(getattr(config, "architectures", None) or [])
    if declared and not causal.intersection(declared):
        raise UsageError(f"{spec.name_or_path!r} is no causal language model ({', '.join(declared)})", hint)


@contextmanager
def quiet() -> Iterator[None]:
    """Keep transformers' progress bars and advice off the terminal; its errors are still shown."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
