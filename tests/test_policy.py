"""A policy says what it checks, or is refused: nothing in the file is silently ignored."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from ctxeval.errors import UsageError
from ctxeval.policy import Policy, Span, json_schema, load_policy, parse_depth_span, parse_policy, parse_span

FLOOR = {"lengths": "8k", "floor": 0.9}


def test_spans() -> None:
    assert parse_span("8k") == Span((8192,))
    assert parse_span(["4k", 8192, "target"]) == Span((4096, 8192, "target"))
    assert parse_span("4k..32k") == Span((), 4096, 32768)
    assert parse_span("native..target") == Span((), "native", "target")
    assert parse_span("..native") == Span((), None, "native")
    assert parse_span("16k..") == Span((), 16384, None)
    assert parse_depth_span("25..75") == Span((), 25.0, 75.0)
    assert parse_depth_span([0, 50]) == Span((0.0, 50.0))


def test_defaults_and_values() -> None:
    policy = parse_policy({"recall": [FLOOR]}, "p.yaml")
    assert (policy.confidence, policy.min_documents, policy.recall[0].floor) == (0.95, 8, 0.9)


#: name → (content, what the one line must say)
REFUSED: dict[str, tuple[Any, tuple[str, ...]]] = {
    "empty": ({}, ("p.yaml", "no policy", "recall")),
    "empty file": (None, ("NoneType",)),
    "a list": ([FLOOR], ("list",)),
    "nothing to check": ({"confidence": 0.9}, ("asks for nothing", "min_effective_length")),
    "only empty lists": ({"recall": [], "perplexity": []}, ("asks for nothing",)),
    "unknown key": ({"recal": [FLOOR]}, ("unknown key in p.yaml 'recal'", "Did you mean 'recall'")),
    "unknown key below": (
        {"recall": [{**FLOOR, "dephts": "0..50"}]},
        ("recall[0] 'dephts'", "Did you mean 'depths'"),
    ),
    "unknown key of a part": ({"short_context": {"max_ration": 1.1}}, ("short_context 'max_ration'", "'max_ratio'")),
    "misspelt instead of given": ({"recall": [{"lengths": "8k", "flor": 0.9}]}, ("'flor'", "Did you mean 'floor'")),
    "floor of NaN": ({"recall": [{"lengths": "8k", "floor": math.nan}]}, ("recall[0].floor is nan",)),
    "floor of 1": ({"recall": [{"lengths": "8k", "floor": 1}]}, ("recall[0].floor is 1", "less than 1")),
    "floor of 0": ({"recall": [{"lengths": "8k", "floor": 0}]}, ("recall[0].floor is 0", "greater than 0")),
    "floor in percent": ({"recall": [{"lengths": "8k", "floor": 90}]}, ("floor is 90", "less than 1")),
    "floor is text": ({"recall": [{"lengths": "8k", "floor": "0.9"}]}, ("floor is '0.9'", "number")),
    "floor is a truth value": ({"recall": [{"lengths": "8k", "floor": True}]}, ("floor is True", "number")),
    "floor missing": ({"recall": [{"lengths": "8k"}]}, ("recall[0].floor", "required")),
    "ratio of infinity": ({"perplexity": [{"lengths": "8k", "max_ratio": math.inf}]}, ("max_ratio is inf", "finite")),
    "negative ratio": ({"perplexity": [{"lengths": "8k", "max_ratio": -1}]}, ("perplexity[0].max_ratio is -1",)),
    "inverted lengths": ({"recall": [{**FLOOR, "lengths": "8k..4k"}]}, ("'8k..4k' ends before it begins",)),
    "inverted depths": ({"recall": [{**FLOOR, "depths": "75..25"}]}, ("'75..25' ends before it begins",)),
    "depth of NaN": ({"recall": [{**FLOOR, "depths": math.nan}]}, ("depth nan is outside",)),
    "length of zero": ({"recall": [{**FLOOR, "lengths": 0}]}, ("length '0'", "positive")),
    "length is a word": ({"recall": [{**FLOOR, "lengths": "nativ"}]}, ("length 'nativ'", "native or target")),
    "no lengths": ({"recall": [{**FLOOR, "lengths": []}]}, ("no lengths",)),
    "depth beyond": ({"recall": [{**FLOOR, "depths": "0..150"}]}, ("depth 150 is outside 0 to 100",)),
    "confidence of 1": ({"recall": [FLOOR], "confidence": 1.0}, ("confidence is 1.0", "less than 1")),
    "confidence in percent": ({"recall": [FLOOR], "confidence": 95}, ("confidence is 95", "less than 1")),
    "confidence of NaN": ({"recall": [FLOOR], "confidence": math.nan}, ("confidence is nan",)),
    "one document": ({"recall": [FLOOR], "min_documents": 1}, ("min_documents is 1", "greater than or equal to 2")),
    "guard without a bound": ({"short_context": {}}, ("short_context", "asks for nothing")),
    "effective length": ({"min_effective_length": -4}, ("length '-4'", "positive")),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_policy_is_refused(name: str) -> None:
    data, wanted = REFUSED[name]
    with pytest.raises(UsageError) as caught:
        parse_policy(data, "p.yaml")
    assert "\n" not in str(caught.value)
    for text in wanted:
        assert text in str(caught.value)


def test_the_schema_allows_what_the_policy_allows() -> None:
    schema = json_schema()
    assert set(schema["properties"]) == set(Policy.model_fields)
    assert schema["additionalProperties"] is False
    floor = schema["$defs"]["RecallFloor"]
    assert floor["additionalProperties"] is False and set(floor["required"]) == {"lengths", "floor"}
    assert floor["properties"]["floor"]["exclusiveMaximum"] == 1
    assert [one["type"] for one in floor["properties"]["lengths"]["anyOf"]] == ["integer", "string", "array"]


@pytest.mark.parametrize("name", ["ship", "smoke"])
def test_shipped_policies(name: str) -> None:
    policy = load_policy(name)
    assert policy == load_policy(str(Path(__file__).parent.parent / "tasks" / "gates" / f"{name}.yaml"))
    assert policy.title and policy.recall and policy.perplexity


def test_an_unknown_name() -> None:
    with pytest.raises(UsageError, match="unknown policy 'shp'. Did you mean 'ship'"):
        load_policy("shp")


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        (b"recall: [{lengths: 8k, floor: 0.9}]\nrecall: [{lengths: 4k, floor: 0.5}]\n", "key 'recall' is given twice"),
        (b"recall: [{lengths: 8k, floor: 0.9, floor: 0.1}]\n", "key 'floor' is given twice"),
        (b"recall: [\n", "cannot read the policy"),
        (b"\xff\xfe\x00", "cannot read the policy"),
        (b"recall: [{lengths: 8k, floor: .nan}]\n", "recall[0].floor is nan"),
        (b"!!python/object/apply:os.getcwd []\n", "cannot read the policy"),
        (b"? [a, b]\n: 1\n", "policy"),
        (b"{1: 2}\n", "1"),
    ],
)
def test_files_that_are_refused(tmp_path: Path, content: bytes, wanted: str) -> None:
    path = tmp_path / "p.yaml"
    path.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        load_policy(str(path))
    assert wanted in str(caught.value) and "\n" not in str(caught.value)


def test_no_file() -> None:
    with pytest.raises(UsageError, match="cannot read the policy nowhere.yaml"):
        load_policy("nowhere.yaml")
