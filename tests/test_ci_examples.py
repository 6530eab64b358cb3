"""The GitHub action and the GitLab example: their own shell steps, run as the servers run them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree as Xml

import pytest
import xmlschema
import yaml

from tests.cli.test_gate import LAX, STRICT, UNDER_POWERED, make_run

ROOT = Path(__file__).resolve().parent.parent
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
GITLAB = yaml.safe_load((ROOT / "docs" / "ci" / "gitlab-ci.yml").read_text(encoding="utf-8"))["ctxeval-gate"]
POLICIES = {"lax": LAX, "strict": STRICT, "under-powered": UNDER_POWERED}
EXPRESSION = re.compile(r"\$\{\{ ([\w.-]+) \}\}")
#: A folder whose name is a command, where somebody pastes it into a script.
FOLDER = 'a run";$(touch pwned)'


class Outcome(NamedTuple):
    code: int
    out: str
    err: str
    outputs: Mapping[str, str]
    summary: str


def program(folder: Path, name: str, script: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("measured") / "run")


@pytest.fixture
def work(tmp_path: Path, measured: Path) -> Path:
    """A job's working directory: a run, three policies, and `ctxeval` on the PATH."""
    shutil.copytree(measured, tmp_path / FOLDER)
    for name, text in POLICIES.items():
        (tmp_path / f"{name}.yaml").write_text(text, encoding="utf-8")
    program(tmp_path / "bin", "ctxeval", f'exec {sys.executable} -m ctxeval "$@"')
    return tmp_path


def shell(script: str, work: Path, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a script as GitHub runs `shell: bash` and as GitLab runs a job."""
    path = work / "step.sh"
    path.write_text(script, encoding="utf-8")
    own = {name: value for name, value in os.environ.items() if not name.startswith(("GITHUB_", "CTXEVAL_"))}
    full = {**own, "PATH": f"{work / 'bin'}:/usr/bin:/bin", **env}
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(path)]
    return subprocess.run(command, cwd=work, env=full, capture_output=True, text=True, check=False)


def run_action(work: Path, **given: str) -> Outcome:
    """Run the action's steps with `inputs` as a job would: expressions filled in, files for what it hands back."""
    inputs = {name: about.get("default") for name, about in ACTION["inputs"].items()}
    inputs |= {name.replace("_", "-"): value for name, value in given.items()}
    assert set(inputs) == set(ACTION["inputs"]) and None not in inputs.values()
    values = {f"inputs.{name}": value for name, value in inputs.items()} | {"github.action_path": str(ROOT)}

    def fill(text: str) -> str:
        return EXPRESSION.sub(lambda found: values[found[1]], text)

    out, err, summary = "", "", work / "summary.md"
    code = 0
    for number, step in enumerate(ACTION["runs"]["steps"]):
        output = work / f"output-{number}"
        output.touch()
        env = {name: fill(value) for name, value in step["env"].items()}
        server = {"GITHUB_ACTIONS": "true", "GITHUB_OUTPUT": str(output), "GITHUB_STEP_SUMMARY": str(summary)}
        done = shell(step["run"], work, env | server)
        out, err, code = out + done.stdout, err + done.stderr, done.returncode
        for line in output.read_text().splitlines():
            name, _, value = line.partition("=")
            values[f"steps.{step['id']}.outputs.{name}"] = value
        if code:
            break
    outputs = {
        name: EXPRESSION.sub(lambda found: values.get(found[1], ""), about["value"])
        for name, about in ACTION["outputs"].items()
    }
    return Outcome(code, out, err, outputs, summary.read_text(encoding="utf-8") if summary.exists() else "")


def junit(work: Path) -> tuple[int, int, int]:
    """Return the tests, failures and errors of a JUnit file that its schema accepts."""
    xmlschema.XMLSchema(str(ROOT / "tests" / "report" / "junit.xsd")).validate(str(work / "ctxeval-gate.xml"))
    counts = Xml.parse(work / "ctxeval-gate.xml").getroot().attrib
    return int(counts["tests"]), int(counts["failures"]), int(counts["errors"])


def test_the_action_is_what_github_takes() -> None:
    assert set(ACTION) <= {"name", "description", "author", "branding", "inputs", "outputs", "runs"}
    assert ACTION["runs"]["using"] == "composite"
    for about in ACTION["inputs"].values():
        assert set(about) <= {"description", "required", "default"} and ("default" in about) != about.get(
            "required", False
        )
        assert isinstance(about.get("default", ""), str)
    assert all(set(about) == {"description", "value"} for about in ACTION["outputs"].values())
    used = set()
    for step in ACTION["runs"]["steps"]:
        assert step["shell"] == "bash" and set(step) <= {"name", "id", "shell", "env", "run"}
        assert "${{" not in step["run"]  # pasted text could be a command
        used |= {name for value in step["env"].values() for name in EXPRESSION.findall(value)}
    assert used == {f"inputs.{name}" for name in ACTION["inputs"]} | {"github.action_path"}


@pytest.mark.parametrize(
    ("policy", "lenient", "code", "verdict", "exit_code", "counts"),
    [
        ("lax", "false", 0, "pass", "0", (4, 0, 0)),
        ("strict", "false", 1, "fail", "1", (1, 1, 0)),
        ("under-powered", "true", 4, "inconclusive", "4", (1, 0, 1)),
        ("under-powered", "false", 0, "inconclusive", "4", (1, 0, 1)),
    ],
)
def test_the_action(
    work: Path, policy: str, lenient: str, code: int, verdict: str, exit_code: str, counts: tuple[int, int, int]
) -> None:
    done = run_action(work, run=FOLDER, policy=f"{policy}.yaml", fail_on_inconclusive=lenient)
    assert done.code == code, done.err
    assert done.outputs == {"verdict": verdict, "exit-code": exit_code}
    assert f"(exit {exit_code})" in done.out and done.summary.startswith("### ctxeval gate: ")
    assert ("::error " in done.out, "::warning " in done.out) == (verdict == "fail", verdict == "inconclusive")
    assert junit(work) == counts
    assert not (work / "pwned").exists()


def test_an_action_without_a_verdict_is_red_and_leaves_no_old_one(work: Path) -> None:
    (work / "ctxeval-gate.xml").write_text("of an earlier job")
    done = run_action(work, run="bin", policy="lax.yaml", fail_on_inconclusive="false")
    assert done.code == 2 and done.outputs == {"verdict": "error", "exit-code": "2"}
    assert "Error: " in done.err and not (work / "ctxeval-gate.xml").exists()


def test_an_action_whose_switch_is_misspelt_is_red(work: Path) -> None:
    done = run_action(work, run=FOLDER, policy="under-powered.yaml", fail_on_inconclusive="no")
    assert done.code == 2 and "write true or false" in done.out


def test_what_the_action_hands_on(work: Path) -> None:
    """The command line itself, shown by a stand-in: an argument a line."""
    program(work / "bin", "ctxeval", 'for one in "$@"; do echo "<$one>"; done')
    done = run_action(work, run="a run", policy="p q.yaml", scale="yarn", baseline="an old one", junit="x y.xml")
    wanted = [
        "gate",
        "a run",
        "--policy",
        "p q.yaml",
        "--scale",
        "yarn",
        "--baseline",
        "an old one",
        "--junit",
        "x y.xml",
    ]
    assert done.out.splitlines() == [f"<{one}>" for one in wanted]
    done = run_action(work, run="r")
    assert done.out.splitlines() == ["<gate>", "<r>", "<--policy>", "<ship>", "<--junit>", "<ctxeval-gate.xml>"]


GITLAB_SCRIPT = "\n".join(GITLAB["script"])


@pytest.mark.parametrize(
    ("policy", "code", "counts"), [("lax", 0, (4, 0, 0)), ("strict", 1, (1, 1, 0)), ("under-powered", 4, (1, 0, 1))]
)
def test_the_gitlab_job(work: Path, policy: str, code: int, counts: tuple[int, int, int]) -> None:
    done = shell(GITLAB_SCRIPT, work, GITLAB["variables"] | {"RUN_FOLDER": FOLDER, "POLICY": f"{policy}.yaml"})
    assert done.returncode == code, done.stderr
    assert f"(exit {code})" in done.stdout and junit(work) == counts
    artifacts = GITLAB["artifacts"]
    assert artifacts["reports"]["junit"] == "ctxeval-gate.xml" in artifacts["paths"]
    assert artifacts["when"] == "always"  # a red gate's report is the one that is wanted
    assert "allow_failure" not in GITLAB


@pytest.mark.parametrize(
    ("script", "env", "source"),
    [
        (ACTION["runs"]["steps"][0]["run"], {"SOURCE": "/the/action"}, "/the/action"),
        (GITLAB["script"][0], {"PACKAGE": "ctxeval.whl"}, "ctxeval.whl"),
    ],
)
def test_where_ctxeval_is_missing_it_is_installed_without_torch(
    work: Path, script: str, env: dict[str, str], source: str
) -> None:
    (work / "bin" / "ctxeval").unlink()
    program(work / "bin", "python", 'echo "$@"')
    done = shell(script, work, env)
    light, package = done.stdout.splitlines()
    assert package == f"-m pip install --quiet --no-deps {source}"
    assert (
        done.returncode == 0 and set(re.findall(r"(?<= )[a-z]\w*(?= |$)", light)) - {"pip", "install"} == proved_light()
    )


def proved_light() -> set[str]:
    """Return the packages that .ci/run installs where it proves that a gate needs no others."""
    (line,) = re.findall(r"install --quiet -c constraints\.txt \\\n\s+(.*)\n", (ROOT / ".ci" / "run").read_text())
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert set(line.split()) < {re.split("[>=<]", one)[0] for one in dependencies}
    return set(line.split())


def test_the_page_shows_inputs_and_outputs_that_exist() -> None:
    page = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    step, after = yaml.safe_load(block)
    assert set(step["with"]) <= set(ACTION["inputs"])
    assert set(re.findall(r"steps\.gate\.outputs\.([\w-]+)", after["run"])) == set(ACTION["outputs"])
    for target in re.findall(r"\]\(([^)]+)\)", page):
        assert (ROOT / "docs" / target).is_file()
