"""Redelivery: which messages may have been delivered before although their delivery count does not say so.

An exclusive receiver relies on the delivery count: a message with the count 0 was never delivered, or every receiver
has released it. Lock expiry and abandoning write a higher count. Two events leave no time for that write: a server that
is killed loses its locks, and a displaced receiver's messages go to the next receiver at once, in order. So before a
message is delivered to an exclusive receiver, its block of sequence numbers is noted on disk. Blocks without in-flight
messages are removed lazily. After a fragment is loaded, messages in noted blocks are delivered with a delivery count of
at least 1; the stored count, and with it dead-lettering by MaxDeliveryCount, does not change.

RAID systems use the same technique, the dirty-region log: it needs one small write per block instead of one per
message. After a crash, too many messages may count as possibly delivered, but never too few. An entity without an
exclusive receiver writes nothing.

Owns: the noted blocks, and the messages reclaimed from displaced receivers. This module must not know consumers.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

from twinbus.broker import store_keys
from twinbus.broker.message_record import SCHEDULED_STATE, with_one_delivery
from twinbus.model.callbacks import ignore
from twinbus.store.protocol import Table

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Iterable

    from twinbus.broker.clock import Timer
    from twinbus.broker.fragment.fragment import Fragment
    from twinbus.broker.ports.callbacks import OnDone
    from twinbus.model.errors import ServiceBusError

BLOCK_SHIFT: Final = 10
BLOCK_SIZE: Final = 1 << BLOCK_SHIFT
"""The number of sequence numbers in a block. One write notes a whole block."""
CLEANUP_DELAY_S: Final = 10.0
"""The time after which an unused block is removed."""
MAX_RANGES: Final = 64
"""The maximum number of ranges from earlier incarnations; beyond it, the closest ranges are merged."""
_VERSION: Final = 1
_RANGE: Final = Struct(">QQ")


class RedeliveryTracker:
    """The messages of one fragment that may have been delivered before."""

    def __init__(self, fragment: Fragment) -> None:
        """Create a tracker without noted blocks."""
        self.is_tracking = False
        """Whether there is an exclusive receiver, in which case only messages in noted blocks are delivered."""
        self.has_possible_redeliveries = False
        """Whether some messages may have been delivered before, so that each message must be checked."""
        self.noted_blocks: set[int] = set()
        """The blocks in the last write, on disk or not."""
        self._fragment = fragment
        self._key = fragment.message_table.key_prefix + store_keys.MAYBE_DELIVERED
        self._synced_blocks: set[int] = set()
        """The blocks of `noted_blocks` that are on disk."""
        self._earlier_ranges: list[tuple[int, int]] = []
        """Ranges of sequence numbers (both ends included) noted by earlier incarnations."""
        self._reclaimed: set[int] = set()
        """Messages reclaimed from displaced receivers, whose stored delivery count did not change."""
        self._pending_returns = 0
        """The number of operations that return messages: until they finish, no later message is delivered."""
        self._stored_row = b""
        """The row of the last write."""
        self._was_used = False
        self._timer: Timer | None = None

    # --- delivering ---------------------------------------------------------------------------------------------------

    def set_tracking(self, *, is_on: bool) -> None:
        """Start or stop tracking deliveries, when an exclusive receiver attaches or detaches."""
        self.is_tracking = is_on

    def deliverable_count(self, ready: deque[tuple[int, bytes]], count: int) -> int:
        """Return how many of the first `count` messages may be delivered to an exclusive receiver now.

        Missing blocks are noted, and the fragment dispatches again when they are on disk. The next block is noted when
        half of the current block is used, so that the receiver does not wait.
        """
        if self._pending_returns:
            return 0
        self._was_used = True
        first, last = ready[0][0] >> BLOCK_SHIFT, ready[count - 1][0]
        block, synced = last >> BLOCK_SHIFT, self._synced_blocks
        reached = count
        if first not in synced or block not in synced or block - first > 1:
            for at in range(count):
                if ready[at][0] >> BLOCK_SHIFT not in synced:
                    reached = at
                    break
        is_half_used = last & (BLOCK_SIZE - 1) >= BLOCK_SIZE // 2
        if reached < count or (is_half_used and block + 1 not in self.noted_blocks):
            needed_blocks = {ready[at][0] >> BLOCK_SHIFT for at in range(count)}
            if is_half_used:
                needed_blocks.add(block + 1)
            if not needed_blocks <= self.noted_blocks:
                self._write_blocks(needed_blocks, ignore)
        return reached

    def ensure_noted(self, sequences: list[int], on_done: OnDone) -> None:
        """Call `on_done` when the blocks of these messages are on disk, or at once if no receiver is exclusive."""
        needed_blocks = {sequence >> BLOCK_SHIFT for sequence in sequences} if self.is_tracking else set()
        self._was_used = True
        if needed_blocks <= self._synced_blocks:
            on_done(None)
        else:
            self._write_blocks(needed_blocks, on_done)

    def add_reclaimed(self, sequences: Iterable[int]) -> None:
        """Record messages that a receiver has seen and that are available again with the same delivery count."""
        self._reclaimed.update(sequences)
        self.has_possible_redeliveries = bool(self._earlier_ranges or self._reclaimed)

    def add_reclaimed_if_noted(self, sequence: int) -> None:
        """Record a returned message like `add_reclaimed`, if an exclusive receiver may have received the message."""
        if sequence >> BLOCK_SHIFT in self.noted_blocks:
            self.add_reclaimed((sequence,))

    def forget(self, sequences: Iterable[int]) -> None:
        """Forget messages that were deleted, or stored with a higher delivery count."""
        if self._reclaimed:
            self._reclaimed.difference_update(sequences)

    def block_until_returned(self, on_done: OnDone) -> OnDone:
        """Deliver nothing to an exclusive receiver until the returned callback is called, to keep the order."""
        incarnation = self._fragment.incarnation
        self._pending_returns += 1

        def on_returned(error: ServiceBusError | None) -> None:
            if incarnation == self._fragment.incarnation:
                self._pending_returns -= 1
            on_done(error)

        return on_returned

    # --- delivery counts ----------------------------------------------------------------------------------------------

    def may_have_been_delivered(self, sequence: int) -> bool:
        """Return whether a message may have been delivered although its stored count is 0."""
        for first, last in self._earlier_ranges:
            if first <= sequence <= last:
                return True
        return sequence in self._reclaimed

    def as_delivered(self, sequence: int, record: bytes) -> bytes:
        """Return a record for delivery, with a count of at least 1 if the message may have been delivered before."""
        if record[3] == SCHEDULED_STATE or not self.may_have_been_delivered(sequence):
            return record
        return with_one_delivery(record)

    # --- storage ------------------------------------------------------------------------------------------------------

    @property
    def key(self) -> bytes:
        """The key of the row with the noted blocks."""
        return self._key

    def reset(self) -> None:
        """Discard the state in memory, except the ranges of earlier incarnations."""
        self.noted_blocks, self._synced_blocks = set(), set()
        self._reclaimed = set()
        self._pending_returns = 0
        self._was_used = False
        self.has_possible_redeliveries = bool(self._earlier_ranges)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def load(self, value: bytes | None) -> None:
        """Load the row of earlier incarnations: existing messages in its ranges may have been delivered."""
        last_sequence = self._fragment.message_table.next_sequence - 1
        self._stored_row = value or b""
        ranges = unpack_ranges(self._stored_row)
        self._earlier_ranges = [(first, min(last, last_sequence)) for first, last in ranges if first <= last_sequence]
        self._drop_removed()
        if self._stored_row:
            self._schedule_cleanup()  # otherwise new messages would count as possibly delivered after the next crash

    def _blocks_in_use(self) -> set[int]:
        """Return the blocks with messages that are in flight or were reclaimed."""
        fragment = self._fragment
        blocks = {sequence >> BLOCK_SHIFT for sequence in fragment.in_flight.locks}
        blocks |= {sequence >> BLOCK_SHIFT for sequence in fragment.deferred_in_flight}
        return blocks | {sequence >> BLOCK_SHIFT for sequence in self._reclaimed}

    def _write_blocks(self, blocks_to_note: set[int], on_done: OnDone) -> None:
        """Write the given blocks and all blocks in use, in the batch of this turn."""
        fragment, blocks = self._fragment, blocks_to_note | self._blocks_in_use()
        self._drop_removed()
        self.noted_blocks = blocks
        self._synced_blocks &= blocks  # messages of a removed block are delivered only when the block is noted again
        self._stored_row = pack_ranges(self._earlier_ranges + _ranges_of(blocks))
        if self._stored_row:
            fragment.commit_log.batch.put(self._key, self._stored_row, Table.INDEX)
        else:
            fragment.commit_log.batch.delete(self._key, Table.INDEX)

        def on_applied() -> None:
            self._synced_blocks |= blocks & self.noted_blocks

        fragment.commit_log.add(fragment, 0, on_applied, on_done)
        if blocks:
            self._schedule_cleanup()

    def _drop_removed(self) -> None:
        """Forget messages below the low watermark, which are deleted, unless the fragment has deferred messages."""
        message_table = self._fragment.message_table
        if not message_table.deferred_count:
            self._earlier_ranges = [entry for entry in self._earlier_ranges if entry[1] >= message_table.low_watermark]
            if self._reclaimed:
                self._reclaimed = {entry for entry in self._reclaimed if entry >= message_table.low_watermark}
        self._earlier_ranges = _merge_ranges(self._earlier_ranges)
        self.has_possible_redeliveries = bool(self._earlier_ranges or self._reclaimed)

    def _schedule_cleanup(self) -> None:
        if self._timer is None:
            fragment = self._fragment
            self._timer = fragment.timers.call_at(fragment.clock.monotonic_s() + CLEANUP_DELAY_S, self._clean_up)

    def _clean_up(self) -> None:
        self._timer = None
        was_used, self._was_used = self._was_used, False
        if was_used or not self._fragment.is_available:
            self._schedule_cleanup()
            return
        self._drop_removed()
        blocks = self._blocks_in_use() if self.noted_blocks else set()
        if pack_ranges(self._earlier_ranges + _ranges_of(blocks)) != self._stored_row:
            self._write_blocks(blocks, ignore)
        if self.noted_blocks:
            self._schedule_cleanup()


def pack_ranges(ranges: list[tuple[int, int]]) -> bytes:
    """Return ranges of sequence numbers as a row, which is empty if there are no ranges."""
    if not ranges:
        return b""
    return bytes((_VERSION,)) + b"".join([_RANGE.pack(first, last) for first, last in ranges])


def unpack_ranges(value: bytes) -> list[tuple[int, int]]:
    """Return the ranges of sequence numbers in a row."""
    if not value:
        return []
    assert value[0] == _VERSION
    return [(int(first), int(last)) for first, last in _RANGE.iter_unpack(value[1:])]


def _ranges_of(blocks: set[int]) -> list[tuple[int, int]]:
    """Return blocks as ranges of sequence numbers, with adjacent blocks merged."""
    ranges: list[tuple[int, int]] = []
    for block in sorted(blocks):
        first, last = block << BLOCK_SHIFT, ((block + 1) << BLOCK_SHIFT) - 1
        if ranges and ranges[-1][1] + 1 == first:
            ranges[-1] = (ranges[-1][0], last)
        else:
            ranges.append((first, last))
    return ranges


def _merge_ranges(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Merge overlapping and adjacent ranges, and also the closest ranges if there are more than MAX_RANGES."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    while len(merged) > MAX_RANGES:
        gaps = [merged[at + 1][0] - merged[at][1] for at in range(len(merged) - 1)]
        at = gaps.index(min(gaps))
        merged[at : at + 2] = [(merged[at][0], merged[at + 1][1])]
    return merged
