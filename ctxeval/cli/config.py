"""Options from a YAML file."""

from __future__ import annotations

from collections.abc import Set
from pathlib import Path
from typing import Any

from ctxeval.errors import UsageError, unknown

#: Flags whose name differs from the parameter they set.
_FLAGS = {"len": "length", "docs": "documents", "ppl-docs": "perplexity_documents"}
#: Flags that may be repeated: a text, a list of them, or `name: value` pairs.
_REPEATED = {"rope_option"}


def read_config_file(path: Path, known: Set[str]) -> dict[str, Any]:
    """Read `flag: value` pairs, named as the flags are, with or without leading dashes.

    Raises:
        UsageError: unreadable, not a mapping, or an option that the command does not have.
    """
    import yaml

    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UsageError(f"cannot read the configuration {path}: {error}", "give a YAML file of options") from None
    if not isinstance(data, dict):
        raise UsageError(f"{path} holds {type(data).__name__}, not options", "write lines such as `len: 32k`")
    values: dict[str, Any] = {}
    for name, value in data.items():
        flag = str(name).lstrip("-")
        parameter = _FLAGS.get(flag, flag.replace("-", "_"))
        if parameter not in known:
            names = {parameter: flag for flag, parameter in _FLAGS.items()}
            raise unknown(f"option in {path}", str(name), [names.get(one, one.replace("_", "-")) for one in known])
        if parameter in _REPEATED and value is not None:
            pairs: Any = [f"{key}={one}" for key, one in value.items()] if isinstance(value, dict) else value
            values[parameter] = pairs if isinstance(pairs, list) else [str(pairs)]
        elif value is not None:
            # The comma at the end keeps a list of one a list: `depths: [50]` is one depth, `depths: 50` a count.
            values[parameter] = "".join(f"{item}," for item in value) if isinstance(value, list) else value
    return values
