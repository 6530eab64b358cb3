"""Prompts are exact in length, have one BOS, and hold their needles whole and where they say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from ctxeval.errors import UsageError
from ctxeval.text.assemble import Frame, Insertion, assemble, reach
from ctxeval.text.corpus import load_corpus
from ctxeval.text.documents import Document, cut_documents

TRIPLES = pre_tokenizers.Split(
    Regex(r"\p{N}{1,3}|[^\r\n\p{L}\p{N}]?\p{L}+|\s*[\r\n]+|\s+(?!\S)|\s+|[^\s\p{N}]"), "isolated"
)
STATEMENT = "The access code of the lighthouse is 12345."
QUESTION, LEAD, ANSWER = "What is the access code of the lighthouse?", "The access code of the lighthouse is", "12345"


def train(pre: Any, decoder: Any, alphabet: list[str], size: int = 700) -> Tokenizer:
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer, raw.decoder = pre, decoder
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=["<unk>", "<bos>", "<eos>"], initial_alphabet=alphabet, show_progress=False
    )
    numbers = " ".join(str(number) for number in range(10000, 14000))
    raw.train_from_iterator([*load_corpus("sotu").texts[:3], numbers], trainer)
    return raw


def fast(raw: Tokenizer) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=raw, unk_token="<unk>", bos_token="<bos>", eos_token="<eos>")


def merged() -> PreTrainedTokenizerFast:
    """GPT-2's way: the space belongs to the number, and several digits to one token."""
    return fast(train(pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel(), byte_alphabet(), 4000))


def triples(trim: bool) -> PreTrainedTokenizerFast:
    """Llama 3's way: up to three digits a token, the space on its own; `trim` leaves spaces out of the offsets."""
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    raw = train(pre_tokenizers.Sequence([TRIPLES, level]), decoders.ByteLevel(), byte_alphabet(), 4000)
    raw.post_processor = processors.ByteLevel(trim_offsets=trim)
    return fast(raw)


def metaspace() -> PreTrainedTokenizerFast:
    """Llama 2's way: a mark for the space, and one in front of every text; single digits."""
    pre = pre_tokenizers.Sequence([pre_tokenizers.Metaspace(), pre_tokenizers.Digits(individual_digits=True)])
    alphabet = sorted({character for text in load_corpus("sotu").texts[:3] for character in text} | set("0123456789▁?"))
    return fast(train(pre, decoders.Metaspace(), alphabet))


def byte_alphabet() -> list[str]:
    return pre_tokenizers.ByteLevel.alphabet()


@pytest.fixture(scope="module", params=["single-bos", "single", "merged", "triples", "trimmed", "metaspace"])
def tokenizer(request: pytest.FixtureRequest, tiny_tokenizer: Callable[..., Any]) -> Any:
    if request.param in ("single-bos", "single"):
        return tiny_tokenizer(request.param == "single-bos")
    return {"merged": merged, "metaspace": metaspace}.get(request.param, lambda: triples(request.param == "trimmed"))()


@pytest.fixture(scope="module")
def document(tiny_tokenizer: Callable[..., Any]) -> Document:
    return cut_documents(load_corpus("sotu"), tiny_tokenizer(), count=1, length=1500, seed=0)[0]


@pytest.fixture
def frame(tiny_tokenizer: Callable[..., Any]) -> Frame:
    return Frame(tiny_tokenizer())


def test_the_tokenizers_under_test_do_treat_the_space_differently() -> None:
    assert merged().tokenize(" 12345")[0].startswith("Ġ1")
    assert triples(False).tokenize("is 12345")[-3:] == ["Ġ", "123", "45"]
    assert metaspace().tokenize("is 12345")[-6:] == ["▁", "1", "2", "3", "4", "5"]


def test_question_and_answer_are_one_encoding_split_where_the_answer_begins(tokenizer: Any) -> None:
    question = Frame(tokenizer).question(QUESTION, LEAD, ANSWER)
    whole = tokenizer(f"It was so\n\n{QUESTION} {LEAD} {ANSWER}", add_special_tokens=False)["input_ids"]
    joined = [*question.ids.tolist(), *question.answer_ids.tolist()]
    assert whole[-len(joined) :] == joined
    assert tokenizer.decode(question.answer_ids).strip() == ANSWER
    assert tokenizer.decode(question.ids).strip() == f"{QUESTION} {LEAD}"
    assert len(question) == len(joined)


def test_the_answer_carries_the_space_only_where_the_tokenizer_merges_them(tokenizer: Any) -> None:
    question = Frame(tokenizer).question(QUESTION, LEAD, ANSWER)
    first = tokenizer.convert_ids_to_tokens(int(question.answer_ids[0]))
    last_asked = tokenizer.convert_ids_to_tokens(int(question.ids[-1]))
    if any(token in ("Ġ", "▁") for token in tokenizer.tokenize("is 12345")):
        assert first[0] == "1"
        assert last_asked in ("Ġ", "▁")
    else:
        assert first[:2] == "Ġ1"
        assert last_asked == "Ġis"


def test_a_statement_is_encoded_as_it_stands_in_a_text(tokenizer: Any) -> None:
    ids = Frame(tokenizer).statement(STATEMENT).tolist()
    whole = tokenizer(f"It was so. {STATEMENT}", add_special_tokens=False)["input_ids"]
    assert whole[-len(ids) :] == ids
    assert tokenizer.decode(ids).strip() == STATEMENT


@pytest.mark.parametrize("add_bos", [True, False])
def test_one_bos_where_the_tokenizer_wants_one(tiny_tokenizer: Callable[..., Any], add_bos: bool) -> None:
    prefix = Frame(tiny_tokenizer(add_bos)).prefix.tolist()
    assert prefix == ([tiny_tokenizer().bos_token_id] if add_bos else [])


def test_prompts_are_exact_and_needles_intact(tiny_tokenizer: Callable[..., Any], document: Document) -> None:
    random = np.random.default_rng(0)
    for add_bos in (True, False):
        frame = Frame(tiny_tokenizer(add_bos))
        question = frame.question(QUESTION, LEAD, ANSWER)
        statements = [
            frame.statement(f"The price of the {key} is {value}.") for key, value in zip("abcd", range(4), strict=True)
        ]
        for _ in range(50):
            length = int(random.integers(400, 1500))
            some = statements[: int(random.integers(0, 5))]
            room = reach(frame, [Insertion(0, one) for one in some], question, length)
            sites = np.sort(random.integers(0, room + 1, len(some)))
            insertions = [Insertion(int(site), one) for site, one in zip(sites, some, strict=True)]
            built = assemble(frame, document.ids, insertions, question, length)
            check(frame, document, insertions, built, length)


def check(frame: Frame, document: Document, insertions: list[Insertion], built: Any, length: int) -> None:
    """Take the prompt apart: what is left without needles and question is the beginning of the document."""
    ids, question = built.ids.tolist(), frame.question(QUESTION, LEAD, ANSWER)
    assert len(ids) == length
    assert ids.count(frame.tokenizer.bos_token_id) == len(frame.prefix) == ids[:1].count(frame.tokenizer.bos_token_id)
    assert ids[built.question_position :] == [*question.ids.tolist(), *question.answer_ids.tolist()]
    assert ids[built.answer_position :] == question.answer_ids.tolist()
    haystack = ids[len(frame.prefix) : built.question_position]
    for one, position in reversed(list(zip(insertions, built.positions, strict=True))):
        start = position - len(frame.prefix)
        assert haystack[start : start + len(one.ids)] == one.ids.tolist()
        del haystack[start : start + len(one.ids)]
    before = np.cumsum([0, *(len(one.ids) for one in insertions)])
    assert [one.site + len(frame.prefix) + shift for one, shift in zip(insertions, before, strict=False)] == list(
        built.positions
    )
    assert haystack == document.ids[: len(haystack)].tolist()


def test_a_needle_may_touch_the_question_but_not_go_beyond(frame: Frame, document: Document) -> None:
    question, statement = frame.question(QUESTION, LEAD, ANSWER), frame.statement(STATEMENT)
    room = reach(frame, [Insertion(0, statement)], question, 500)
    built = assemble(frame, document.ids, [Insertion(room, statement)], question, 500)
    assert built.positions[0] + len(statement) == built.question_position
    with pytest.raises(UsageError, match=f"a needle at text token {room + 1} does not fit whole into 500 tokens"):
        assemble(frame, document.ids, [Insertion(room + 1, statement)], question, 500)


def test_insertions_out_of_order_are_refused(frame: Frame, document: Document) -> None:
    question, statement = frame.question(QUESTION, LEAD, ANSWER), frame.statement(STATEMENT)
    with pytest.raises(UsageError, match="text token 10"):
        assemble(frame, document.ids, [Insertion(50, statement), Insertion(10, statement)], question, 500)


@pytest.mark.parametrize("length", [20, 1600])
def test_too_short_a_prompt_or_too_little_text_is_an_error(frame: Frame, document: Document, length: int) -> None:
    question = frame.question(QUESTION, LEAD, ANSWER)
    with pytest.raises(UsageError, match=rf"{length} tokens need -?\d+ tokens of text .* there are 1500"):
        assemble(frame, document.ids, [], question, length)


def test_a_chat_prompt_is_the_template_applied_to_the_whole_text(
    tiny_tokenizer: Callable[..., Any], document: Document
) -> None:
    tokenizer = tiny_tokenizer()
    frame = Frame(tokenizer, chat=True)
    question, statement = frame.question(QUESTION, LEAD, ANSWER), frame.statement(STATEMENT)
    site = int(document.sentence_starts[3])
    compared = 0
    for length in range(400, 440):
        built = assemble(frame, document.ids, [Insertion(site, statement)], question, length)
        used = reach(frame, [Insertion(site, statement)], question, length)
        cut = int(document.ends[used - 1])
        if not document.text[cut - 1].isalpha():
            continue  # the text's last white space would merge with the question's blank line
        at = int(document.starts[site])
        haystack = f"{document.text[:at].rstrip(' ')} {STATEMENT}{document.text[at:cut]}"
        turns = [
            {"role": "user", "content": f"{haystack}\n\n{QUESTION}"},
            {"role": "assistant", "content": f"{LEAD} {ANSWER}"},
        ]
        asked = tokenizer.apply_chat_template(turns[:1], add_generation_prompt=True, return_dict=False)
        whole = tokenizer.apply_chat_template(turns, continue_final_message=True, return_dict=False)
        assert built.ids[: len(asked)].tolist() == asked
        assert built.ids.tolist() == whole
        assert whole.count(tokenizer.bos_token_id) == 1
        compared += 1
    assert compared > 20


def template(tokenizer: Any, text: str | None) -> Any:
    clone = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer.backend_tokenizer, unk_token="<unk>", bos_token="<bos>", eos_token="<eos>"
    )
    clone.chat_template = text
    return clone


def test_a_template_without_bos_gets_the_one_that_the_tokenizer_wants(tiny_tokenizer: Callable[..., Any]) -> None:
    frame = Frame(template(tiny_tokenizer(), "<|user|>{{ messages[0].content }}<eos><|assistant|>"), chat=True)
    assert frame.prefix.tolist().count(frame.tokenizer.bos_token_id) == 1
    assert frame.prefix[0] == frame.tokenizer.bos_token_id


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "this model has no chat template"),
        ("{{ bos_token }}hello", "drops or rewrites the user's text"),
        ("{{ bos_token }}{{ bos_token }}{{ messages[0].content }}", "writes 2 BOS tokens"),
    ],
)
def test_templates_that_cannot_be_used_are_refused(
    tiny_tokenizer: Callable[..., Any], text: str | None, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        Frame(template(tiny_tokenizer(), text), chat=True)


@pytest.mark.parametrize(
    ("token", "answer", "continues"),
    [
        ("6", "12345", True),
        ("Ġ", "12345", False),
        (".", "12345", False),
        ("e", "12345", False),
        ("e", "code", True),
        ("6", "code", False),
        ("<eos>", "code", False),
    ],
)
def test_what_prolongs_an_answer(frame: Frame, token: str, answer: str, continues: bool) -> None:
    assert frame.continues(frame.tokenizer.convert_tokens_to_ids(token), answer) is continues


def test_a_number_after_a_space_does_not_prolong_the_answer() -> None:
    tokenizer = merged()
    (after_space,) = tokenizer(" 1", add_special_tokens=False)["input_ids"]
    (digits,) = tokenizer("12", add_special_tokens=False)["input_ids"]
    assert not Frame(tokenizer).continues(after_space, "12345")
    assert Frame(tokenizer).continues(digits, "12345")
