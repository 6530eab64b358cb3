"""Are two runs alike enough to be compared? What their manifests say differs, and what that means."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Tokenizer = Literal["same", "other", "unknown"]
UNKNOWN = "unknown"

#: Keys of the identity that must agree, in any run, and in runs that both have the probe.
ALWAYS = ("schema_version", "scoring_version", "corpus", "seed", "documents", "native_window", "lengths")
BY_PROBE = {
    "needle": ("task", "trials", "depths", "plan", "needles_per_context", "chat"),
    "perplexity": ("protocol", "stride", "perplexity_documents"),
}
#: With these unlike, the documents are still the same text.
SAME_TEXT = frozenset({"task", "trials", "depths", "plan", "needles_per_context", "chat", *BY_PROBE["perplexity"]})
#: With these unlike, the needles that both asked for are still the same.
SAME_NEEDLES = frozenset({"trials", "depths", *BY_PROBE["perplexity"]})
HOW_IT_RAN = ("dtype", "device", "attention", "head")
WHO_IT_IS = ("name", "revision", "quantization", "adapter", "fingerprint")

_Missing = object()


@dataclass(frozen=True)
class Difference:
    """Something in which two runs differ, as it is shown."""

    name: str
    baseline: str
    candidate: str

    def __str__(self) -> str:
        return f"{self.name} {self.baseline} → {self.candidate}"


@dataclass(frozen=True)
class Likeness:
    """What differs between two runs.

    `refused`: the figures would not be about the same thing. `flagged`: they are, but something besides the model and
    its scaling may have moved them. `free`: the model itself, which is what a comparison is for.
    """

    refused: tuple[Difference, ...] = ()
    flagged: tuple[Difference, ...] = ()
    free: tuple[Difference, ...] = ()
    tokenizer: Tokenizer = "same"

    @property
    def same_text(self) -> bool:
        """Whether document n is the same text in both, cut by the same tokenizer."""
        return self.tokenizer != "other" and {one.name for one in self.refused} <= SAME_TEXT

    @property
    def same_needles(self) -> bool:
        """Whether needles of one id are one needle, in the same text."""
        return self.same_text and {one.name for one in self.refused} <= SAME_NEEDLES


def likeness(baseline: Mapping[str, Any], candidate: Mapping[str, Any]) -> Likeness:
    """Compare two manifests (the content of run.json); what a manifest does not say is unknown, and never alike."""
    if baseline == candidate:
        return Likeness()
    one, other = _identity(baseline), _identity(candidate)
    probes = [set(_part(manifest, "spec").get("probes") or BY_PROBE) for manifest in (baseline, candidate)]
    shared = probes[0] & probes[1]
    asked = [key for probe, keys in BY_PROBE.items() if probe in shared for key in keys]
    refused = _differences(one, other, [*ALWAYS, *asked])
    if not shared:
        refused.append(Difference("probes", _list(probes[0]), _list(probes[1])))
    flagged = [] if probes[0] == probes[1] or not shared else [Difference("probes", _list(probes[0]), _list(probes[1]))]
    flagged += _differences(_part(one, "model"), _part(other, "model"), HOW_IT_RAN, optional=True)
    hashes = [_hash_of_tokenizer(manifest) for manifest in (baseline, candidate)]
    tokenizer: Tokenizer = "unknown" if None in hashes else "same" if hashes[0] == hashes[1] else "other"
    if tokenizer != "same":
        flagged.append(Difference("tokenizer", *(found[:8] if found else UNKNOWN for found in hashes)))
    flagged += _differences(one, other, ["chunk"], optional=True)
    versions = _part(one, "versions"), _part(other, "versions")
    flagged += _differences(*versions, sorted({*versions[0], *versions[1]}), optional=True)
    free = _differences(_part(one, "model"), _part(other, "model"), WHO_IT_IS, optional=True)
    return Likeness(tuple(refused), tuple(flagged), tuple(free), tokenizer)


def _identity(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return the identity, with the number of perplexity documents, which only the resolved part tells."""
    resolved = _part(manifest, "resolved")
    more = {key: resolved[key] for key in ("perplexity_documents",) if key in resolved}
    return {**_part(manifest, "identity"), **more}


def _part(manifest: Mapping[str, Any], name: str) -> dict[str, Any]:
    part = manifest.get(name)
    return dict(part) if isinstance(part, Mapping) else {}


def _differences(
    one: Mapping[str, Any], other: Mapping[str, Any], keys: Iterable[str], optional: bool = False
) -> list[Difference]:
    """Name the keys whose values differ; a key that neither has differs too, unless it is `optional`."""
    found = []
    for key in keys:
        values = one.get(key, _Missing), other.get(key, _Missing)
        if values == (_Missing, _Missing):
            found += [] if optional else [Difference(key, UNKNOWN, UNKNOWN)]
        elif _essence(values[0]) != _essence(values[1]):
            found.append(Difference(key, *(_shown(value, key, values) for value in values)))
    return found


def _essence(value: Any) -> Any:
    # Corpus, task and adapter are what their content is: a path may differ between machines.
    return value.get("sha256", value) if isinstance(value, Mapping) else value


def _shown(value: Any, key: str, both: tuple[Any, ...]) -> str:
    if value is _Missing:
        return "none" if key == "adapter" else UNKNOWN
    if isinstance(value, Mapping):
        return f"{value.get('name', UNKNOWN)} ({str(value.get('sha256') or UNKNOWN)[:8]})"
    if isinstance(value, (list, tuple)) and all(isinstance(one, (list, tuple)) for one in both):
        only = [one for one in value if one not in next(two for two in both if two is not value)]
        return f"{len(value)}" + (f" (alone: {', '.join(f'{one:g}' for one in only)})" if only else "")
    if key == "fingerprint":
        return str(value)[:8]
    return value if isinstance(value, str) and value else json.dumps(value)


def _list(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


def _hash_of_tokenizer(manifest: Mapping[str, Any]) -> str | None:
    found = _part(manifest, "tokenizer").get("sha256")
    return str(found) if found else None
