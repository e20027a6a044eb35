"""Where what one client asks of one entity is counted.

Owns: the numbers, which only grow. Links add to them as messages pass, on the loop; another thread takes what was
added, once a minute, and within the minute about once a second (`take_partial`). No lock is needed for that: that
thread only reads the numbers, and what is added meanwhile is taken the next time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twinbus.amqp.errors import DecodeError
from twinbus.amqp.message import Message
from twinbus.amqp.message_layout import data_of
from twinbus.model.message import BATCH_FORMAT, PING_CONTENT_TYPE, is_ping
from twinbus.model.usage import units_of

if TYPE_CHECKING:
    from twinbus.broker.ports.consumer import Delivery

CHARGE_UNIT_BYTES: Final = 65_536
"""`model.usage.UNIT_BYTES`; written out, it is a number where this is compiled."""
_PING_BYTES: Final = PING_CONTENT_TYPE.encode()


class UsageCounter:
    """Of one client at one entity."""

    def __init__(self, entity: str = "", client: str = "") -> None:
        """Nothing is counted yet."""
        self.entity = entity
        self.client = client
        self.user_count = 0
        """Connections that may still count here."""
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
        """All of them, in the order of `model.usage.COUNTS`; connections are not counted here."""
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
        """Nothing was counted since the last time."""
        return self.counts() == self._last_counts

    def take_delta(self) -> tuple[int, ...] | None:
        """What was counted since the last time; None where nothing was."""
        before, now = self._last_counts, self.counts()
        if now == before:
            return None
        self._last_counts = self._last_partial_counts = now
        return tuple([number - old for number, old in zip(now, before, strict=True)])

    def take_partial_delta(self) -> tuple[int, ...] | None:
        """What was counted since this was last asked, within a minute; `take` still gives all of the minute."""
        before, now = self._last_partial_counts, self.counts()
        if now == before:
            return None
        self._last_partial_counts = now
        return tuple([number - old for number, old in zip(now, before, strict=True)])

    def reset_partial(self) -> None:
        """Let `take_partial` start over with the minute: what it gave could not be written."""
        self._last_partial_counts = self._last_counts

    # --- what is counted ----------------------------------------------------------------------------------------------

    def add_receives(self, deliveries: list[Delivery]) -> None:
        """Messages were delivered."""
        size = units = 0
        for payload, _ in deliveries:
            length = len(payload)
            size += length
            units += 1 if length <= CHARGE_UNIT_BYTES else units_of_message(payload)
        self.receives += len(deliveries)
        self.receive_units += units
        self.receive_bytes += size

    def add_peeks(self, deliveries: list[Delivery]) -> None:
        """Messages were shown, on a link."""
        units = 0
        for payload, _ in deliveries:
            units += 1 if len(payload) <= CHARGE_UNIT_BYTES else units_of_message(payload)
        self.peeks += units

    def add_sends(self, payloads: list[bytes]) -> None:
        """Messages were accepted, none of them a batch."""
        self.sends += len(payloads)
        self.send_units += sum([units_of_message(payload) for payload in payloads])
        self.send_bytes += sum([len(payload) for payload in payloads])


def units_of_message(payload: bytes) -> int:
    """How often an operation on a message is charged.

    What counts is what its sender wrote: what is added to it on the way makes it no dearer to receive than to send.
    """
    return 1 if len(payload) <= CHARGE_UNIT_BYTES else units_of(len(Message(payload).bare()))


def extra_units(payload: bytes, message_format: int) -> int:
    """How often sending a message, or the messages of a batch, is charged beyond once for each."""
    return sum([units_of_message(message) - 1 for message in split_batch(payload, message_format)])


def split_batch(payload: bytes, message_format: int) -> list[bytes]:
    """Of a batch, or the one it is."""
    if message_format != BATCH_FORMAT:
        return [payload]
    messages = data_of(payload)
    return Message(payload).data if messages is None else messages


def looks_like_ping(payload: bytes) -> bool:
    """A message that was refused was a ping, as far as it can be read."""
    try:
        return _PING_BYTES in payload and is_ping(Message(payload))
    except DecodeError:
        return False
