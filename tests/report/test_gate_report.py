"""What a gate prints: failed checks first, 80 columns, formats that CI servers read, and no markup of the run's own."""

from __future__ import annotations

import json
from typing import Any
from xml.etree import ElementTree as Xml

import numpy as np
import pandas as pd
import pytest

from ctxeval.analysis.gate import Gate, gate_run
from ctxeval.policy import parse_policy
from ctxeval.report.gate import gate_json, gate_lines, step_summary, workflow_commands
from ctxeval.report.junit import junit_xml
from tests.analysis.synthetic_cells import frame, needle_cells, perplexity_cells

LENGTHS = (4096, 8192, 16384, 32768)
EVIL = 'x</testcase>|<script>alert("a")</script>\n::error::\x1b[31m\ud800'
POLICY: dict[str, Any] = {
    "title": "All of it",
    "recall": [
        {"lengths": "..16k", "floor": 0.8},
        {"lengths": "16k", "floor": 0.95, "depths": "12.5..87.5"},
        {"lengths": "64k", "floor": 0.5},
    ],
    "perplexity": [{"lengths": "8k..32k", "max_ratio": 1.05}],
    "min_effective_length": "16k",
    "no_blind_spot_up_to": "16k",
    "short_context": {"min_recall_share": 0.85, "max_ratio": 1.05},
}


def manifest(name: str = "smol") -> dict[str, Any]:
    resolved = {
        "native_window": 8192,
        "target": 32768,
        "lengths": list(LENGTHS),
        "scalings": [{"label": "none"}, {"label": "yarn"}],
        "plan": "exact",
        "documents": 24,
    }
    return {
        "resolved": resolved,
        "model": {"name": name},
        "dtype": "bf16",
        "device": "cpu",
        "finished": "x",
        "planned_rows": 0,
    }


def run_cells() -> pd.DataFrame:
    generator = np.random.default_rng(3)

    def recall(scale: str, length: int) -> float:
        return 0.98 if length <= 8192 else 0.55

    hits = needle_cells(generator, recall, ("none", "yarn"), LENGTHS, 24, correlation=0.05)
    return frame(hits, perplexity_cells(generator, lambda scale, length: 0.02, ("none", "yarn"), LENGTHS, 16))


@pytest.fixture(scope="module")
def found() -> Gate:
    return gate_run(parse_policy(POLICY, "p.yaml"), run_cells(), manifest())


def test_the_table(found: Gate) -> None:
    lines = gate_lines(found, manifest())
    assert max(map(len, lines)) <= 80
    words = [line[:4] for line in lines if line[:6] in ("FAIL  ", "OPEN  ", "PASS  ")]
    assert words == sorted(words, key=["FAIL", "OPEN", "PASS"].index) and len(words) == len(found.checks)
    failed, open_ = found.count("fail"), found.count("inconclusive")
    assert failed and open_
    assert lines[-1] == f"FAIL {failed} of {len(found.checks)} checks, {open_} inconclusive (exit 1)"
    assert any("no needle rows of yarn at 64K; it was measured at 4K, 8K, 16K, 32K" in line for line in lines)
    fail = lines.index(next(line for line in lines if line.startswith("FAIL  recall at 16K")))
    assert "≥ 80 %" in lines[fail] and "credibly below 80 %, over 24 documents" in lines[fail + 1]


@pytest.mark.parametrize(
    ("rules", "last"),
    [
        ([{"lengths": "8k", "floor": 0.5}], "PASS 1 of 1 checks (exit 0)"),
        ([{"lengths": "8k", "floor": 0.5}, {"lengths": "64k", "floor": 0.5}], "INCONCLUSIVE 1 of 2 checks (exit 4)"),
        ([{"lengths": "16k..32k", "floor": 0.9}, {"lengths": "4k", "floor": 0.5}], "FAIL 2 of 3 checks (exit 1)"),
    ],
)
def test_the_last_line(rules: Any, last: str) -> None:
    result = gate_run(parse_policy({"recall": rules}, "p.yaml"), run_cells(), manifest())
    assert gate_lines(result, manifest())[-1] == last


def test_reasons_name_what_is_wrong() -> None:
    cells = run_cells()
    mine = cells.index[(cells["scale"] == "yarn") & (cells["context_length"] == 4096)]
    cells.loc[mine[0], ["status", "correct"]] = ["nan", pd.NA]
    cells.loc[mine[-1], ["status", "nll"]] = ["oom", np.nan]
    policy = {
        "recall": [{"lengths": "4k", "floor": 0.5}, {"lengths": "8k", "floor": 0.96}],
        "perplexity": [{"lengths": "4k", "max_ratio": 1.2}],
        "min_documents": 9,
    }
    text = "\n".join(gate_lines(gate_run(parse_policy(policy, "p"), cells, manifest()), manifest()))
    assert "1 row is NaN: a model that emits NaN never passes" in text
    assert "1 row has no result (1 oom)" in text
    assert "undecided with 24 documents: about" in text
    few = gate_run(parse_policy({**policy, "min_documents": 30}, "p"), run_cells(), manifest())
    assert "24 documents, the policy asks for 30: measure 6 more" in "\n".join(gate_lines(few, manifest()))


def test_json(found: Gate) -> None:
    report = json.loads(json.dumps(gate_json(found, manifest()), allow_nan=False))
    assert (report["verdict"], report["exit_code"], report["scale"]) == ("fail", 1, "yarn")
    assert report["policy"]["recall"][0] == {"lengths": "..16k", "floor": 0.8, "depths": None}
    assert len(report["checks"]) == len(found.checks) and report["checks"][0]["state"] == "fail"
    missing = next(one for one in report["checks"] if one["cause"] == "absent")
    assert missing["value"] is None and "64K" in missing["reason"]


def test_junit(found: Gate) -> None:
    root = Xml.fromstring(junit_xml(found, manifest()))
    (suite,) = root
    assert (root.tag, suite.tag) == ("testsuites", "testsuite")
    cases = suite.findall("testcase")
    counts = (len(cases), len(suite.findall("testcase/failure")), len(suite.findall("testcase/error")))
    assert counts == (len(found.checks), found.count("fail"), found.count("inconclusive"))
    for element in (root, suite):
        assert tuple(int(element.attrib[name]) for name in ("tests", "failures", "errors")) == counts
    assert not root.findall(".//skipped")  # shown as green
    names = [(one.attrib["classname"], one.attrib["name"]) for one in cases]
    assert len(set(names)) == len(names) and names[0] == ("ctxeval.yarn.recall[0]", "recall at 4K")
    assert all(set(one.attrib) == {"name", "classname", "time"} for one in cases)
    assert {one.attrib["type"] for one in root.iter("failure")} == {"bound"}
    # What a schema for this format orders: test cases, then system-out; at most one outcome a case.
    assert [one.tag for one in suite] == ["testcase"] * len(cases) + ["system-out"]
    assert all(len(one) <= 1 for one in cases)


def test_step_summary(found: Gate) -> None:
    text = step_summary(found, manifest())
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert text.startswith("### ctxeval gate: FAIL") and text.endswith("\n\n")
    assert len(rows) == len(found.checks) + 1 and rows[1].startswith("| FAIL | recall at 16K |")
    assert {row.count("|") for row in rows} == {6}


def test_workflow_commands(found: Gate) -> None:
    lines = workflow_commands(found)
    assert [line.split(" ")[0] for line in lines] == ["::error"] * found.count("fail") + ["::warning"] * found.count(
        "inconclusive"
    )
    assert lines[0].startswith("::error title=ctxeval gate%2C yarn::recall at 16K: ")
    assert "%25" in lines[0] and "\n" not in "".join(lines)


def test_text_of_the_run_stays_text() -> None:
    policy = parse_policy({**POLICY, "title": EVIL}, "p")
    found, about = gate_run(policy, run_cells(), manifest()), manifest(EVIL)
    root = Xml.fromstring(junit_xml(found, about).encode())
    assert "<script>" in str(root.findtext(".//system-out")) and len(root.findall(".//testcase")) == len(found.checks)
    summary = step_summary(found, about)
    assert "<script>" not in summary and "&lt;script>" in summary and "\\|" in summary
    lines = gate_lines(found, about)
    assert max(map(len, lines)) <= 80 and not any(line.startswith("::") for line in lines)
    assert "\x1b" not in "".join(lines) and "\n" not in "".join(lines)
    summary.encode()
