"""Pings: empty messages that ask, once an interval, whether an entity of the primary is there again, or a fragment.

Owns: when they are sent, and what their answers mean. They are sent while the entity is failed over or unreachable, or
while its fragment is held to be down, at fixed multiples of the interval after that began; one that has no answer when
the next is due is given up (Q13).
"""

from __future__ import annotations

import asyncio
import datetime as dt
from typing import TYPE_CHECKING, Final, Protocol

from twinbus.client.errors import TimedOut
from twinbus.client.pairing.observe.events import EventKind
from twinbus.client.retry import NO_RETRY
from twinbus.client.sender import MessageSender
from twinbus.model.errors import FailureClass, ServiceBusError
from twinbus.model.message import PING_CONTENT_TYPE, BrokeredMessage

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.client.factory import MessagingFactory
    from twinbus.client.pairing.failover.fragment_outages import RoutingKey
    from twinbus.client.pairing.observe.event_publisher import PairEventPublisher

PING_TIME_TO_LIVE: Final = dt.timedelta(seconds=1)
REFUSALS_UNTIL_UNREACHABLE: Final = 2
"""So many refused pings in a row make an entity unreachable (Q14)."""


class PingTarget(Protocol):
    """What is asked whether it is there again."""

    path: str
    ping_key: RoutingKey
    """What pings carry."""
    next_ping_ms: int | None

    @property
    def fragment(self) -> int | None:
        """Of the entity; None where all of it is meant."""

    @property
    def is_pinged(self) -> bool:
        """It is to be asked."""

    def ping_succeeded(self) -> None:
        """The primary took a ping."""

    def pings_refused(self, error: ServiceBusError) -> None:
        """The primary answers pings, and refuses them."""


class Pings:
    """Those of one factory."""

    def __init__(
        self,
        primary: MessagingFactory,
        interval_s: float,
        events: PairEventPublisher,
        classify: Callable[[ServiceBusError], FailureClass],
    ) -> None:
        """Nothing is pinged yet. `classify` says what a failure is to a paired sender."""
        self._primary = primary
        self._interval_s = interval_s
        self._events = events
        self._classify = classify
        self._tasks: dict[PingTarget, asyncio.Task[None]] = {}
        self._senders: dict[str, MessageSender] = {}

    def start(self, target: PingTarget) -> None:
        """It takes no messages: ping it, with an ordinary sender, since a ping is never parked."""
        sender = self._senders.get(target.path)
        if sender is None:
            sender = self._senders[target.path] = MessageSender(self._primary, target.path)
        self._tasks[target] = asyncio.ensure_future(self._run(target, sender))

    def stop(self, target: PingTarget) -> None:
        """It is healthy, whoever says so."""
        task = self._tasks.pop(target, None)
        if task is not None and task is not asyncio.current_task():
            task.cancel()

    def close(self) -> None:
        """No more pings."""
        for task in self._tasks.values():
            task.cancel()

    async def _run(self, target: PingTarget, sender: MessageSender) -> None:
        loop = asyncio.get_running_loop()
        started_s, number, refusals = loop.time(), 0, 0
        while target.is_pinged:
            number += 1
            due_s = started_s + number * self._interval_s
            wait_s = due_s - loop.time()
            if wait_s < 0:  # the last one took its time
                continue
            target.next_ping_ms = self._primary.settings.clock.wall_ms() + round(wait_s * 1000)
            await asyncio.sleep(wait_s)
            error = await self._ping(target.ping_key, sender)
            reason = None if error is None else str(error)
            self._events.emit(EventKind.PINGED, path=target.path, fragment=target.fragment, reason=reason)
            if error is None:
                target.ping_succeeded()
                return
            refusals = refusals + 1 if self._classify(error) is FailureClass.CALLER else 0
            if refusals >= REFUSALS_UNTIL_UNREACHABLE:
                target.pings_refused(error)

    async def _ping(self, ping_key: RoutingKey, sender: MessageSender) -> ServiceBusError | None:
        """Ping once; why it did not succeed."""
        ping = BrokeredMessage(
            content_type=PING_CONTENT_TYPE,
            time_to_live=PING_TIME_TO_LIVE,
            session_id=ping_key.session_id,
            partition_key=ping_key.partition_key,
        )
        if ping_key.message_id is not None:
            ping.message_id = ping_key.message_id
        payload = ping.encode(self._primary.settings.clock.wall_ms())
        # A little less than the interval, so that it is over when the next one is due.
        timeout_s = self._interval_s * 0.98
        try:
            await sender.deliver(payload, timeout_s=timeout_s, policy=NO_RETRY)
        except ServiceBusError as error:
            if isinstance(error, TimedOut):
                self._primary.drop_if_silent(timeout_s)
            return error
        return None
