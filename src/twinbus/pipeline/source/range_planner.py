"""Planning: the fragment and sequence numbers that each task reads.

Owns the size of a batch and its division into tasks: one range per fragment. Large ranges are split; further ranges are
split if more tasks are requested. The size of a range is its number of sequence numbers. Some numbers may be missing,
so the size is an upper bound on the number of messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from twinbus.pipeline.source.offsets import Offsets
    from twinbus.pipeline.source.positions import Positions


@dataclass(frozen=True, slots=True)
class FragmentRange:
    """A range of sequence numbers in one fragment, including `first` and `last`."""

    fragment: int
    first: int
    last: int
    entity_id: int = 0
    """Id of the entity for which the range was planned (0: any entity with that name)."""

    @property
    def size(self) -> int:
        """Number of sequence numbers in the range."""
        return self.last - self.first + 1


def ranges_between(start: Offsets, end: Offsets) -> list[FragmentRange]:
    """Return the ranges between two offsets. If the entity was recreated, the ranges cover all of the new entity."""
    ranges = []
    for fragment, last in sorted(end.fragments.items()):
        first = start.fragments.get(fragment, 0)
        if start.entity_id != end.entity_id or first > last:
            first = 0
        if first < last:
            ranges.append(FragmentRange(fragment, first, last - 1, end.entity_id))
    return ranges


def trim_to_low(ranges: list[FragmentRange], positions: Positions) -> list[FragmentRange]:
    """Cut off the sequence numbers before the first existing message, so that tasks get equal shares."""
    low = {span.fragment: span.low_sequence_number for span in positions.fragments if span.is_available}
    trimmed = [
        FragmentRange(span.fragment, max(span.first, low.get(span.fragment, 0)), span.last, span.entity_id)
        for span in ranges
    ]
    return [span for span in trimmed if span.size > 0]


def split_ranges(
    ranges: list[FragmentRange], *, min_partitions: int = 1, max_per_partition: int | None = None
) -> list[FragmentRange]:
    """Split ranges for tasks: up to `max_per_partition` numbers each, and about `min_partitions` in total."""
    total = sum(range_.size for range_ in ranges)
    split: list[FragmentRange] = []
    for range_ in ranges:
        pieces = 1
        if max_per_partition is not None:
            pieces = -(-range_.size // max_per_partition)
        if min_partitions > len(ranges):
            pieces = max(pieces, round(range_.size / total * min_partitions))
        split += _split_range(range_, min(pieces, range_.size))
    return split


def _split_range(full_range: FragmentRange, pieces: int) -> list[FragmentRange]:
    """Split a range into pieces of nearly equal size."""
    edges = [full_range.first + full_range.size * number // pieces for number in range(pieces + 1)]
    return [FragmentRange(full_range.fragment, first, end - 1, full_range.entity_id) for first, end in pairwise(edges)]


def limit_offsets(starts: Mapping[int, int], ends: Mapping[int, int], max_messages: int) -> dict[int, int]:
    """Limit the ends to `max_messages` sequence numbers in total, shared in proportion to the size of each fragment."""
    sizes = {fragment: max(0, ends[fragment] - starts.get(fragment, 0)) for fragment in ends}
    total = sum(sizes.values())
    if total <= max_messages:
        return dict(ends)
    shares = {fragment: size * max_messages // total for fragment, size in sizes.items()}
    remaining = max_messages - sum(shares.values())
    by_remainder = sorted(sizes, key=lambda fragment: -(sizes[fragment] * max_messages % total))
    for fragment in by_remainder[:remaining]:
        shares[fragment] += 1
    return {fragment: starts.get(fragment, 0) + share for fragment, share in shares.items()}
