"""A key always hashes to the same fragment, and keys are spread evenly over all fragments."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.support.partitioned_namespace import FRAGMENTS
from twinbus.model.partition_key import fragment_of

if TYPE_CHECKING:
    from collections.abc import Callable

KEYS = 100_000
CHI_SQUARE = 37.70
"""Critical value for 15 degrees of freedom: an even spread exceeds it once in a thousand tests."""
VECTORS = {
    "a": 15,
    "0": 5,
    "1": 6,
    "contoso": 0,
    "order-17": 0,
    "session 1": 13,
    "Grüße": 2,
    "日本語": 8,
    "x" * 128: 2,
    "": 4,
}
RANDOM = random.Random(7)
KINDS: dict[str, Callable[[int], str]] = {
    "random": lambda _: f"{RANDOM.getrandbits(128):032x}",
    "counted": lambda number: f"order {number}",
}


@pytest.mark.parametrize(("key", "fragment"), VECTORS.items())
def test_q25_a_key_hashes_to_the_same_fragment_on_every_machine_and_run(key: str, fragment: int) -> None:
    assert fragment_of(key.encode()) == fragment


@pytest.mark.parametrize("kind", KINDS)
def test_q25_keys_are_spread_evenly(kind: str) -> None:
    counts = Counter(fragment_of(KINDS[kind](number).encode()) for number in range(KEYS))
    assert set(counts) == set(range(FRAGMENTS))
    expected = KEYS / FRAGMENTS
    assert sum((count - expected) ** 2 / expected for count in counts.values()) < CHI_SQUARE
