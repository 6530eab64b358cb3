"""What two manifests may differ in, what is only flagged, and what makes their figures about different things."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from ctxeval.analysis.likeness import ALWAYS, BY_PROBE, likeness
from tests.analysis.synthetic_runs import manifest

DEMO = Path(__file__).resolve().parents[2] / "results" / "demo" / "run.json"


def changed(path: str, value: Any, base: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return a manifest with one value set, or, for `...`, taken out."""
    other = copy.deepcopy(base or manifest())
    *parents, name = path.split(".")
    part = other
    for parent in parents:
        part = part[parent]
    if value is ...:
        del part[name]
    else:
        part[name] = value
    return other


def names(differences: Any) -> list[str]:
    return [one.name for one in differences]


def test_a_manifest_is_like_itself_and_like_one_that_ran_elsewhere() -> None:
    base = manifest()
    assert likeness(base, base) == likeness(base, {**copy.deepcopy(base), "finished": "later", "platform": "other"})
    found = likeness(base, {**base, "finished": "later"})
    assert not (found.refused or found.flagged or found.free) and found.same_needles


#: path → (another value, the name under which it is shown)
REFUSED: dict[str, tuple[Any, str]] = {
    "identity.schema_version": (2, "schema_version"),
    "identity.scoring_version": (2, "scoring_version"),
    "identity.corpus": ({"name": "demo", "sha256": "d" * 64}, "corpus"),
    "identity.task": ({"name": "needle", "sha256": "u" * 64}, "task"),
    "identity.seed": (1, "seed"),
    "identity.documents": (16, "documents"),
    "identity.trials": (2, "trials"),
    "identity.native_window": (4096, "native_window"),
    "identity.lengths": ([1024, 2048, 8192], "lengths"),
    "identity.depths": ([0, 50, 100], "depths"),
    "identity.plan": ("packed", "plan"),
    "identity.needles_per_context": (10, "needles_per_context"),
    "identity.protocol": ("all", "protocol"),
    "identity.stride": (256, "stride"),
    "identity.chat": (True, "chat"),
    "resolved.perplexity_documents": (8, "perplexity_documents"),
}


def test_every_key_that_is_compared_is_tried_here() -> None:
    assert {name for _, name in REFUSED.values()} == {*ALWAYS, *BY_PROBE["needle"], *BY_PROBE["perplexity"]}


@pytest.mark.parametrize("path", REFUSED)
def test_what_is_refused(path: str) -> None:
    value, name = REFUSED[path]
    found = likeness(manifest(), changed(path, value))
    assert names(found.refused) == [name] and not found.flagged
    assert names(likeness(manifest(), changed(path, ...)).refused) == [name]  # not said: not alike
    gone = changed(path, ...)
    other = {**copy.deepcopy(gone), "finished": "later"}
    assert [str(one) for one in likeness(gone, other).refused] == [f"{name} unknown → unknown"]


def test_how_differences_are_shown() -> None:
    found = likeness(manifest(), changed("identity.corpus", {"name": "demo", "sha256": "d" * 64}))
    assert [str(one) for one in found.refused] == ["corpus sotu (cccccccc) → demo (dddddddd)"]
    found = likeness(manifest(), changed("identity.lengths", [1024, 2048, 8192, 16384]))
    assert [str(one) for one in found.refused] == ["lengths 3 (alone: 4096) → 4 (alone: 8192, 16384)"]
    assert [str(one) for one in likeness(manifest(), changed("identity.seed", 7)).refused] == ["seed 0 → 7"]


def test_a_corpus_is_its_content_not_its_path() -> None:
    moved = changed("identity.corpus", {"name": "/elsewhere/sotu", "sha256": "c" * 64})
    assert not likeness(manifest(), moved).refused


@pytest.mark.parametrize(
    ("path", "value", "name"),
    [
        ("identity.model.dtype", "bf16", "dtype"),
        ("identity.model.device", "cuda", "device"),
        ("identity.model.attention", "eager", "attention"),
        ("identity.model.head", "fp32", "head"),
        ("identity.chunk", 512, "chunk"),
        ("identity.versions.torch", "2.14.0", "torch"),
        ("tokenizer.sha256", "l" * 64, "tokenizer"),
        ("tokenizer", ..., "tokenizer"),
    ],
)
def test_what_is_flagged(path: str, value: Any, name: str) -> None:
    found = likeness(manifest(), changed(path, value))
    assert names(found.flagged) == [name] and not found.refused and not found.free


@pytest.mark.parametrize("name", ["name", "revision", "quantization", "adapter", "fingerprint"])
def test_the_model_is_free(name: str) -> None:
    value = {"name": "tuned", "sha256": "a" * 64} if name == "adapter" else "other"
    found = likeness(manifest(), changed(f"identity.model.{name}", value))
    assert names(found.free) == [name] and not found.refused and not found.flagged
    if name == "adapter":
        assert str(found.free[0]) == "adapter none → tuned (aaaaaaaa)"


def test_the_tokenizer_decides_whether_needles_and_tokens_are_the_same() -> None:
    other = likeness(manifest(), changed("tokenizer.sha256", "l" * 64))
    assert (other.tokenizer, other.same_text, other.same_needles) == ("other", False, False)
    unknown = likeness(manifest(), changed("tokenizer", ...))
    assert (unknown.tokenizer, unknown.same_text, unknown.same_needles) == ("unknown", True, True)
    assert str(unknown.flagged[0]) == "tokenizer kkkkkkkk → unknown"


@pytest.mark.parametrize(
    ("path", "text", "needles"),
    [("identity.depths", True, True), ("identity.plan", True, False), ("identity.seed", False, False)],
)
def test_what_is_still_the_same_in_unlike_runs(path: str, text: bool, needles: bool) -> None:
    found = likeness(manifest(), changed(path, REFUSED[path][0]))
    assert (found.same_text, found.same_needles) == (text, needles)


def test_probes() -> None:
    def only(probe: str) -> dict[str, Any]:
        return changed("spec.probes", [probe])

    found = likeness(manifest(), changed("identity.depths", [0.0, 50.0], only("perplexity")))
    assert not found.refused and names(found.flagged) == ["probes"]  # depths say nothing about perplexity
    assert names(likeness(manifest(), changed("identity.stride", 9, only("perplexity"))).refused) == ["stride"]
    assert not likeness(manifest(), changed("identity.stride", 9, only("needle"))).refused
    found = likeness(only("needle"), only("perplexity"))
    assert [str(one) for one in found.refused] == ["probes needle → perplexity"]


def test_real_manifests() -> None:
    demo = json.loads(DEMO.read_text())
    assert likeness(demo, copy.deepcopy(demo)) == likeness(manifest(), manifest())
    found = likeness(demo, {**demo, "finished": "later"})
    assert not found.refused and found.tokenizer in ("same", "unknown")
    assert {"corpus", "native_window", "lengths", "plan"} <= set(names(likeness(demo, manifest()).refused))


def test_a_manifest_without_anything_is_like_nothing() -> None:
    assert len(likeness({}, {"a": 1}).refused) == len(REFUSED)
    assert len(likeness({"identity": []}, manifest()).refused) == len(REFUSED)
