"""LIKE does what its definition says, and takes time in proportion to the text."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinbus.broker.filters.errors import FilterError
from twinbus.broker.filters.like import MAX_PATTERN, Pattern


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
    assert Pattern(pattern, escape).matches(text) == means(pattern, text, escape)


def test_any_character_is_one_whatever_it_takes_in_bytes() -> None:
    assert Pattern("_").matches("😀")
    assert Pattern("%_\u0301").matches("xe\u0301")


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
    ready, text = Pattern(pattern), "a" * 32_768
    started = time.process_time()
    ready.matches(text)
    assert time.process_time() - started < 0.5  # a hundredth of that, where nothing else runs


def test_a_pattern_is_not_longer_than_a_filter_can_be() -> None:
    with pytest.raises(FilterError, match="1025 characters"):
        Pattern("x" * (MAX_PATTERN + 1))
