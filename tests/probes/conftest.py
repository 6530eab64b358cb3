"""Documents and probes of the shipped task on the tiny tokenizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ctxeval.probes.needle import NeedleGrid, NeedleProbe
from ctxeval.probes.task import load_task
from ctxeval.text.assemble import Frame
from ctxeval.text.corpus import load_corpus
from ctxeval.text.documents import Document, cut_documents

LENGTHS = (512, 768, 1024, 1536)
DEPTHS = tuple(12.5 * step for step in range(9))


@pytest.fixture(scope="session")
def documents(tiny_tokenizer: Callable[..., Any]) -> tuple[Document, ...]:
    return cut_documents(load_corpus("sotu"), tiny_tokenizer(), count=4, length=max(LENGTHS), seed=0)


@pytest.fixture(scope="session")
def make_probe(tiny_tokenizer: Callable[..., Any]) -> Callable[..., NeedleProbe]:
    """Return a factory of needle probes; `chat` and any field of the grid may be given."""

    def factory(add_bos: bool = True, chat: bool = False, **grid: Any) -> NeedleProbe:
        fields = {
            "lengths": LENGTHS,
            "depths": DEPTHS,
            "native_window": 1024,
            "seed": 0,
            "trials": 1,
            "needles_per_context": 10,
        } | grid
        return NeedleProbe(load_task("needle"), Frame(tiny_tokenizer(add_bos), chat=chat), NeedleGrid(**fields))

    return factory


@pytest.fixture
def numbered() -> Callable[[int], Document]:
    """Return a factory of documents whose tokens are 1000, 1001, …, one character each, every third of two bytes."""

    def factory(length: int) -> Document:
        text = "".join("é" if index % 3 == 2 else "a" for index in range(length))
        at = np.arange(length, dtype=np.int64)
        return Document(0, "numbered", text, (at + 1000).astype(np.int32), at, at + 1, at[::20])

    return factory
