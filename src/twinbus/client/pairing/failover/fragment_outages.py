"""Outages of single fragments in a partitioned entity: only messages for these fragments are parked.

With `park_on_fragment_outage`, a keyed send whose fragment is down does not fail over the whole entity. Only the
fragment is marked down: every message whose key maps to that fragment is parked, until a ping with such a key succeeds.
So later messages of a session do not overtake its parked messages while the fragment goes down and comes back.

Owns: the fragments of an entity that are marked down, the mapping of messages to them, and the order in which batches
park such messages. The pairing pings the fragments and publishes the events.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from twinbus.amqp.codec.field_numbers import MESSAGE_ID
from twinbus.amqp.message import Message, Section
from twinbus.model.annotations import PARTITION_KEY
from twinbus.model.partition_key import fragment_of, partition_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from twinbus.client.clock import Clock
    from twinbus.model.errors import ServiceBusError
    from twinbus.model.message import BrokeredMessage


@dataclass(frozen=True, slots=True)
class RoutingKey:
    """The key that maps a message to a fragment: the first of these fields that the message has."""

    session_id: str | None = None
    partition_key: str | None = None
    message_id: object = None
    """Used as a key only if duplicate detection is enabled for the entity."""

    @classmethod
    def for_message(cls, message: BrokeredMessage) -> RoutingKey:
        """Return the key of a message: its session id, else its partition key, else its message id."""
        if message.session_id is not None:
            return cls(session_id=message.session_id)
        if message.partition_key is not None:
            return cls(partition_key=message.partition_key)
        return cls(message_id=message.message_id)

    def fragment_number(self, *, uses_message_id: bool) -> int | None:
        """Return the fragment number, or None if the client cannot compute it.

        The fragment is unknown if the message has no key, or if its key is a message id that is not a string.
        """
        message_id = self.message_id if uses_message_id and isinstance(self.message_id, str) else None
        key = partition_key(self.session_id, self.partition_key, message_id)
        return None if key is None else fragment_of(key)


def routing_key_in(payload: bytes, session_id: str | None) -> RoutingKey:
    """Return the routing key of an encoded message with this session id."""
    if session_id is not None:
        return RoutingKey(session_id=session_id)
    message = Message(payload)
    annotated_key = message.lookup(Section.MESSAGE_ANNOTATIONS, PARTITION_KEY)
    if isinstance(annotated_key, str):
        return RoutingKey(partition_key=str(annotated_key))
    return RoutingKey(message_id=message.field(Section.PROPERTIES, MESSAGE_ID))


def routing_key_to(fragment: int | None, messages: Iterable[BrokeredMessage]) -> RoutingKey | None:
    """Return a key of these messages that maps to a fragment, or None. Prefer other keys to message ids."""
    keys = [RoutingKey.for_message(message) for message in messages]
    matching = [
        key
        for uses_message_id in (False, True)
        for key in keys
        if key.fragment_number(uses_message_id=uses_message_id) == fragment
    ]
    return matching[0] if matching and fragment is not None else None


def ping_key_for(error: ServiceBusError, messages: Sequence[BrokeredMessage]) -> RoutingKey:
    """Return the key for pings that test an entity: the key of the send that failed first.

    A message id is used only if the namespace has shown that it maps messages by their ids. Otherwise an entity that
    detects duplicates could record the ping under the message's id, and later discard the message as a duplicate.
    """
    matching = routing_key_to(error.fragment, messages)
    if matching is not None:
        return matching
    first = RoutingKey.for_message(messages[0])
    return RoutingKey(session_id=first.session_id, partition_key=first.partition_key)


class FragmentOutage:
    """The outage of one fragment, from the first failed send to the first ping that gets a response."""

    def __init__(
        self, number: int, outages: FragmentOutages, ping_key: RoutingKey, failure: ServiceBusError, since_ms: int
    ) -> None:
        """Create an outage of fragment `number`; pings carry `ping_key`, which maps to this fragment."""
        self.number = number
        self.path = outages.path
        self.ping_key = ping_key
        self.failure = failure
        self.since_ms = since_ms
        self.next_ping_ms: int | None = None
        self.is_pinged = True
        self._outages = outages

    @property
    def fragment(self) -> int | None:
        """The fragment number that ping events report."""
        return self.number

    def ping_succeeded(self) -> None:
        """End the outage, because the fragment accepted a ping."""
        self._outages.restore(self)

    def pings_refused(self, error: ServiceBusError) -> None:
        """End the outage, because the entity responds, although it refuses pings.

        The state of the fragment is then unknown, so the next send goes to the primary and gets its error.
        """
        self._outages.restore(self, error)


class ParkingTurn:
    """The turn of a batch that parks some of its messages after the primary has stored the others.

    A later send with the same keys waits until these messages are parked; otherwise it would overtake them.
    """

    def __init__(self, outages: FragmentOutages, fragment_numbers: set[int]) -> None:
        """Create a turn for messages to these fragments."""
        self.fragment_numbers = fragment_numbers
        self._outages = outages
        self.ended: Final = asyncio.Event()

    async def wait(self, limit_s: float) -> None:
        """Wait for earlier batches with messages for these fragments, but no longer than `limit_s`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                for earlier in self._outages.earlier_turns(self):
                    await earlier.ended.wait()

    def end(self) -> None:
        """Let later sends proceed. Idempotent."""
        self._outages.turns.pop(self, None)
        self.ended.set()


class FragmentOutages:
    """The fragment outages of one entity, shared by all senders of a factory."""

    def __init__(
        self, path: str, clock: Clock, on_change: Callable[[FragmentOutage, ServiceBusError | None], None]
    ) -> None:
        """Create an empty set of outages.

        `on_change` is called when a fragment goes down, with its error, and when it comes back, with the reason if
        there is one.
        """
        self.path = path
        self.down: Final[dict[int, FragmentOutage]] = {}
        """The current outages by fragment number. Senders check this dict for each message, so it is never replaced by
        another dict."""
        self.turns: Final[dict[ParkingTurn, None]] = {}
        """The turns of batches in progress, in order."""
        self._uses_message_id = False
        """Whether the entity maps messages to fragments by message id. This is known once a fragment has refused a
        message that has no other key."""
        self._clock = clock
        self._on_change = on_change

    def outage_for(self, messages: Iterable[BrokeredMessage]) -> FragmentOutage | None:
        """Return the outage for the first of these messages whose fragment is down, or None."""
        if not self.down:
            return None
        numbers = (
            RoutingKey.for_message(message).fragment_number(uses_message_id=self._uses_message_id)
            for message in messages
        )
        return next((self.down[number] for number in numbers if number in self.down), None)

    def affected_messages(self, messages: Iterable[BrokeredMessage]) -> dict[int, int]:
        """Return the fragment numbers, by index, of the messages whose fragment is down."""
        if not self.down:
            return {}
        numbers = [
            RoutingKey.for_message(message).fragment_number(uses_message_id=self._uses_message_id)
            for message in messages
        ]
        return {index: number for index, number in enumerate(numbers) if number is not None and number in self.down}

    def take_turn(self, fragment_numbers: set[int], *, is_split: bool) -> ParkingTurn | None:
        """Return a turn to park messages for some fragments, or None if they can be parked at once.

        `is_split` is True for a batch of which some messages go to the primary first. All other sends need a turn only
        if an earlier batch for one of these fragments still has its turn.
        """
        if not is_split and not any(turn.fragment_numbers & fragment_numbers for turn in self.turns):
            return None
        turn = ParkingTurn(self, fragment_numbers)
        self.turns[turn] = None
        return turn

    def earlier_turns(self, turn: ParkingTurn) -> list[ParkingTurn]:
        """Return the earlier turns for the same fragments."""
        earlier = []
        for other in self.turns:
            if other is turn:
                break
            if other.fragment_numbers & turn.fragment_numbers:
                earlier.append(other)
        return earlier

    def note_failure(self, error: ServiceBusError, messages: Iterable[BrokeredMessage]) -> None:
        """Mark the fragment that refused one of these messages as down."""
        number = error.fragment
        if number is None or number in self.down:
            return
        key = routing_key_to(number, messages)
        if key is None:  # the namespace hashes keys differently, so other messages cannot be mapped
            return
        self._uses_message_id = self._uses_message_id or key.message_id is not None
        outage = self.down[number] = FragmentOutage(number, self, key, error, self._clock.wall_ms())
        self._on_change(outage, error)

    def restore(self, outage: FragmentOutage, reason: ServiceBusError | None = None) -> None:
        """Mark a fragment as available again."""
        if self.down.get(outage.number) is outage:
            del self.down[outage.number]
            outage.is_pinged, outage.next_ping_ms = False, None
            self._on_change(outage, reason)

    def restore_all(self) -> None:
        """Mark all fragments as available again."""
        for outage in list(self.down.values()):
            self.restore(outage)
