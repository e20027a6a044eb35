"""Counters for one client's operations on one entity.

Owns: the numbers, which only grow. Links increment the numbers on the event loop as messages pass; another thread takes
the increments once a minute, and about once a second within the minute (`take_partial_delta`). No lock is needed,
because the thread only reads the numbers, and takes later increments the next time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twinbus.amqp.codec.message_layout import data_of
from twinbus.amqp.errors import DecodeError
from twinbus.amqp.message import Message
from twinbus.model.message import BATCH_FORMAT, PING_CONTENT_TYPE, is_ping
from twinbus.model.usage import units_of

if TYPE_CHECKING:
    from twinbus.broker.ports.consumer import Delivery

CHARGE_UNIT_BYTES: Final = 65_536
"""The value of `model.usage.UNIT_BYTES`, repeated here so that it is a constant in the compiled module."""
_PING_BYTES: Final = PING_CONTENT_TYPE.encode()


class UsageCounter:
    """The counter for one client and one entity."""

    def __init__(self, entity: str = "", client: str = "") -> None:
        """Create a counter in which all numbers are 0."""
        self.entity = entity
        self.client = client
        self.user_count = 0
        """The number of connections that may still use this counter."""
        self.sends = 0
        self.send_units = 0
        self.send_bytes = 0
        self.failed_sends = 0
        self.pings = 0
        self.failed_pings = 0
        self.receives = 0
        self.receive_units = 0
        self.receive_bytes = 0
        self.empty_receives = 0
        self.settlements = 0
        self.renewals = 0
        self.session_calls = 0
        self.peeks = 0
        self.schedules = 0
        self.management = 0
        self.forwards = 0
        self._last_counts = self.counts()
        self._last_partial_counts = self._last_counts

    def counts(self) -> tuple[int, ...]:
        """Return all numbers, in the order of `model.usage.COUNTS`; connections are not counted here."""
        return (
            self.sends,
            self.send_units,
            self.send_bytes,
            self.failed_sends,
            self.pings,
            self.failed_pings,
            self.receives,
            self.receive_units,
            self.receive_bytes,
            self.empty_receives,
            self.settlements,
            self.renewals,
            self.session_calls,
            self.peeks,
            self.schedules,
            self.management,
            self.forwards,
        )

    @property
    def is_unchanged(self) -> bool:
        """Whether no number has changed since the last `take_delta`."""
        return self.counts() == self._last_counts

    def take_delta(self) -> tuple[int, ...] | None:
        """Return the increments since the last call; None if there are none."""
        before, now = self._last_counts, self.counts()
        if now == before:
            return None
        self._last_counts = self._last_partial_counts = now
        return tuple([number - old for number, old in zip(now, before, strict=True)])

    def take_partial_delta(self) -> tuple[int, ...] | None:
        """Return the increments since the last call within a minute; `take_delta` also returns these increments."""
        before, now = self._last_partial_counts, self.counts()
        if now == before:
            return None
        self._last_partial_counts = now
        return tuple([number - old for number, old in zip(now, before, strict=True)])

    def reset_partial(self) -> None:
        """Let `take_partial_delta` return this minute's increments again, because they could not be written."""
        self._last_partial_counts = self._last_counts

    # --- counting -----------------------------------------------------------------------------------------------------

    def add_receives(self, deliveries: list[Delivery]) -> None:
        """Count delivered messages."""
        size = units = 0
        for payload, _ in deliveries:
            length = len(payload)
            size += length
            units += 1 if length <= CHARGE_UNIT_BYTES else units_of_message(payload)
        self.receives += len(deliveries)
        self.receive_units += units
        self.receive_bytes += size

    def add_peeks(self, deliveries: list[Delivery]) -> None:
        """Count messages that were browsed on a link."""
        units = 0
        for payload, _ in deliveries:
            units += 1 if len(payload) <= CHARGE_UNIT_BYTES else units_of_message(payload)
        self.peeks += units

    def add_sends(self, payloads: list[bytes]) -> None:
        """Count accepted messages. Each payload is a single message, not an AMQP batch."""
        self.sends += len(payloads)
        self.send_units += sum([units_of_message(payload) for payload in payloads])
        self.send_bytes += sum([len(payload) for payload in payloads])


def units_of_message(payload: bytes) -> int:
    """Return how many operations are billed for one operation on a message (one for each 64 KB).

    Only the bare message counts, so that annotations added by the broker do not make a message more expensive to
    receive than to send.
    """
    return 1 if len(payload) <= CHARGE_UNIT_BYTES else units_of(len(Message(payload).bare()))


def extra_units(payload: bytes, message_format: int) -> int:
    """Return how many operations are billed for sending a message or a batch, beyond one for each message."""
    return sum([units_of_message(message) - 1 for message in split_batch(payload, message_format)])


def split_batch(payload: bytes, message_format: int) -> list[bytes]:
    """Return the messages in a batch, or the message itself if it is not a batch."""
    if message_format != BATCH_FORMAT:
        return [payload]
    messages = data_of(payload)
    return Message(payload).data if messages is None else messages


def looks_like_ping(payload: bytes) -> bool:
    """Return whether a refused message was a ping; False if the message cannot be decoded."""
    try:
        return _PING_BYTES in payload and is_ping(Message(payload))
    except DecodeError:
        return False
