"""A portion of a batch: the messages that take the same route, in batch order.

The messages of one batch can take different routes. With `park_on_fragment_outage`, messages whose fragment is down are
parked while the others go to the primary. If the primary loses a fragment during a send, it has stored some messages
and not others. A batch that is too large to be parked whole is parked in several portions.

Owns: the messages of a portion, their positions in the batch, and their bytes. Knows nothing of where a portion is
sent.
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
    """A message's position in the batch, its bytes, and the message."""


class BatchPortion:
    """Some or all messages of a batch, or a single message.

    A portion is immutable, so its methods return new portions.
    """

    __slots__ = ("message_format", "messages", "payload", "positions")

    def __init__(
        self,
        payload: bytes,
        message_format: int,
        messages: Sequence[BrokeredMessage],
        positions: Sequence[int] | None = None,
    ) -> None:
        """Create a portion of encoded messages; without `positions`, the portion is the whole batch."""
        self.payload = payload
        self.message_format = message_format
        self.messages = messages
        self.positions: Sequence[int] = range(len(messages)) if positions is None else positions

    @classmethod
    def _from_entries(cls, entries: Sequence[Entry]) -> Self:
        positions = [position for position, _, _ in entries]
        messages = [message for _, _, message in entries]
        if len(entries) == 1:
            return cls(entries[0][1], 0, messages, positions)
        payload = encode_batch([encoded for _, encoded, _ in entries], messages[0]) if entries else b""
        return cls(payload, BATCH_FORMAT, messages, positions)

    def __len__(self) -> int:
        """Return the number of messages."""
        return len(self.messages)

    @property
    def payloads(self) -> Sequence[bytes]:
        """The bytes of each message."""
        return Message(self.payload).data if self.message_format == BATCH_FORMAT else [self.payload]

    def _entries(self) -> list[Entry]:
        return list(zip(self.positions, self.payloads, self.messages, strict=True)) if self.messages else []

    def positions_at(self, indexes: Collection[int]) -> set[int]:
        """Return the batch positions of the messages at `indexes` in this portion.

        The primary reports messages by their index in the portion that was sent.
        """
        return {self.positions[index] for index in indexes if 0 <= index < len(self.positions)}

    def only(self, positions: Collection[int]) -> BatchPortion:
        """Return a portion with only the messages at these batch positions."""
        return self._from_entries([entry for entry in self._entries() if entry[0] in positions])

    def without(self, positions: Collection[int]) -> BatchPortion:
        """Return a portion without the messages at these batch positions."""
        return (
            self
            if not positions
            else self._from_entries([entry for entry in self._entries() if entry[0] not in positions])
        )

    def joined(self, other: BatchPortion) -> BatchPortion:
        """Return a portion with the messages of both portions, in batch order."""
        if not self or not other:
            return self or other
        return self._from_entries(sorted([*self._entries(), *other._entries()], key=itemgetter(0)))

    def marked(self, positions: Collection[int]) -> BatchPortion:
        """Return a portion in which the messages at these positions are marked as possible duplicates."""
        if not any(position in positions for position in self.positions):
            return self
        return self._from_entries(
            [
                (position, rewriting.mark_possible_duplicate(payload) if position in positions else payload, message)
                for position, payload, message in self._entries()
            ]
        )

    def split_to_fit(self, check: Callable[[bytes, int], object]) -> list[BatchPortion]:
        """Split the portion, in order, into portions that `check` accepts.

        `check` is called with the bytes and the format of each portion. If `check` rejects a single message, the error
        of `check` (MessageTooLarge or MessageCannotBeParked) is raised.
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
