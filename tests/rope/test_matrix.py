"""Every causal-LM type of transformers: patched right, or with a reason. A sample here, all under `-m acceptance`."""

from __future__ import annotations

import pytest
import transformers

from tests.rope.examine import Finding, examine
from tests.rope.matrix import DOCUMENT, SAMPLE, document, documented, problems, row
from tests.rope.zoo import causal_types


@pytest.fixture(autouse=True)
def silence() -> None:
    transformers.logging.set_verbosity_error()


def test_every_type_of_this_transformers_is_documented() -> None:
    known, listed = set(causal_types()), set(documented())
    assert known - listed == set(), "new types: run `python -m tests.rope.matrix` and see what they need"
    assert listed - known == set(), "types that transformers has no more"


@pytest.mark.parametrize("kind", SAMPLE)
def test_sample(kind: str) -> None:
    found = examine(kind)
    assert problems(found) == []
    assert row(found) == documented()[kind]


@pytest.mark.acceptance
def test_all_types() -> None:
    findings = [examine(kind) for kind in causal_types()]
    assert [problem for found in findings for problem in problems(found)] == []
    assert document(findings) == DOCUMENT.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (Finding("new", failure="KeyError: 'rope'"), "new: KeyError: 'rope'"),
        (Finding("new", scheme="no position encoding that ctxeval knows was found"), "nothing says how"),
        (Finding("llama", outcomes={"pi": "inv_freq differs by 0.1"}), "llama: pi: inv_freq differs by 0.1"),
        (Finding("llama"), "llama: yarn: not compared"),
        (Finding("llama", outcomes={"restore": "not restored"}), "llama: restore: not restored"),
        (Finding("gemma3n", outcomes={"pi": "equal"}), "gemma3n: its reason does not hold"),
        (Finding("phimoe", outcomes={"ntk-dynamic": "equal"}), "phimoe: ntk-dynamic is an exception"),
    ],
)
def test_what_is_not_as_it_should_be_is_said(found: Finding, said: str) -> None:
    assert any(said in problem for problem in problems(found))
