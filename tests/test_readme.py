"""README.md shows what the committed runs hold, and names only commands and files that exist."""

from __future__ import annotations

import re

from tests.readme import ROOT, render


def test_its_tables_are_those_of_the_published_runs() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert readme == render(readme), "run `make readme`"


def test_its_links_lead_somewhere() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)#]+)\)", readme)
    assert targets
    missing = [target for target in targets if "://" not in target and not (ROOT / target).exists()]
    assert not missing
