"""Gates as JUnit XML against the schema of the form that CI servers read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Xml

import pytest
import xmlschema

from ctxeval.analysis.gate import gate_run
from ctxeval.policy import parse_policy
from ctxeval.report.junit import junit_xml
from tests.report.test_gate_report import EVIL, POLICY, manifest, run_cells

SCHEMA = Path(__file__).with_name("junit.xsd")


@pytest.fixture(scope="module")
def schema() -> xmlschema.XMLSchema:
    return xmlschema.XMLSchema(str(SCHEMA))


@pytest.fixture(scope="module")
def text() -> str:
    """A gate with checks that fail, pass and stay open, and with names that try to break out."""
    return junit_xml(
        gate_run(parse_policy({**POLICY, "title": EVIL}, "p"), run_cells(), manifest(EVIL)), manifest(EVIL)
    )


@pytest.mark.parametrize("rules", [POLICY, {"recall": [{"lengths": "8k", "floor": 0.5}]}])
def test_a_gate_is_valid(rules: dict[str, Any], schema: xmlschema.XMLSchema) -> None:
    schema.validate(junit_xml(gate_run(parse_policy(rules, "p"), run_cells(), manifest()), manifest()))


def test_a_hostile_one_is_valid(text: str, schema: xmlschema.XMLSchema) -> None:
    schema.validate(text)
    assert "<failure" in text and "<error" in text


def broken(text: str, change: str) -> str:
    root = Xml.fromstring(text)
    case = root.find("testsuite/testcase")
    failure = root.find(".//failure")
    assert case is not None and failure is not None
    changes: dict[str, Callable[[], object]] = {
        "a case without a name": lambda: case.attrib.pop("name"),
        "an attribute of our own": lambda: case.set("confidence", "0.95"),
        "an element of our own": lambda: Xml.SubElement(case, "inconclusive"),
        "counts that are no numbers": lambda: root[0].set("tests", "many"),
        "a suite without counts": lambda: root[0].attrib.pop("errors"),
        "a time in words": lambda: root[0].set("time", "long"),
        "another root": lambda: setattr(root, "tag", "report"),
        "a child of a failure": lambda: Xml.SubElement(failure, "b"),
        "two outcomes": lambda: Xml.SubElement(failure_case(root), "error"),
    }
    changes[change]()
    return Xml.tostring(root, encoding="unicode")


def failure_case(root: Xml.Element) -> Xml.Element:
    return next(case for case in root.iter("testcase") if case.find("failure") is not None)


@pytest.mark.parametrize(
    "change",
    [
        "a case without a name",
        "an attribute of our own",
        "an element of our own",
        "counts that are no numbers",
        "a suite without counts",
        "a time in words",
        "another root",
        "a child of a failure",
        "two outcomes",
    ],
)
def test_the_schema_refuses(change: str, text: str, schema: xmlschema.XMLSchema) -> None:
    with pytest.raises(xmlschema.XMLSchemaValidationError):
        schema.validate(broken(text, change))
