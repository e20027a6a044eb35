"""Planning: a batch is divided among tasks, and none is larger than a limit allows."""

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


def test_between_two_offsets_lie_the_numbers_that_were_not_read() -> None:
    start, end = Offsets("orders", 7, {0: 5, 1: 9, 2: 1}), Offsets("orders", 7, {0: 8, 1: 9, 2: 2})
    assert ranges_between(start, end) == [FragmentRange(0, 5, 7, 7), FragmentRange(2, 1, 1, 7)]
    assert ranges_between(end, end) == []


def test_of_an_entity_that_was_lost_all_of_the_new_one_is_read() -> None:
    start, end = Offsets("orders", 7, {0: 5, 1: 9}), Offsets("orders", 8, {0: 3})
    assert ranges_between(start, end) == [FragmentRange(0, 0, 2, 8)]
    assert ranges_between(start, Offsets("orders", 7, {0: 3, 1: 9})) == [FragmentRange(0, 0, 2, 7)]


def test_numbers_before_the_first_message_are_nobody_s_work() -> None:
    where = Positions(7, (FragmentPosition(0, 90, 101, 11, is_available=True),))
    assert trim_to_low([FragmentRange(0, 1, 100, 7)], where) == [FragmentRange(0, 90, 100, 7)]
    assert trim_to_low([FragmentRange(0, 1, 80, 7)], where) == []


@given(sizes, st.integers(1, 100), st.none() | st.integers(50, 5_000))
@settings(deadline=None)
def test_tasks_have_every_number_once_and_none_too_many(counts: list[int], least: int, most: int | None) -> None:
    whole = ranges(counts)
    divided = split_ranges(whole, min_partitions=least, max_per_partition=most)
    numbers = sorted((one.fragment, one.first, one.last) for one in divided)
    for one in whole:
        pieces = [(first, last) for fragment, first, last in numbers if fragment == one.fragment]
        assert pieces[0][0] == one.first
        assert pieces[-1][1] == one.last
        assert all(after[0] == before[1] + 1 for before, after in pairwise(pieces))
    assert all(one.size > 0 for one in divided)
    assert most is None or all(one.size <= most for one in divided)


def test_more_tasks_are_made_of_the_largest_ranges() -> None:
    divided = split_ranges(ranges([900, 100]), min_partitions=10)
    assert [one.fragment for one in divided] == [0] * 9 + [1]


@given(sizes, st.integers(1, 20_000))
def test_a_limit_is_shared_among_fragments_and_kept(counts: list[int], most: int) -> None:
    first = dict.fromkeys(range(len(counts)), 5)
    end = {number: 5 + count for number, count in enumerate(counts)}
    found = limit_offsets(first, end, most)
    taken = {number: found[number] - first[number] for number in first}
    assert sum(taken.values()) == min(most, sum(counts))
    assert all(0 <= taken[number] <= count for number, count in enumerate(counts))


def test_a_limit_always_lets_something_through() -> None:
    assert sum(limit_offsets({0: 0, 1: 0, 2: 0}, {0: 10, 1: 10, 2: 10}, 1).values()) == 1
