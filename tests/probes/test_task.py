"""Tasks are checked before anything runs, and a needle is a pure function of where it stands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from ctxeval.errors import UsageError
from ctxeval.probes.task import available_tasks, load_task, make_needle, parse_task

WHERE = {"seed": 0, "document": 3, "trial": 1, "site": 517}


def data(**changes: Any) -> dict[str, Any]:
    return yaml.safe_load(available_tasks()["needle"].read_text(encoding="utf-8")) | changes


def test_a_needle_is_the_same_whenever_and_however_often_it_is_made() -> None:
    task = load_task("needle")
    first = make_needle(task, **WHERE)
    for site in (1, 99, 4000):
        make_needle(task, **{**WHERE, "site": site})
    assert make_needle(task, **WHERE) == first
    assert first.needle_id == "3.1.517"


@pytest.mark.parametrize("coordinate", ["seed", "document", "trial", "site"])
def test_each_coordinate_gives_other_needles(coordinate: str) -> None:
    task = load_task("needle")
    made = {
        (needle.wording, needle.key, needle.value)
        for needle in (make_needle(task, **{**WHERE, coordinate: value}) for value in range(40))
    }
    assert len(made) == 40


def test_another_task_gives_other_needles() -> None:
    one = make_needle(load_task("needle"), **WHERE)
    other = make_needle(parse_task(data(name="other"), "other"), **WHERE)
    assert (one.wording, one.key, one.value) != (other.wording, other.key, other.value)


def test_values_use_all_digits_and_the_asked_multiples() -> None:
    task = load_task("needle")
    values = [make_needle(task, **{**WHERE, "site": site}).value for site in range(500)]
    assert all(len(value) == 5 and int(value) % 3 == 0 for value in values)
    assert {value[0] for value in values} == set("123456789")


def test_the_statement_gives_the_value_and_the_question_does_not() -> None:
    task = load_task("needle")
    for site in range(200):
        needle = make_needle(task, **{**WHERE, "site": site})
        assert needle.value in needle.statement
        assert needle.key in needle.statement
        assert needle.key in needle.question
        assert needle.value not in needle.question + needle.lead
        assert needle.statement == f"{needle.lead} {needle.value}."


def test_a_value_that_the_text_contains_is_not_used() -> None:
    task = load_task("needle")
    first = make_needle(task, **WHERE)
    second = make_needle(task, **WHERE, forbidden=f"in the year {first.value} we")
    assert second.value != first.value
    assert (second.wording, second.key) == (first.wording, first.key)
    assert make_needle(task, **WHERE, forbidden="no number here") == first


def test_a_text_with_every_value_is_an_error() -> None:
    task = parse_task(data(value={"kind": "digits", "digits": 3, "multiple_of": 50}), "small")
    with pytest.raises(UsageError, match="contains every value that task 'needle' tried"):
        make_needle(task, **WHERE, forbidden=" ".join(str(value) for value in range(1000)))


def test_an_unknown_task_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UsageError, match="unknown task 'neddle'.*Did you mean 'needle'"):
        load_task("neddle")


def test_a_task_may_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(data(name="mine")), encoding="utf-8")
    assert load_task(str(path)).name == "mine"
    path.write_text("wordings: [", encoding="utf-8")
    with pytest.raises(UsageError, match="cannot read the task"):
        load_task(str(path))
    with pytest.raises(UsageError, match="cannot read the task"):
        load_task(str(tmp_path / "absent.yaml"))


def test_the_content_of_a_task_decides_its_hash() -> None:
    assert parse_task(data(), "a").sha256 == parse_task(data(), "b").sha256
    assert parse_task(data(keys=["lamp"]), "a").sha256 != parse_task(data(), "a").sha256


def wording(**changes: Any) -> dict[str, Any]:
    form = {"statement": "The {key} is {value}.", "question": "What is the {key}?", "lead": "The {key} is"} | changes
    return {"wordings": [form]}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"colour": "red"}, "fields"),
        ({"value": {"kind": "words", "digits": 5, "multiple_of": 1}}, "value is"),
        ({"value": {"kind": "digits", "digits": 2, "multiple_of": 1}}, "digits must be 3 to 12"),
        ({"value": {"kind": "digits", "digits": 5, "multiple_of": 0}}, "multiple_of at least 1"),
        ({"value": {"kind": "digits", "digits": 3, "multiple_of": 5000}}, "multiple_of at least 1"),
        ({"value": {"kind": "digits", "digits": True, "multiple_of": 1}}, "digits must be 3 to 12"),
        ({"wordings": None}, "0 wordings"),
        ({"wordings": ["The {key} is {value}."]}, "each wording has"),
        ({"keys": []}, "0 keys"),
        ({"keys": "lamp"}, "0 keys"),
        ({"keys": ["lamp", "lamp"]}, "keys unique"),
        ({"keys": ["lamp", {"a": 1}]}, "keys unique"),
        (wording(statement="The {key} is there."), "must be in it"),
        (wording(question="What is it?"), "must be in it"),
        (wording(lead="The {key} is {value}, as"), "must not give the value away"),
        (wording(lead="The {colour} {key} is"), "only {key} and {value}"),
        (wording(lead="The {key is"), "only {key} and {value}"),
        (wording(lead=5), "are text"),
    ],
)
def test_what_is_not_a_task_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_task(data() | changes, "mine.yaml")


def test_a_file_that_is_no_mapping_is_refused() -> None:
    with pytest.raises(UsageError, match="fields list"):
        parse_task(["needle"], "mine.yaml")
