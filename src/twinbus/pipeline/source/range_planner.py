"""Planning: which numbers of which fragment one task reads.

Owns: how much a batch is, and how it is divided: one range for each fragment, large ones split, and more of them where
more tasks are wanted. Numbers are what is counted; some may be missing, so a batch has as many messages at most.
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
    """Numbers of one fragment, first and last included."""

    fragment: int
    first: int
    last: int
    entity_id: int = 0
    """Of which entity of that name; 0: whichever there is."""

    @property
    def size(self) -> int:
        """How many numbers these are."""
        return self.last - self.first + 1


def ranges_between(start: Offsets, end: Offsets) -> list[FragmentRange]:
    """What lies between two offsets. Of an entity that was lost between them, all that there is of the new one."""
    found = []
    for fragment, last in sorted(end.fragments.items()):
        first = start.fragments.get(fragment, 0)
        if start.entity_id != end.entity_id or first > last:
            first = 0
        if first < last:
            found.append(FragmentRange(fragment, first, last - 1, end.entity_id))
    return found


def trim_to_low(ranges: list[FragmentRange], positions: Positions) -> list[FragmentRange]:
    """The same ranges without the numbers before the first message that is there: tasks are shared out evenly then."""
    low = {one.fragment: one.low_sequence_number for one in positions.fragments if one.is_available}
    raised = [
        FragmentRange(one.fragment, max(one.first, low.get(one.fragment, 0)), one.last, one.entity_id) for one in ranges
    ]
    return [one for one in raised if one.size > 0]


def split_ranges(
    ranges: list[FragmentRange], *, min_partitions: int = 1, max_per_partition: int | None = None
) -> list[FragmentRange]:
    """Ranges for tasks: none larger than is said, and as many as are wanted, if there are numbers enough."""
    total = sum(one.size for one in ranges)
    divided: list[FragmentRange] = []
    for one in ranges:
        pieces = 1
        if max_per_partition is not None:
            pieces = -(-one.size // max_per_partition)
        if min_partitions > len(ranges):
            pieces = max(pieces, round(one.size / total * min_partitions))
        divided += _split_range(one, min(pieces, one.size))
    return divided


def _split_range(full_range: FragmentRange, pieces: int) -> list[FragmentRange]:
    """Pieces of the same size, or as nearly as can be."""
    edges = [full_range.first + full_range.size * number // pieces for number in range(pieces + 1)]
    return [FragmentRange(full_range.fragment, first, end - 1, full_range.entity_id) for first, end in pairwise(edges)]


def limit_offsets(starts: Mapping[int, int], ends: Mapping[int, int], max_messages: int) -> dict[int, int]:
    """Ends so near that there are `most` numbers up to them, shared among fragments by how much each has."""
    sizes = {fragment: max(0, ends[fragment] - starts.get(fragment, 0)) for fragment in ends}
    total = sum(sizes.values())
    if total <= max_messages:
        return dict(ends)
    shares = {fragment: size * max_messages // total for fragment, size in sizes.items()}
    left = max_messages - sum(shares.values())
    by_rest = sorted(sizes, key=lambda fragment: -(sizes[fragment] * max_messages % total))
    for fragment in by_rest[:left]:
        shares[fragment] += 1
    return {fragment: starts.get(fragment, 0) + share for fragment, share in shares.items()}
