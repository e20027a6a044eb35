"""Planning: a batch is divided among tasks, within the limits of a batch and of a task."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from twinbus.pipeline.source.offsets import Offsets
from twinbus.pipeline.source.positions import FragmentPosition, Positions
from twinbus.pipeline.source.range_planner import (
    FragmentRange,
    limit_offsets,
    ranges_between,
    split_ranges,
    trim_to_low,
)

sizes = st.lists(st.integers(1, 10_000), min_size=1, max_size=16)


def ranges(counts: list[int]) -> list[FragmentRange]:
    return [FragmentRange(number, 1, count, 7) for number, count in enumerate(counts)]


def test_the_range_between_two_offsets_has_the_unread_numbers() -> None:
    start, end = Offsets("orders", 7, {0: 5, 1: 9, 2: 1}), Offsets("orders", 7, {0: 8, 1: 9, 2: 2})
    assert ranges_between(start, end) == [FragmentRange(0, 5, 7, 7), FragmentRange(2, 1, 1, 7)]
    assert ranges_between(end, end) == []


def test_a_recreated_or_restored_entity_is_read_from_the_beginning() -> None:
    start, end = Offsets("orders", 7, {0: 5, 1: 9}), Offsets("orders", 8, {0: 3})
    assert ranges_between(start, end) == [FragmentRange(0, 0, 2, 8)]
    assert ranges_between(start, Offsets("orders", 7, {0: 3, 1: 9})) == [FragmentRange(0, 0, 2, 7)]


def test_ranges_start_at_the_first_message_that_exists() -> None:
    current = Positions(7, (FragmentPosition(0, 90, 101, 11, is_available=True),))
    assert trim_to_low([FragmentRange(0, 1, 100, 7)], current) == [FragmentRange(0, 90, 100, 7)]
    assert trim_to_low([FragmentRange(0, 1, 80, 7)], current) == []


@given(sizes, st.integers(1, 100), st.none() | st.integers(50, 5_000))
@settings(deadline=None)
def test_tasks_cover_every_number_once_within_their_limit(counts: list[int], min_tasks: int, limit: int | None) -> None:
    undivided = ranges(counts)
    divided = split_ranges(undivided, min_partitions=min_tasks, max_per_partition=limit)
    bounds = sorted((part.fragment, part.first, part.last) for part in divided)
    for part in undivided:
        pieces = [(first, last) for fragment, first, last in bounds if fragment == part.fragment]
        assert pieces[0][0] == part.first
        assert pieces[-1][1] == part.last
        assert all(after[0] == before[1] + 1 for before, after in pairwise(pieces))
    assert all(part.size > 0 for part in divided)
    assert limit is None or all(part.size <= limit for part in divided)


def test_the_largest_ranges_are_split_first() -> None:
    divided = split_ranges(ranges([900, 100]), min_partitions=10)
    assert [part.fragment for part in divided] == [0] * 9 + [1]


@given(sizes, st.integers(1, 20_000))
def test_a_limit_is_shared_among_fragments_and_used_up(counts: list[int], limit: int) -> None:
    first = dict.fromkeys(range(len(counts)), 5)
    end = {number: 5 + count for number, count in enumerate(counts)}
    limited = limit_offsets(first, end, limit)
    sizes = {number: limited[number] - first[number] for number in first}
    assert sum(sizes.values()) == min(limit, sum(counts))
    assert all(0 <= sizes[number] <= count for number, count in enumerate(counts))


def test_a_limit_of_one_still_reads_one_message() -> None:
    assert sum(limit_offsets({0: 0, 1: 0, 2: 0}, {0: 10, 1: 10, 2: 10}, 1).values()) == 1
