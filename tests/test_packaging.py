"""What is shipped: the wheel's contents, its dependencies, and what importing the package costs."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from ctxeval import resources
from ctxeval.errors import RunError

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
HEAVY = ("torch", "transformers", "datasets", "accelerate")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("dist")
    build = f"import hatchling.build as b; print(b.build_wheel({str(folder)!r}))"
    made = subprocess.run([sys.executable, "-c", build], cwd=ROOT, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    return zipfile.ZipFile(folder / made.stdout.strip().splitlines()[-1])


def test_the_wheel_holds_the_package_its_tasks_and_the_demo_model(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    for task in (ROOT / "tasks").rglob("*.yaml"):
        assert f"ctxeval/_tasks/{task.relative_to(ROOT / 'tasks').as_posix()}" in names
    assert {"ctxeval/py.typed", "ctxeval/demo/keys.txt", "ctxeval/demo/model/config.json"} <= names
    assert "ctxeval/demo/model/model.safetensors" in names
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "ctxeval").rglob("*.py")}
    assert modules <= names
    assert {f"ctxeval/report/templates/report.{kind}" for kind in ("html", "css")} <= names
    others = {name.split("/")[0] for name in names} - {"ctxeval", f"ctxeval-{PROJECT['version']}.dist-info"}
    assert not others
    assert not [name for name in names if "__pycache__" in name]


def test_the_wheel_installs_the_command_and_the_licence(wheel: zipfile.ZipFile) -> None:
    info = f"ctxeval-{PROJECT['version']}.dist-info"
    assert "ctxeval = ctxeval.cli.main:main" in wheel.read(f"{info}/entry_points.txt").decode()
    assert "Apache License" in wheel.read(f"{info}/licenses/LICENSE").decode()


def test_the_wheel_is_small(wheel: zipfile.ZipFile) -> None:
    model = [item for item in wheel.infolist() if item.filename.startswith("ctxeval/demo/model/")]
    assert 0 < sum(item.file_size for item in model) <= 8 * 2**20


def pins() -> dict[str, Version]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    parsed = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(name): Version(version) for name, version in parsed}


def requirements() -> list[Requirement]:
    development = PROJECT["optional-dependencies"]["dev"]
    return [Requirement(text) for text in (*PROJECT["dependencies"], *development)]


@pytest.mark.parametrize("requirement", requirements(), ids=lambda one: one.name)
def test_a_dependency_is_pinned_and_no_older_one_is_allowed(requirement: Requirement) -> None:
    tested = pins()[canonicalize_name(requirement.name)]
    assert tested in requirement.specifier
    (lower,) = (Version(one.version) for one in requirement.specifier if one.operator == ">=")
    assert lower.release == tested.release[: len(lower.release)]


def test_tasks_are_found_in_a_checkout_and_in_a_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert resources.tasks_dir() == ROOT / "tasks"
    installed = tmp_path / "site-packages" / "ctxeval"
    monkeypatch.setattr(resources, "PACKAGE", installed)
    (tmp_path / "site-packages" / "tasks").mkdir(parents=True)  # of some other package
    with pytest.raises(RunError, match="no task definitions"):
        resources.tasks_dir()
    (installed / "_tasks").mkdir(parents=True)
    (installed / "_tasks" / "needle.yaml").touch()
    assert resources.tasks_dir() == installed / "_tasks"


def imported(statement: str, suspects: tuple[str, ...]) -> set[str]:
    """Run `statement` in a fresh interpreter and return which of `suspects` it has imported."""
    code = f"{statement}\nimport sys\nprint(*(name for name in {suspects!r} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def modules_of(*packages: str) -> list[str]:
    paths = [path for package in packages for path in sorted((ROOT / "ctxeval" / package).glob("*.py"))]
    return [".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in paths]


def test_what_runs_no_model_imports_no_model_library() -> None:
    light = ["ctxeval", "ctxeval.spec", "ctxeval.errors", "ctxeval.resources", "ctxeval.demo", "ctxeval.text.corpus"]
    light += ["ctxeval.cli.main", *modules_of("analysis", "report", "results")]
    assert len(light) > 12
    assert imported(f"import {', '.join(light)}", HEAVY) == set()


def test_that_check_can_fail() -> None:
    assert imported("import json.decoder", ("json", "decimal")) == {"json"}


def test_ci_runs_what_contributing_promises() -> None:
    promised = re.findall(r"^make (\w+)", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.MULTILINE)
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    targets = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert promised == ["test", "lint", "types"]
    for target in promised:
        assert f"make --no-print-directory {target}\n" in script
        assert f"\n{target}: $(STAMP)" in targets


def test_the_version_is_the_same_everywhere() -> None:
    import ctxeval

    assert ctxeval.__version__ == PROJECT["version"]
