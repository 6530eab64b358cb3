"""A gate's checks as JUnit XML, the format that CI servers read test results in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from xml.etree import ElementTree as Xml

from ctxeval.analysis.gate import Gate
from ctxeval.report.gate import asked_text, header_lines, measured_text, reason, verdict_line
from ctxeval.report.text import one_line


def junit_xml(gate: Gate, manifest: Mapping[str, Any]) -> str:
    """Return one test suite with one test case a check, in the order of the policy.

    An inconclusive check is an `error`, not `skipped`: servers show a skipped test as green.
    """
    counts = {
        "tests": str(len(gate.checks)),
        "failures": str(gate.count("fail")),
        "errors": str(gate.count("inconclusive")),
    }
    root = Xml.Element("testsuites", {"name": "ctxeval gate", "time": "0", **counts})
    name = one_line(f"ctxeval gate, {gate.scale}")
    suite = Xml.SubElement(root, "testsuite", {"name": name, **counts, "skipped": "0", "time": "0"})
    for check in gate.checks:
        about = {"name": one_line(check.name), "classname": one_line(f"ctxeval.{gate.scale}.{check.rule}"), "time": "0"}
        case = Xml.SubElement(suite, "testcase", about)
        why = one_line(f"{measured_text(check)}, asked {asked_text(check)}; {reason(check)}")
        if check.state == "fail":
            Xml.SubElement(case, "failure", {"message": why, "type": check.cause}).text = why
        elif check.state == "inconclusive":
            Xml.SubElement(case, "error", {"message": why, "type": f"inconclusive.{check.cause}"}).text = why
    output = Xml.SubElement(suite, "system-out")
    output.text = "\n".join([*header_lines(gate, manifest), verdict_line(gate)])
    Xml.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + Xml.tostring(root, encoding="unicode") + "\n"
