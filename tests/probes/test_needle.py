"""What the needle probe asks: prompts, rows and the reading of answers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from ctxeval.model.scores import TokenScores
from ctxeval.probes.measurement import Measurement
from ctxeval.probes.needle import NeedleProbe
from ctxeval.probes.task import Needle, make_needle
from ctxeval.text.documents import Document

MakeProbe = Callable[..., NeedleProbe]
LENGTHS = (512, 768, 1024, 1536)
DEPTHS = tuple(12.5 * step for step in range(9))


@pytest.fixture(scope="module", params=["exact", "packed"])
def measured(
    request: pytest.FixtureRequest, make_probe: MakeProbe, documents: tuple[Document, ...]
) -> list[tuple[NeedleProbe, Document, list[Measurement]]]:
    return [
        (probe, document, measure(probe, request.param, document))
        for probe, some in ((make_probe(), documents[:2]), (make_probe(add_bos=False, chat=True), documents[2:3]))
        for document in some
    ]


def measure(probe: NeedleProbe, plan: str, document: Document, trial: int = 0) -> list[Measurement]:
    return probe.exact(document, trial) if plan == "exact" else probe.packed(document, trial, Counter())


def needle_of(probe: NeedleProbe, document: Document, measurement: Measurement) -> Needle:
    site = int(measurement.columns["needle_id"].split(".")[2])
    return make_needle(
        probe.task, seed=probe.grid.seed, document=document.index, trial=0, site=site, forbidden=document.text
    )


def places(ids: np.ndarray, part: np.ndarray) -> list[int]:
    """Return where `part` occurs in `ids`."""
    windows = np.lib.stride_tricks.sliding_window_view(ids, len(part))
    return np.flatnonzero((windows == part).all(axis=1)).tolist()


def test_every_prompt_has_exactly_the_asked_length_and_scores_the_answer_and_what_follows(measured: Any) -> None:
    for probe, _, rows in measured:
        for row in rows:
            (prompt,) = row.prompts
            assert len(prompt.ids) == row.columns["context_length"]
            assert prompt.score_stop == len(prompt.ids) + 1
            assert len(prompt.ids) - prompt.score_start == row.columns["answer_tokens"]
            answer = probe.frame.tokenizer.decode(prompt.ids[prompt.score_start :])
            assert answer.strip() == row.columns["expected"]
            assert prompt.ids.tolist().count(probe.frame.tokenizer.bos_token_id) == 1


def test_the_needle_stands_once_where_the_row_says_and_that_far_from_its_question(measured: Any) -> None:
    for probe, document, rows in measured:
        for row in rows:
            if row.columns["control"]:
                continue
            needle, ids = needle_of(probe, document, row), row.prompts[0].ids
            statement = probe.frame.statement(needle.statement)
            assert places(ids, statement) == [row.columns["needle_position"]]
            (asked,) = places(ids, probe.frame.question(needle.question, needle.lead, needle.value).ids)
            last = row.columns["needle_position"] + len(statement) - 1
            assert row.columns["needle_distance"] == asked - last
            assert row.columns["expected"] == needle.value


def test_values_are_nowhere_else_in_the_context(measured: Any) -> None:
    for probe, document, rows in measured:
        for row in rows:
            before = probe.frame.tokenizer.decode(row.prompts[0].ids[: row.prompts[0].score_start])
            assert before.count(row.columns["expected"]) == (0 if row.columns["control"] else 1)
            assert row.columns["expected"] not in document.text


@pytest.mark.parametrize("plan", ["exact", "packed"])
def test_a_value_that_the_document_happens_to_hold_is_not_used(
    make_probe: MakeProbe, documents: tuple[Document, ...], plan: str
) -> None:
    probe, document = make_probe(), documents[0]
    values = {row.columns["expected"] for row in measure(probe, plan, document)}
    holding = replace(document, text=f"{document.text} {' '.join(sorted(values))}")
    again = {row.columns["expected"] for row in measure(probe, plan, holding)}
    assert len(again) == len(values)
    assert not again & values


def test_the_control_asks_for_what_is_not_there(measured: Any) -> None:
    for probe, document, rows in measured:
        controls = [row for row in rows if row.columns["control"]]
        assert [row.columns["context_length"] for row in controls] == list(probe.grid.lengths)
        hidden = [needle_of(probe, document, row) for row in rows if not row.columns["control"]]
        for row in controls:
            assert row.columns["control"] == "no-needle"
            assert row.columns["depth_percent"] is row.columns["needle_position"] is None
            stranger = needle_of(probe, document, row)
            assert not places(row.prompts[0].ids, probe.frame.statement(stranger.statement))
            if row.columns["plan"] == "packed":
                assert stranger.key not in {one.key for one in hidden}
                assert stranger.wording not in {one.wording for one in hidden}
                assert stranger.value not in {one.value for one in hidden}


def test_the_exact_control_is_the_bare_haystack(make_probe: MakeProbe, documents: tuple[Document, ...]) -> None:
    probe = make_probe()
    for row in probe.exact(documents[0], 0)[-4:]:
        ids, needle = row.prompts[0].ids, needle_of(probe, documents[0], row)
        used = len(ids) - len(probe.frame.question(needle.question, needle.lead, needle.value)) - 1
        assert ids[1 : 1 + used].tolist() == documents[0].ids[:used].tolist()
        assert row.columns["n_needles"] == 0


def test_n_needles_counts_those_in_the_context(measured: Any) -> None:
    """Found by their wordings in the decoded text, asked for or not."""
    for probe, _, rows in measured:
        forms = [re.escape(form.statement).replace(r"\{key\}", r"\w+") for form in probe.task.wordings]
        needle = re.compile("|".join(form.replace(r"\{value\}", r"\d{5}") for form in forms))
        seen = set()
        for row in rows:
            text = probe.frame.tokenizer.decode(row.prompts[0].ids[: row.prompts[0].score_start])
            assert row.columns["n_needles"] == len(needle.findall(text))
            seen.add(row.columns["n_needles"])
        assert seen == {0, 1} if rows[0].columns["plan"] == "exact" else max(seen) > 3 and len(seen) > 2


def test_haystacks_nest(measured: Any) -> None:
    """Without needle and question, a context is the prefix and the beginning of one and the same document."""
    for probe, document, rows in measured:
        prefix = probe.frame.prefix.tolist()
        statements = [
            probe.frame.statement(needle_of(probe, document, row).statement)
            for row in rows
            if not row.columns["control"]
        ]
        for row in rows:
            needle, ids = needle_of(probe, document, row), row.prompts[0].ids
            question = len(probe.frame.question(needle.question, needle.lead, needle.value))
            bare = ids[:-question].tolist()
            for position, part in sorted(
                {(at, len(one)) for one in statements for at in places(ids, one)}, reverse=True
            ):
                del bare[position : position + part]
            assert bare == [*prefix, *document.ids[: len(bare) - len(prefix)].tolist()]


def test_contexts_of_different_length_agree_up_to_the_shorter_ones_question(measured: Any) -> None:
    """One pass serves all lengths. A needle that only the longer one holds stands within the reserve of the shorter."""
    compared = 0
    for probe, _, rows in measured:
        by_needle: dict[str, list[Measurement]] = {}
        for row in rows:
            by_needle.setdefault(row.columns["needle_id"], []).append(row)
        for same in by_needle.values():
            for short, long in pairwise(sorted(same, key=lambda row: row.columns["context_length"])):
                a, b = short.prompts[0].ids, long.prompts[0].ids
                shared = len(a) - probe.rule.reserve
                assert (a[:shared] == b[:shared]).all()
                compared += 1
    assert compared > 5


def test_needles_depend_neither_on_the_grid_nor_on_the_order(
    make_probe: MakeProbe, documents: tuple[Document, ...]
) -> None:
    def facts(probe: NeedleProbe, some: tuple[Document, ...]) -> dict[str, str]:
        return {
            row.columns["needle_id"]: probe.frame.tokenizer.decode(row.prompts[0].ids).rsplit("\n\n", 1)[1]
            for document in some
            for row in probe.exact(document, 0)
        }

    one = facts(make_probe(), documents)
    other = facts(make_probe(lengths=(1536, 900, 512), depths=(100.0, 50.0, 30.0, 0.0)), tuple(reversed(documents)))
    common = set(one) & set(other)
    assert len(common) > 20
    assert {name: one[name] for name in common} == {name: other[name] for name in common}
    assert facts(make_probe(seed=1), documents)[min(common)] != one[min(common)]


def test_depth_0_is_after_the_lead_in_and_depth_100_beside_the_question(
    make_probe: MakeProbe, documents: tuple[Document, ...]
) -> None:
    probe = make_probe()
    for document in documents:
        sentence = int(np.diff(document.sentence_starts).max())
        for row in probe.exact(document, 0):
            if row.columns["depth_percent"] == 0:
                assert 64 <= row.columns["needle_position"] <= 64 + sentence
            if row.columns["depth_percent"] == 100:
                assert 1 <= row.columns["needle_distance"] <= sentence + probe.rule.reserve


def test_requested_depths_are_met_to_a_sentence(make_probe: MakeProbe, documents: tuple[Document, ...]) -> None:
    probe = make_probe()
    for document in documents:
        sentence = int(np.diff(document.sentence_starts).max())
        for row in probe.exact(document, 0):
            if not row.columns["control"]:
                wanted = probe.rule.position(row.columns["depth_percent"], row.columns["context_length"])
                assert -sentence <= wanted - row.columns["needle_position"] <= sentence + 1
                starts = document.sentence_starts + 1
                if ((starts >= 64) & (starts <= wanted)).any():
                    assert row.columns["needle_position"] <= wanted


def test_needles_begin_where_sentences_do(make_probe: MakeProbe, documents: tuple[Document, ...]) -> None:
    probe = make_probe()
    rows = [row for document in documents for row in probe.exact(document, 0) if row.columns["depth_percent"]]
    starts = {document.index: set(document.sentence_starts.tolist()) for document in documents}
    hits = sum(row.columns["needle_position"] - 1 in starts[row.columns["document"]] for row in rows)
    assert hits >= 0.95 * len(rows)


def test_packed_needles_stand_where_they_stand_alone_to_a_sentence(
    make_probe: MakeProbe, documents: tuple[Document, ...]
) -> None:
    """Real positions, after earlier needles have pushed the later ones back."""
    probe, moved = make_probe(), 0
    for document in documents:
        starts = document.sentence_starts
        positions: dict[int, int] = {}
        for row in probe.packed(document, 0, Counter()):
            if not row.columns["control"]:
                alone = int(row.columns["needle_id"].split(".")[2]) + 1
                positions[alone] = row.columns["needle_position"]
        assert len(positions) >= 5
        pushed = 0
        for index, (alone, real) in enumerate(sorted(positions.items())):
            site = real - 1 - pushed
            wanted = alone - 1 - pushed
            before = sorted(positions.values())[index - 1] if index else -128
            assert real <= alone
            last_start = int(starts[starts <= wanted].max(initial=-1))
            if last_start + 1 + pushed >= max(before + 128, 64):
                assert site == last_start
            else:
                assert site == wanted  # between the lead-in or the needle before, and here, no sentence begins
            moved += site != alone - 1
            pushed += len(probe.frame.statement(needle_at(probe, document, alone - 1).statement))
        assert all(after - before >= 128 for before, after in pairwise(sorted(positions.values())))
    assert moved > 5


def needle_at(probe: NeedleProbe, document: Document, site: int) -> Needle:
    return make_needle(probe.task, seed=0, document=document.index, trial=0, site=site, forbidden=document.text)


def test_packed_needles_differ_in_wording_key_and_value(make_probe: MakeProbe, documents: tuple[Document, ...]) -> None:
    probe = make_probe()
    for document in documents:
        rows = [row for row in probe.packed(document, 0, Counter()) if not row.columns["control"]]
        needles = {row.columns["needle_id"]: needle_of(probe, document, row) for row in rows}
        for part in ("wording", "key", "value"):
            assert len({getattr(one, part) for one in needles.values()}) == len(needles)


def test_a_packed_needle_is_asked_at_every_length_beyond_it(
    make_probe: MakeProbe, documents: tuple[Document, ...]
) -> None:
    """And its depth is the grid's that is nearest to where it really stands."""
    probe = make_probe()
    for document in documents:
        rows = [row.columns for row in probe.packed(document, 0, Counter()) if not row.columns["control"]]
        for name in {row["needle_id"] for row in rows}:
            mine = [row for row in rows if row["needle_id"] == name]
            (real,) = {row["needle_position"] for row in mine}
            lengths = [length for length in probe.grid.lengths if real + probe.rule.reserve <= length]
            assert [row["context_length"] for row in mine] == lengths
            for row in mine:
                depth = probe.rule.depth(real, row["context_length"])
                assert abs(depth - row["depth_percent"]) == min(abs(depth - one) for one in DEPTHS)
            assert real >= 64


def test_packed_needles_far_from_every_grid_depth_are_not_counted(
    make_probe: MakeProbe, documents: tuple[Document, ...]
) -> None:
    probe = make_probe(depths=(0.0, 50.0))
    rows = [row.columns for row in probe.packed(documents[0], 0, Counter()) if not row.columns["control"]]
    for row in rows:
        assert abs(probe.rule.depth(row["needle_position"], row["context_length"]) - row["depth_percent"]) <= 6.25
    assert {row["depth_percent"] for row in rows} == {0.0, 50.0}


def test_the_exact_subset_repeats_packed_rows_with_the_needle_alone(
    make_probe: MakeProbe, documents: tuple[Document, ...]
) -> None:
    probe, lengths, ranks = make_probe(), [], set()
    for rank, document in enumerate(documents):
        packed = probe.packed(document, 0, Counter())
        rows = {(row.columns["needle_id"], row.columns["context_length"]): row.columns for row in packed}
        (alone,) = probe.exact_subset(document, 0, packed, rank, 1)
        twin = rows[alone.columns["needle_id"], alone.columns["context_length"]]
        assert (alone.columns["plan"], alone.columns["n_needles"]) == ("exact", 1)
        for column in ("depth_percent", "expected", "document", "trial", "control"):
            assert alone.columns[column] == twin[column]
        assert alone.columns["needle_position"] == int(twin["needle_id"].split(".")[2]) + 1
        lengths.append(alone.columns["context_length"])
        there = [name for name, length in rows if length == lengths[-1]]
        ranks.add(there.index(alone.columns["needle_id"]))
    assert sorted(lengths) == list(LENGTHS)
    assert len(ranks) > 1
    several = probe.exact_subset(documents[0], 0, probe.packed(documents[0], 0, Counter()), 0, 5)
    assert len({(row.columns["needle_id"], row.columns["context_length"]) for row in several}) == len(several) > 3
    assert probe.exact_subset(documents[0], 0, [], 0, 2) == []


@pytest.mark.parametrize("add_bos", [True, False])
def test_the_reserve_is_enough_for_every_wording_and_key(make_probe: MakeProbe, add_bos: bool) -> None:
    probe = make_probe(add_bos=add_bos)
    value = "98765"
    for form in probe.task.wordings:
        statements = [
            len(probe.frame.statement(form.statement.format(key=key, value=value))) for key in probe.task.keys
        ]
        questions = [
            len(probe.frame.question(form.question.format(key=key), form.lead.format(key=key), value))
            for key in probe.task.keys
        ]
        assert all(map(probe.rule.reserve.__ge__, map(sum, zip(statements, questions, strict=True))))


# --- reading the answer


@pytest.fixture
def reading(make_probe: MakeProbe, documents: tuple[Document, ...]) -> Callable[..., dict[str, Any]]:
    """Return a function that reads a row off an arg-max, given as text, with nll 0.5 and the given margins."""
    probe = make_probe(lengths=(512,), depths=(50.0,))
    row = probe.exact(documents[0], 0)[0]
    expected = row.columns["expected"]
    tokenizer = probe.frame.tokenizer

    def read(said: str, margins: tuple[float, ...] = (1.0,) * 6, nll: float = 0.5) -> dict[str, Any]:
        argmax = np.array(tokenizer(said.format(expected), add_special_tokens=False)["input_ids"])
        assert len(argmax) == 6
        scores = TokenScores(np.array([nll] * 5 + [np.nan]), argmax, np.array(margins))
        return {"expected": expected, **row.read([scores])}

    return read


@pytest.mark.parametrize("after", [".", " ", "e", "\n"])
def test_the_answer_and_then_something_else_is_correct(reading: Any, after: str) -> None:
    result = reading("{}" + after)
    assert result["correct"] is True
    assert result["got"] == result["expected"]


def test_an_answer_that_goes_on_is_wrong(reading: Any) -> None:
    result = reading("{}6")
    assert result["correct"] is False
    assert result["got"] == result["expected"] + "6"


@pytest.mark.parametrize("place", range(5))
def test_one_other_digit_is_wrong(reading: Any, place: int) -> None:
    right = reading("{}.")["expected"]
    said = right[:place] + ("1" if right[place] != "1" else "2") + right[place + 1 :]
    result = reading(said + ".")
    assert result["correct"] is False
    assert result["got"] == said


def test_the_log_probability_is_summed_and_the_margin_is_the_smallest_over_the_answer(reading: Any) -> None:
    result = reading("{}.", (3.0, 2.0, 0.25, 4.0, 5.0, 0.1))
    assert result["answer_logprob"] == pytest.approx(-2.5)
    assert result["margin"] == 0.25


@pytest.mark.parametrize(
    ("margins", "nll"), [((1.0,) * 5 + (np.nan,), 0.5), ((1.0,) * 6, np.nan), ((1.0,) * 6, np.inf)]
)
def test_logits_that_are_not_finite_are_never_a_wrong_answer(reading: Any, margins: Any, nll: float) -> None:
    result = reading("11111.", margins, nll)
    assert result["status"] == "nan"
    assert "correct" not in result
