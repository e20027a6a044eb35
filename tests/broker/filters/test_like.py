"""LIKE does what its definition says, and takes time in proportion to the text."""

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


def means(pattern: str, text: str, escape: str | None) -> bool:
    """The definition: character by character, trying everything."""
    if not pattern:
        return not text
    if pattern[0] == escape:
        return bool(text) and text[0] == pattern[1] and means(pattern[2:], text[1:], escape)
    if pattern[0] == "%":
        return any(means(pattern[1:], text[skipped:], escape) for skipped in range(len(text) + 1))
    return bool(text) and pattern[0] in ("_", text[0]) and means(pattern[1:], text[1:], escape)


characters = st.text(alphabet="ab%_!\n", max_size=7)


@settings(deadline=None)
@given(characters, characters, st.sampled_from([None, "!", "%", "_", "a"]))
def test_it_means_what_the_definition_says(pattern: str, text: str, escape: str | None) -> None:
    if escape is not None and pattern.replace(escape * 2, "").endswith(escape):
        return
    assert LikePattern(pattern, escape).matches(text) == means(pattern, text, escape)


def test_any_character_is_one_whatever_it_takes_in_bytes() -> None:
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
def test_no_pattern_makes_it_slow(pattern: str) -> None:
    ready, text = LikePattern(pattern), "a" * 32_768
    started = time.process_time()
    ready.matches(text)
    assert time.process_time() - started < 0.5  # a hundredth of that, where nothing else runs


class CountingText(str):
    """A text that counts how often one of its characters is asked for."""

    __slots__ = ("reads",)
    reads: int

    def __getitem__(self, at: SupportsIndex | slice) -> str:
        self.reads = getattr(self, "reads", 0) + 1
        return super().__getitem__(at)


def reads(pattern: str, text: str) -> int:
    """Characters that are read one by one before a match is decided."""
    counted = CountingText(text)
    counted.reads = 0
    LikePattern(pattern).matches(counted)
    return counted.reads


@pytest.mark.parametrize(
    "pattern", ["%_b%", "%a_b%", "%__a%_b", "%" + "a_" * 300 + "b%", "%a__a%ab_ba%", "%" + "a" * 60 + "_b%"]
)
def test_a_longer_text_is_not_read_character_by_character(pattern: str) -> None:
    assert reads(pattern, "a" * 32_768) == reads(pattern, "a" * 16_384) <= 1_000


@pytest.mark.parametrize("alphabet", ["ab", "a\u0101", "a\U0001f600\ud800"])
@pytest.mark.parametrize(
    "pattern", ["%{0}_{1}%", "%{0}_{0}_{1}%{1}_{1}%", "{1}%{0}__{1}%{1}", "%_{0}_{1}_%", "%\n_{1}%"]
)
def test_a_place_far_away_is_found_as_one_nearby(pattern: str, alphabet: str) -> None:
    wanted = pattern.format(alphabet[0], alphabet[-1])
    chances = random.Random(1)
    for _ in range(60):
        near = "".join(chances.choices(alphabet, k=chances.randrange(9)))
        far = alphabet[-1] + alphabet[0] * chances.choice((600, 700)) + near
        assert LikePattern(wanted).matches(far) == (like(wanted).fullmatch(far) is not None)


def like(pattern: str) -> re.Pattern[str]:
    """The same as a regular expression."""
    parts = {"%": ".*?", "_": "."}
    return re.compile("".join(parts.get(character) or re.escape(character) for character in pattern), re.DOTALL)


def test_no_pattern_reads_a_text_more_than_once() -> None:
    many = "".join(chr(300 + number) for number in range(80))
    pattern = "%" + "_".join(many) + "%"
    assert reads(pattern, many * 100) <= 8_000 + 200
    assert reads(pattern, many * 200) <= 16_000 + 200


def test_a_pattern_is_not_longer_than_a_filter_can_be() -> None:
    with pytest.raises(FilterError, match="1025 characters"):
        LikePattern("x" * (MAX_PATTERN_CHARACTERS + 1))
