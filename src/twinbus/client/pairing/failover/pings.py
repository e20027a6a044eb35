"""Pings: empty messages, sent once per interval, that test whether an entity or a fragment is available again.

Owns: the schedule of pings and the evaluation of their results. Pings are sent while the entity is failed over or
unreachable, or while its fragment is marked down, at fixed multiples of the interval after the failure. A ping without
a response is abandoned before the next one is due.
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
"""The number of consecutive refused pings that make an entity unreachable."""


class PingTarget(Protocol):
    """An entity or a fragment that is pinged."""

    path: str
    ping_key: RoutingKey
    """The routing key that pings carry."""
    next_ping_ms: int | None

    @property
    def fragment(self) -> int | None:
        """The fragment number; None if the whole entity is pinged."""

    @property
    def is_pinged(self) -> bool:
        """Whether pings should be sent."""

    def ping_succeeded(self) -> None:
        """Note that the primary accepted a ping."""

    def pings_refused(self, error: ServiceBusError) -> None:
        """Note that the primary responds to pings, but refuses them."""


class Pings:
    """The pings of one factory."""

    def __init__(
        self,
        primary: MessagingFactory,
        interval_s: float,
        events: PairEventPublisher,
        classify: Callable[[ServiceBusError], FailureClass],
    ) -> None:
        """Create a pinger without targets; `classify` returns the class of a failure for a paired sender."""
        self._primary = primary
        self._interval_s = interval_s
        self._events = events
        self._classify = classify
        self._tasks: dict[PingTarget, asyncio.Task[None]] = {}
        self._senders: dict[str, MessageSender] = {}

    def start(self, target: PingTarget) -> None:
        """Start pinging a target with an ordinary sender, because a ping must never be parked."""
        sender = self._senders.get(target.path)
        if sender is None:
            sender = self._senders[target.path] = MessageSender(self._primary, target.path)
        self._tasks[target] = asyncio.ensure_future(self._run(target, sender))

    def stop(self, target: PingTarget) -> None:
        """Stop pinging a target, which is healthy again."""
        task = self._tasks.pop(target, None)
        if task is not None and task is not asyncio.current_task():
            task.cancel()

    def close(self) -> None:
        """Stop all pings."""
        for task in self._tasks.values():
            task.cancel()

    async def _run(self, target: PingTarget, sender: MessageSender) -> None:
        loop = asyncio.get_running_loop()
        started_s, number, refusals = loop.time(), 0, 0
        while target.is_pinged:
            number += 1
            due_s = started_s + number * self._interval_s
            wait_s = due_s - loop.time()
            if wait_s < 0:  # the previous ping took longer than an interval
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
        """Send one ping; return the error if the ping failed."""
        ping = BrokeredMessage(
            content_type=PING_CONTENT_TYPE,
            time_to_live=PING_TIME_TO_LIVE,
            session_id=ping_key.session_id,
            partition_key=ping_key.partition_key,
        )
        if ping_key.message_id is not None:
            ping.message_id = ping_key.message_id
        payload = ping.encode(self._primary.settings.clock.wall_ms())
        # A little less than the interval, so that this ping has finished when the next ping is due.
        timeout_s = self._interval_s * 0.98
        try:
            await sender.deliver(payload, timeout_s=timeout_s, policy=NO_RETRY)
        except ServiceBusError as error:
            if isinstance(error, TimedOut):
                self._primary.drop_if_silent(timeout_s)
            return error
        return None
