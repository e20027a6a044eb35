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
class Range:
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


def ranges_between(start: Offsets, end: Offsets) -> list[Range]:
    """What lies between two offsets. Of an entity that was lost between them, all that there is of the new one."""
    found = []
    for fragment, last in sorted(end.fragments.items()):
        first = start.fragments.get(fragment, 0)
        if start.entity_id != end.entity_id or first > last:
            first = 0
        if first < last:
            found.append(Range(fragment, first, last - 1, end.entity_id))
    return found


def begin_at_low(ranges: list[Range], positions: Positions) -> list[Range]:
    """The same ranges without the numbers before the first message that is there: tasks are shared out evenly then."""
    low = {one.number: one.low for one in positions.fragments if one.is_available}
    raised = [Range(one.fragment, max(one.first, low.get(one.fragment, 0)), one.last, one.entity_id) for one in ranges]
    return [one for one in raised if one.size > 0]


def divide(ranges: list[Range], *, min_partitions: int = 1, max_per_partition: int | None = None) -> list[Range]:
    """Ranges for tasks: none larger than is said, and as many as are wanted, if there are numbers enough."""
    total = sum(one.size for one in ranges)
    divided: list[Range] = []
    for one in ranges:
        pieces = 1
        if max_per_partition is not None:
            pieces = -(-one.size // max_per_partition)
        if min_partitions > len(ranges):
            pieces = max(pieces, round(one.size / total * min_partitions))
        divided += _split(one, min(pieces, one.size))
    return divided


def _split(whole: Range, pieces: int) -> list[Range]:
    """Pieces of the same size, or as nearly as can be."""
    edges = [whole.first + whole.size * number // pieces for number in range(pieces + 1)]
    return [Range(whole.fragment, first, end - 1, whole.entity_id) for first, end in pairwise(edges)]


def limited(first: Mapping[int, int], end: Mapping[int, int], most: int) -> dict[int, int]:
    """Ends so near that there are `most` numbers up to them, shared among fragments by how much each has."""
    sizes = {fragment: max(0, end[fragment] - first.get(fragment, 0)) for fragment in end}
    total = sum(sizes.values())
    if total <= most:
        return dict(end)
    shares = {fragment: size * most // total for fragment, size in sizes.items()}
    left = most - sum(shares.values())
    by_rest = sorted(sizes, key=lambda fragment: -(sizes[fragment] * most % total))
    for fragment in by_rest[:left]:
        shares[fragment] += 1
    return {fragment: first.get(fragment, 0) + share for fragment, share in shares.items()}
