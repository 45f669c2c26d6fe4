"""The passage is fixed, since committed outputs depend on every one of its characters."""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections import Counter
from importlib import resources

import pytest

from labkit.kernels import ROOT
from labkit.texts import passage
from refimpl import weights
from refimpl.weights import gguf

SHA256 = "a80fff053b605e6ef2f467d78aaa7fbbf7fe718d0b175e1bf79936e1718f220d"
SENTENCE_END = re.compile(r"(?<=[.?!])\s+")


def repeated(text: str) -> list[str]:
    """Sentences that occur twice, and runs of eight words that do."""
    sentences = [s.strip() for s in SENTENCE_END.split(text) if s.strip()]
    words = re.findall(r"[a-z0-9]+", text.lower())
    runs = [" ".join(words[i : i + 8]) for i in range(len(words) - 7)]
    return [item for item, count in Counter(sentences + runs).items() if count > 1]


def test_the_passage_is_the_one_the_outputs_were_made_with() -> None:
    assert hashlib.sha256(passage().encode("ascii")).hexdigest() == SHA256


def test_the_passage_has_about_four_thousand_tokens() -> None:
    metadata, _ = gguf.read_gguf(weights.find_model())
    tokenizer = weights.Tokenizer.from_gguf(metadata)
    tokens = tokenizer.encode(passage())
    assert 3_900 <= len(tokens) <= 4_200
    assert tokenizer.decode(tokens) == passage()
    assert len(set(tokens)) > 1_000, "the vocabulary is varied"


def test_the_passage_is_plain_text_in_paragraphs() -> None:
    text = passage()
    assert text.isascii()
    assert set(re.findall(r"[^A-Za-z0-9 ]", text)) <= set("\n.,:;?-/'")
    paragraphs = text.rstrip("\n").split("\n\n")
    assert text.endswith(".\n")
    assert len(paragraphs) >= 20
    for paragraph in paragraphs:
        assert "\n" not in paragraph and "  " not in paragraph
        assert paragraph == paragraph.strip()
        assert 60 <= len(paragraph.split()) <= 250
    assert len(re.findall(r"\d+", text)) >= 50, "numbers are part of it"


def test_nothing_in_the_passage_is_said_twice() -> None:
    assert repeated(passage()) == []


@pytest.mark.parametrize(
    "text",
    ["It rises. It falls. It rises.", "a b c d e f g h, and then again: a b c d e f g h"],
)
def test_a_repetition_would_be_seen(text: str) -> None:
    assert repeated(text)


def test_the_passage_is_installed_with_the_package() -> None:
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    covered = patterns["tool"]["setuptools"]["package-data"]["labkit"]
    data = resources.files("labkit").joinpath("data/passage.txt")
    assert data.is_file()
    assert {"data/*", "data/*.txt"} & set(covered)
