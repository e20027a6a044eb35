"""A portion of a batch: those of its messages that go the same way, in their order.

The messages of one batch can part. With `park_on_fragment_outage`, messages whose fragment is down are parked while the
others go to the primary; a primary that loses a fragment halfway has stored some messages and not others; and a batch
that is too large to be parked whole is parked in several parts.

Owns: which messages a portion has, where they stand in the batch (their *places*), and its bytes. Knows nothing of
where a portion goes.
"""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING

from twinbus.amqp.message import Message
from twinbus.client.pairing.backlog import rewriting
from twinbus.model.errors import MessageTooLarge
from twinbus.model.message import BATCH_FORMAT, encode_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from typing import Self, TypeAlias

    from twinbus.model.message import BrokeredMessage

    Entry: TypeAlias = tuple[int, bytes, BrokeredMessage]
    """A message's place, its bytes, and the message."""


class BatchPortion:
    """Some messages of a batch, or all of them, or a single message. It is not changed: its methods make others."""

    __slots__ = ("message_format", "messages", "payload", "positions")

    def __init__(
        self,
        payload: bytes,
        message_format: int,
        messages: Sequence[BrokeredMessage],
        positions: Sequence[int] | None = None,
    ) -> None:
        """`payload` has the messages as they are sent; without `places` they are the whole batch."""
        self.payload = payload
        self.message_format = message_format
        self.messages = messages
        self.positions: Sequence[int] = range(len(messages)) if positions is None else positions

    @classmethod
    def _from_entries(cls, entries: Sequence[Entry]) -> Self:
        places = [place for place, _, _ in entries]
        messages = [message for _, _, message in entries]
        if len(entries) == 1:
            return cls(entries[0][1], 0, messages, places)
        payload = encode_batch([one for _, one, _ in entries], messages[0]) if entries else b""
        return cls(payload, BATCH_FORMAT, messages, places)

    def __len__(self) -> int:
        """Return how many messages it has."""
        return len(self.messages)

    @property
    def payloads(self) -> Sequence[bytes]:
        """The bytes of each message."""
        return Message(self.payload).data if self.message_format == BATCH_FORMAT else [self.payload]

    def _entries(self) -> list[Entry]:
        return list(zip(self.positions, self.payloads, self.messages, strict=True)) if self.messages else []

    def positions_at(self, indexes: Collection[int]) -> set[int]:
        """Return the places in the batch of the messages at `indexes` of this portion: so a primary names messages."""
        return {self.positions[index] for index in indexes if 0 <= index < len(self.positions)}

    def only(self, positions: Collection[int]) -> BatchPortion:
        """Return the messages at some places of the batch."""
        return self._from_entries([entry for entry in self._entries() if entry[0] in positions])

    def without(self, positions: Collection[int]) -> BatchPortion:
        """Return the messages at all other places."""
        return (
            self
            if not positions
            else self._from_entries([entry for entry in self._entries() if entry[0] not in positions])
        )

    def joined(self, other: BatchPortion) -> BatchPortion:
        """Return the messages of both, in the order of the batch."""
        if not self or not other:
            return self or other
        return self._from_entries(sorted([*self._entries(), *other._entries()], key=itemgetter(0)))

    def marked(self, positions: Collection[int]) -> BatchPortion:
        """Return the same messages, those at some places marked as possible duplicates."""
        if not any(place in positions for place in self.positions):
            return self
        return self._from_entries(
            [
                (place, rewriting.mark_possible_duplicate(payload) if place in positions else payload, message)
                for place, payload, message in self._entries()
            ]
        )

    def split_to_fit(self, check: Callable[[bytes, int], object]) -> list[BatchPortion]:
        """Split it, in order, into portions that `check` accepts: it is called with the bytes and format of each.

        MessageTooLarge, or MessageCannotBeParked, whichever `check` raises, if a single message is not accepted.
        """
        try:
            check(self.payload, self.message_format)
        except MessageTooLarge:
            if len(self) == 1 and self.message_format != BATCH_FORMAT:
                raise
        else:
            return [self]
        entries, middle = self._entries(), (len(self) + 1) // 2
        halves = [half for half in (entries[:middle], entries[middle:]) if half]
        return [portion for half in halves for portion in self._from_entries(half).split_to_fit(check)]
