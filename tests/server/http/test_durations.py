"""Conversion of ISO 8601 durations to milliseconds and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinbus.model.atom import durations
from twinbus.model.description import FOREVER_MS
from twinbus.model.errors import InvalidArgument

PAIRS = [
    ("PT1M", 60_000),
    ("PT30S", 30_000),
    ("P14D", 1_209_600_000),
    ("PT1H", 3_600_000),
    ("P1DT2H3M4.567S", 93_784_567),
    ("PT0.5S", 500),
    ("PT0.001S", 1),
    ("P1DT0.25S", 86_400_250),
    (durations.FOREVER_TEXT, FOREVER_MS),
]


@pytest.mark.parametrize(("text", "duration_ms"), PAIRS)
def test_durations_are_parsed_and_formatted(text: str, duration_ms: int) -> None:
    assert durations.parse_duration(text) == duration_ms
    assert durations.format_duration(duration_ms) == text


@pytest.mark.parametrize(
    ("text", "duration_ms"),
    [
        ("PT300S", 300_000),
        ("PT90M", 5_400_000),
        ("P0DT0H5M0S", 300_000),
        ("P1Y", 31_536_000_000),
        ("P2M", 5_184_000_000),
        ("PT1.9999S", 1_999),
    ],
)
def test_other_spellings_are_parsed(text: str, duration_ms: int) -> None:
    assert durations.parse_duration(text) == duration_ms


@pytest.mark.parametrize(
    "text",
    [
        "", "P", "PT", "T1M", "1M", "60", "P1", "PT1", "P1DT", "PT1S1M", "P1H", "pt1m", "-PT1M", "+PT1M", "PT-1M",
        "PT1,5S", "PT.5S", "PT1.S", "PT1M ", "PT1M\n", "P1W", "PT\u0661M", "P" + "9" * 5000 + "D",
        "PT0S", "P0D", "forever",
    ],
)  # fmt: skip
def test_an_invalid_duration_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument):
        durations.parse_duration(text)


@given(st.integers(1, FOREVER_MS // 86_400_000 * 86_400_000 - 1))
def test_a_formatted_duration_is_parsed_to_the_same_value(duration_ms: int) -> None:
    assert durations.parse_duration(durations.format_duration(duration_ms)) == duration_ms
