"""Redelivery: which messages may have been delivered before although their delivery count does not say so.

The exclusive receiver of an entity (a claim, with an epoch) relies on the delivery count: a message with the count 0
was delivered to nobody, or every receiver has released it. Lock expiry and abandoning write a higher count. Two events
leave no time for that: a server that is killed loses its locks, and a displaced receiver's messages go to the next
receiver at once, in order. So before a message is handed to an exclusive receiver, the block of sequence numbers that
it lies in is noted on disk. Blocks in which no message is out are forgotten lazily. When a fragment is loaded, messages
in noted blocks are delivered and shown with a delivery count of at least 1; the stored count, and with it
dead-lettering by MaxDeliveryCount, stays as it is.

The same idea is known from RAID as a dirty-region log: one small write per block instead of one per message, and after
a crash some messages too many are suspected, never one too few. An entity without an exclusive receiver writes nothing.

Owns: the noted blocks, and messages taken from displaced receivers. Knows nothing of consumers.
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
"""Sequence numbers in a block: one write for so many messages."""
CLEANUP_DELAY_S: Final = 10.0
"""Blocks without use are forgotten after this time."""
MAX_RANGES: Final = 64
"""Ranges of earlier lives that are remembered; above, neighbours are merged."""
_VERSION: Final = 1
_RANGE: Final = Struct(">QQ")


class RedeliveryTracker:
    """The messages of one fragment that may have been delivered before."""

    def __init__(self, fragment: Fragment) -> None:
        """Made by its fragment."""
        self.is_tracking = False
        """An exclusive receiver is there: only messages in noted blocks are handed out."""
        self.has_suspects = False
        """Some messages may have been delivered before: look at each."""
        self.noted_blocks: set[int] = set()
        """Blocks that the last write contains."""
        self._fragment = fragment
        self._key = fragment.message_table.key_prefix + store_keys.MAYBE_DELIVERED
        self._synced_blocks: set[int] = set()
        """Those of `noted` that are known to be on disk."""
        self._earlier_ranges: list[tuple[int, int]] = []
        """First and last sequence numbers of what an earlier life had noted."""
        self._reclaimed: set[int] = set()
        """Taken from displaced receivers; on disk their count is what it was."""
        self._pending_returns = 0
        """Messages on their way back: nothing behind them is handed out before they are there."""
        self._stored_row = b""
        """What the last write has put on disk."""
        self._was_used = False
        self._timer: Timer | None = None

    # --- handing out --------------------------------------------------------------------------------------------------

    def set_tracking(self, *, is_on: bool) -> None:
        """An exclusive receiver has come, or gone."""
        self.is_tracking = is_on

    def deliverable_count(self, ready: deque[tuple[int, bytes]], count: int) -> int:
        """Return how many of the first `count` messages may be handed to an exclusive receiver now.

        If blocks are missing, they are noted; the fragment dispatches again when they are on disk. The next block is
        noted when half of one is used, so that nobody waits for it.
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
            wanted = {ready[at][0] >> BLOCK_SHIFT for at in range(count)}
            if is_half_used:
                wanted.add(block + 1)
            if not wanted <= self.noted_blocks:
                self._write_blocks(wanted, ignore)
        return reached

    def ensure_noted(self, sequences: list[int], on_done: OnDone) -> None:
        """Call `then` once these messages may be handed to an exclusive receiver; at once if there is none."""
        wanted = {sequence >> BLOCK_SHIFT for sequence in sequences} if self.is_tracking else set()
        self._was_used = True
        if wanted <= self._synced_blocks:
            on_done(None)
        else:
            self._write_blocks(wanted, on_done)

    def add_reclaimed(self, sequences: Iterable[int]) -> None:
        """Messages are free again, uncounted, and their receiver has seen them."""
        self._reclaimed.update(sequences)
        self.has_suspects = bool(self._earlier_ranges or self._reclaimed)

    def add_reclaimed_if_noted(self, sequence: int) -> None:
        """The same for a message that an exclusive receiver may have had."""
        if sequence >> BLOCK_SHIFT in self.noted_blocks:
            self.add_reclaimed((sequence,))

    def forget(self, sequences: Iterable[int]) -> None:
        """Messages are gone, or counted on disk."""
        if self._reclaimed:
            self._reclaimed.difference_update(sequences)

    def block_until_returned(self, on_done: OnDone) -> OnDone:
        """Hand out nothing to an exclusive receiver until messages on their way back are there: the order is kept."""
        life = self._fragment.incarnation
        self._pending_returns += 1

        def returned(error: ServiceBusError | None) -> None:
            if life == self._fragment.incarnation:
                self._pending_returns -= 1
            on_done(error)

        return returned

    # --- showing ------------------------------------------------------------------------------------------------------

    def may_have_been_delivered(self, sequence: int) -> bool:
        """Whether a message may have been delivered, whatever its count is."""
        for first, last in self._earlier_ranges:
            if first <= sequence <= last:
                return True
        return sequence in self._reclaimed

    def as_delivered(self, sequence: int, record: bytes) -> bytes:
        """Return a record as it is to be shown: with a delivery, where there may have been one."""
        if record[3] == SCHEDULED_STATE or not self.may_have_been_delivered(sequence):
            return record
        return with_one_delivery(record)

    # --- the disk -----------------------------------------------------------------------------------------------------

    @property
    def key(self) -> bytes:
        """Where the noted blocks lie."""
        return self._key

    def reset(self) -> None:
        """What is in memory is void."""
        self.noted_blocks, self._synced_blocks = set(), set()
        self._reclaimed = set()
        self._pending_returns = 0
        self._was_used = False
        self.has_suspects = bool(self._earlier_ranges)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def load(self, value: bytes | None) -> None:
        """What an earlier life has noted: messages that were there then may have been delivered."""
        last_number = self._fragment.message_table.next_sequence - 1
        self._stored_row = value or b""
        ranges = unpack_ranges(self._stored_row)
        self._earlier_ranges = [(first, min(last, last_number)) for first, last in ranges if first <= last_number]
        self._drop_removed()
        if self._stored_row:
            self._schedule_cleanup()  # else messages that come from now on would be suspected after the next crash

    def _blocks_in_use(self) -> set[int]:
        """Blocks with messages that are out, or were taken from a displaced receiver."""
        fragment = self._fragment
        blocks = {sequence >> BLOCK_SHIFT for sequence in fragment.in_flight.locks}
        blocks |= {sequence >> BLOCK_SHIFT for sequence in fragment.deferred_in_flight}
        return blocks | {sequence >> BLOCK_SHIFT for sequence in self._reclaimed}

    def _write_blocks(self, blocks_to_note: set[int], on_done: OnDone) -> None:
        """Note blocks, beside those in use, in the batch of this turn."""
        fragment, blocks = self._fragment, blocks_to_note | self._blocks_in_use()
        self._drop_removed()
        self.noted_blocks = blocks
        self._synced_blocks &= (
            blocks  # no message of a block that is forgotten now is handed out before that is noted again
        )
        self._stored_row = pack_ranges(self._earlier_ranges + _ranges_of(blocks))
        if self._stored_row:
            fragment.commit_log.batch.put(self._key, self._stored_row, Table.INDEX)
        else:
            fragment.commit_log.batch.delete(self._key, Table.INDEX)

        def applied() -> None:
            self._synced_blocks |= blocks & self.noted_blocks

        fragment.commit_log.add(fragment, 0, applied, on_done)
        if blocks:
            self._schedule_cleanup()

    def _drop_removed(self) -> None:
        """Forget messages that are gone, as far as that is known without a look: all before the oldest are."""
        holdings = self._fragment.message_table
        if not holdings.deferred_count:
            self._earlier_ranges = [one for one in self._earlier_ranges if one[1] >= holdings.low_watermark]
            if self._reclaimed:
                self._reclaimed = {one for one in self._reclaimed if one >= holdings.low_watermark}
        self._earlier_ranges = _merge_ranges(self._earlier_ranges)
        self.has_suspects = bool(self._earlier_ranges or self._reclaimed)

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
    """Ranges of sequence numbers, as they are stored; nothing where there are none."""
    if not ranges:
        return b""
    return bytes((_VERSION,)) + b"".join([_RANGE.pack(first, last) for first, last in ranges])


def unpack_ranges(value: bytes) -> list[tuple[int, int]]:
    """... and read."""
    if not value:
        return []
    assert value[0] == _VERSION
    return [(int(first), int(last)) for first, last in _RANGE.iter_unpack(value[1:])]


def _ranges_of(blocks: set[int]) -> list[tuple[int, int]]:
    """Blocks as ranges of sequence numbers; neighbours make one."""
    ranges: list[tuple[int, int]] = []
    for block in sorted(blocks):
        first, last = block << BLOCK_SHIFT, ((block + 1) << BLOCK_SHIFT) - 1
        if ranges and ranges[-1][1] + 1 == first:
            ranges[-1] = (ranges[-1][0], last)
        else:
            ranges.append((first, last))
    return ranges


def _merge_ranges(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same, or more where they are too many."""
    found: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(last, found[-1][1]))
        else:
            found.append((first, last))
    while len(found) > MAX_RANGES:
        gaps = [found[at + 1][0] - found[at][1] for at in range(len(found) - 1)]
        at = gaps.index(min(gaps))
        found[at : at + 2] = [(found[at][0], found[at + 1][1])]
    return found
