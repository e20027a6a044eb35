"""LIKE follows its definition, and takes time proportional to the text."""

from __future__ import annotations

import random
import re
import time
from typing import SupportsIndex

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinbus.broker.filters.errors import FilterError
from twinbus.broker.filters.like_pattern import MAX_PATTERN_CHARACTERS, LikePattern


def matches_by_definition(pattern: str, text: str, escape: str | None) -> bool:
    """Match by the definition: character by character, trying every possibility."""
    if not pattern:
        return not text
    if pattern[0] == escape:
        return bool(text) and text[0] == pattern[1] and matches_by_definition(pattern[2:], text[1:], escape)
    if pattern[0] == "%":
        return any(matches_by_definition(pattern[1:], text[skipped:], escape) for skipped in range(len(text) + 1))
    return bool(text) and pattern[0] in ("_", text[0]) and matches_by_definition(pattern[1:], text[1:], escape)


characters = st.text(alphabet="ab%_!\n", max_size=7)


@settings(deadline=None)
@given(characters, characters, st.sampled_from([None, "!", "%", "_", "a"]))
def test_a_pattern_matches_as_defined(pattern: str, text: str, escape: str | None) -> None:
    if escape is not None and pattern.replace(escape * 2, "").endswith(escape):
        return
    assert LikePattern(pattern, escape).matches(text) == matches_by_definition(pattern, text, escape)


def test_an_underscore_matches_one_character_of_any_size() -> None:
    assert LikePattern("_").matches("😀")
    assert LikePattern("%_\u0301").matches("xe\u0301")


@pytest.mark.parametrize(
    "pattern",
    [
        "%a" * 500,
        "%a_" * 300,
        "%_" * 500,
        "%" + "a" * 500 + "_" + "a" * 500 + "b%",
        "%" + "a" * 1000 + "b%",
        "%ab_" * 200,
    ],
)
def test_no_pattern_is_slow(pattern: str) -> None:
    ready, text = LikePattern(pattern), "a" * 32_768
    started = time.process_time()
    ready.matches(text)
    assert time.process_time() - started < 0.5  # takes a hundredth of that on an idle machine


class CountingText(str):
    """A string that counts how often one of its characters is read."""

    __slots__ = ("reads",)
    count_reads: int

    def __getitem__(self, at: SupportsIndex | slice) -> str:
        self.reads = getattr(self, "reads", 0) + 1
        return super().__getitem__(at)


def count_reads(pattern: str, text: str) -> int:
    """Return the number of single-character reads of a match."""
    counted = CountingText(text)
    counted.reads = 0
    LikePattern(pattern).matches(counted)
    return counted.reads


@pytest.mark.parametrize(
    "pattern", ["%_b%", "%a_b%", "%__a%_b", "%" + "a_" * 300 + "b%", "%a__a%ab_ba%", "%" + "a" * 60 + "_b%"]
)
def test_a_longer_text_is_not_read_character_by_character(pattern: str) -> None:
    assert count_reads(pattern, "a" * 32_768) == count_reads(pattern, "a" * 16_384) <= 1_000


@pytest.mark.parametrize("alphabet", ["ab", "a\u0101", "a\U0001f600\ud800"])
@pytest.mark.parametrize(
    "pattern", ["%{0}_{1}%", "%{0}_{0}_{1}%{1}_{1}%", "{1}%{0}__{1}%{1}", "%_{0}_{1}_%", "%\n_{1}%"]
)
def test_a_match_far_into_the_text_is_found(pattern: str, alphabet: str) -> None:
    like_pattern = pattern.format(alphabet[0], alphabet[-1])
    generator = random.Random(1)
    for _ in range(60):
        ending = "".join(generator.choices(alphabet, k=generator.randrange(9)))
        text = alphabet[-1] + alphabet[0] * generator.choice((600, 700)) + ending
        assert LikePattern(like_pattern).matches(text) == (as_regex(like_pattern).fullmatch(text) is not None)


def as_regex(pattern: str) -> re.Pattern[str]:
    """Return the pattern as a regular expression."""
    parts = {"%": ".*?", "_": "."}
    return re.compile("".join(parts.get(character) or re.escape(character) for character in pattern), re.DOTALL)


def test_no_pattern_reads_a_text_more_than_once() -> None:
    many = "".join(chr(300 + number) for number in range(80))
    pattern = "%" + "_".join(many) + "%"
    assert count_reads(pattern, many * 100) <= 8_000 + 200
    assert count_reads(pattern, many * 200) <= 16_000 + 200


def test_a_pattern_that_is_too_long_is_refused() -> None:
    with pytest.raises(FilterError, match="1025 characters"):
        LikePattern("x" * (MAX_PATTERN_CHARACTERS + 1))
