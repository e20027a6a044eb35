"""Fragments of a partitioned entity that are down, where only what is meant for them is parked.

With `park_on_fragment_outage` a keyed send whose fragment is down does not fail the whole entity over. That fragment is
held to be down: all that is sent with a key that leads there is parked, until a ping with such a key is answered. So
what a session has parked is not overtaken by what it sends next while the fragment comes and goes.

Owns: which fragments of an entity are held to be down, which messages lead there, and the turns of batches that still
have to park such messages. Who pings the fragments and who is told is the pairing's affair.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from twinbus.amqp.field_numbers import MESSAGE_ID
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
    """What leads a message to a fragment: the first of these that it has (R106 to R109)."""

    session_id: str | None = None
    partition_key: str | None = None
    message_id: object = None
    """Where duplicates are detected."""

    @classmethod
    def for_message(cls, message: BrokeredMessage) -> RoutingKey:
        """The key of a message; its id, where that is all it has and may be one."""
        if message.session_id is not None:
            return cls(session_id=message.session_id)
        if message.partition_key is not None:
            return cls(partition_key=message.partition_key)
        return cls(message_id=message.message_id)

    def fragment_number(self, *, uses_message_id: bool) -> int | None:
        """The fragment; None where there is no key, or none of which that can be told here: ids that are no texts."""
        message_id = self.message_id if uses_message_id and isinstance(self.message_id, str) else None
        key = partition_key(self.session_id, self.partition_key, message_id)
        return None if key is None else fragment_of(key)


def routing_key_in(payload: bytes, session_id: str | None) -> RoutingKey:
    """The key of an encoded message, of which the session is known."""
    if session_id is not None:
        return RoutingKey(session_id=session_id)
    message = Message(payload)
    found = message.lookup(Section.MESSAGE_ANNOTATIONS, PARTITION_KEY)
    if isinstance(found, str):
        return RoutingKey(partition_key=str(found))
    return RoutingKey(message_id=message.field(Section.PROPERTIES, MESSAGE_ID))


def routing_key_to(fragment: int | None, messages: Iterable[BrokeredMessage]) -> RoutingKey | None:
    """The key of a message that leads to a fragment; an id only if no other does. None if there is none."""
    keys = [RoutingKey.for_message(message) for message in messages]
    leading = [
        key
        for is_id_a_key in (False, True)
        for key in keys
        if key.fragment_number(uses_message_id=is_id_a_key) == fragment
    ]
    return leading[0] if leading and fragment is not None else None


def ping_key_for(error: ServiceBusError, messages: Sequence[BrokeredMessage]) -> RoutingKey:
    """What pings carry that ask whether an entity takes messages again: the key of the send that failed first (Q13).

    The id of a message only where the namespace has said that it is one: elsewhere a ping of the same id might be
    taken for the message, and that for a duplicate.
    """
    found = routing_key_to(error.fragment, messages)
    if found is not None:
        return found
    first = RoutingKey.for_message(messages[0])
    return RoutingKey(session_id=first.session_id, partition_key=first.partition_key)


class FragmentOutage:
    """One fragment, from the send that it did not take to the ping that it answers."""

    def __init__(
        self, number: int, outages: FragmentOutages, ping_key: RoutingKey, failure: ServiceBusError, since_ms: int
    ) -> None:
        """`key` leads there: pings carry it."""
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
        """Of which a ping is told."""
        return self.number

    def ping_succeeded(self) -> None:
        """It is there again."""
        self._outages.restore(self)

    def pings_refused(self, error: ServiceBusError) -> None:
        """The entity answers, and refuses: the next send hears why, since nothing can be said of the fragment."""
        self._outages.restore(self, error)


class ParkingTurn:
    """The turn of a batch that parks messages for fragments that are down after its others are at the primary.

    A later send of the same keys waits until they are parked, or it would overtake them.
    """

    def __init__(self, outages: FragmentOutages, fragment_numbers: set[int]) -> None:
        """`numbers` are the fragments."""
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
        """Let later sends go on. May be called again."""
        self._outages.turns.pop(self, None)
        self.ended.set()


class FragmentOutages:
    """Those of one entity, to all senders of a factory."""

    def __init__(
        self, path: str, clock: Clock, on_change: Callable[[FragmentOutage, ServiceBusError | None], None]
    ) -> None:
        """None is down. `changed` is told of each when it goes down and when it is back, perhaps with a reason."""
        self.path = path
        self.down: Final[dict[int, FragmentOutage]] = {}
        """By their numbers. The same object always: senders look at it with each message."""
        self.turns: Final[dict[ParkingTurn, None]] = {}
        """Of batches under way, in their order."""
        self._uses_message_id = False
        """The entity detects duplicates: it has said so by refusing a message with no other key."""
        self._clock = clock
        self._on_change = on_change

    def outage_for(self, messages: Iterable[BrokeredMessage]) -> FragmentOutage | None:
        """Why messages that are sent together cannot go to the primary now; None if they can."""
        if not self.down:
            return None
        numbers = (
            RoutingKey.for_message(message).fragment_number(uses_message_id=self._uses_message_id)
            for message in messages
        )
        return next((self.down[number] for number in numbers if number in self.down), None)

    def affected_messages(self, messages: Iterable[BrokeredMessage]) -> dict[int, int]:
        """Return the messages that lead to fragments that are down: the index of each, and its fragment."""
        if not self.down:
            return {}
        numbers = [
            RoutingKey.for_message(message).fragment_number(uses_message_id=self._uses_message_id)
            for message in messages
        ]
        return {index: number for index, number in enumerate(numbers) if number is not None and number in self.down}

    def take_turn(self, fragment_numbers: set[int], *, is_split: bool) -> ParkingTurn | None:
        """Queue up to park messages for some fragments; None if that can be done at once.

        `is_split`: others of the batch go to the primary before. All other sends are in order without a turn, unless
        such a batch is ahead of them.
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
        """One of these was refused because its fragment is down."""
        number = error.fragment
        if number is None or number in self.down:
            return
        key = routing_key_to(number, messages)
        if key is None:  # a namespace that hashes in another way: nothing is known of other messages
            return
        self._uses_message_id = self._uses_message_id or key.message_id is not None
        outage = self.down[number] = FragmentOutage(number, self, key, error, self._clock.wall_ms())
        self._on_change(outage, error)

    def restore(self, outage: FragmentOutage, reason: ServiceBusError | None = None) -> None:
        """It is not held to be down any more."""
        if self.down.get(outage.number) is outage:
            del self.down[outage.number]
            outage.is_pinged, outage.next_ping_ms = False, None
            self._on_change(outage, reason)

    def restore_all(self) -> None:
        """Somebody knows better."""
        for outage in list(self.down.values()):
            self.restore(outage)
