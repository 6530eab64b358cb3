"""The commit in a manifest is that of ctxeval's own checkout, or none."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from ctxeval.manifest import git_commit


@pytest.fixture(autouse=True)
def plain_git(monkeypatch: pytest.MonkeyPatch) -> None:
    """Git as it is on a fresh machine, whatever the one that tests has set up."""
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")


def git(folder: Path, *arguments: str) -> str:
    who = ("-c", "user.name=Test", "-c", "user.email=test@example.org")
    command = ["git", "-C", str(folder), *who, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def checkout(folder: Path, package: str, *, ignored: str = "") -> tuple[Path, str]:
    """Make a repository with a package in it; return the package's folder and the repository's commit."""
    place = folder / package
    place.mkdir(parents=True)
    (place / "__init__.py").write_text('"""A package."""\n')
    (folder / ".gitignore").write_text(ignored)
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "first")
    return place, git(folder, "rev-parse", "HEAD")


def test_a_checkout_has_its_commit_and_a_mark_where_it_was_changed(tmp_path: Path) -> None:
    package, commit = checkout(tmp_path, "ctxeval")
    assert git_commit(package) == commit
    (tmp_path / "notes.txt").write_text("untracked")
    assert git_commit(package) == commit
    (package / "__init__.py").write_text("changed = True\n")
    assert git_commit(package) == f"{commit}+"


@pytest.mark.parametrize(
    ("package", "ignored"),
    [
        (".venv/lib/python3.12/site-packages/ctxeval", ".venv"),  # installed while standing in another project
        ("vendor/ctxeval", ""),  # copied into it
        ("ctxeval", "ctxeval"),  # unpacked beside its files
    ],
)
def test_another_projects_commit_is_not_taken(package: str, ignored: str, tmp_path: Path) -> None:
    place, commit = checkout(tmp_path, package, ignored=ignored)
    assert len(commit) == 40
    assert git_commit(place) is None


def test_no_repository_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert git_commit(tmp_path) is None
    monkeypatch.setenv("PATH", "")  # no git either
    assert git_commit(tmp_path) is None
