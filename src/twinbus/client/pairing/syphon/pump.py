"""The pump of one backlog queue: attaches as an exclusive receiver, drains the queue, and otherwise stands by.

Owns: the pump's life cycle: the exclusive link with its epoch, and what happens when that link is lost. Messages
are moved by `backlog_consumer`. When a pump starts, it displaces the current receiver once, if the pump's epoch is
higher. Later the pump takes the queue only if the queue is free: a host that was stopped or cut off for a while must
not take the queue back from the host that took over.

A host that falls silent loses the queue after SILENCE_LIMIT_S (`client.amqp.lease`). A standby host tries to attach
every STANDBY_POLL_S, and therefore takes over within the sum of both times.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from twinbus.client.errors import ConnectionFailed, ConnectionLost, FactoryFaulted, ObjectClosed, TimedOut
from twinbus.client.pairing.backlog.rewriting import DEFAULT_LOCK_MS
from twinbus.client.pairing.delivery_failure import NOT_FOUND_GRACE_S
from twinbus.client.pairing.errors import PrimaryLost
from twinbus.client.pairing.failover.namespace_outages import lost_namespace
from twinbus.client.pairing.observe.events import EventKind
from twinbus.client.pairing.syphon.backlog_consumer import FINISH_TIMEOUT_S, BacklogConsumer
from twinbus.client.retry import NO_RETRY
from twinbus.model.errors import EntityClaimed, LinkStolen, ServiceBusError

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.client.clock import Clock
    from twinbus.client.factory import MessagingFactory
    from twinbus.client.pairing.observe.event_publisher import PairEventPublisher
    from twinbus.client.pairing.syphon.wakeups import Wakeups
    from twinbus.client.sender import MessageSender

SILENCE_LIMIT_S: Final = 5.0
"""The silence after which the secondary takes the queue from a host. The host detects a silent secondary after the same
time."""
STANDBY_POLL_S: Final = 1.0
"""The interval at which a standby host tries to attach. A refused attach is not a billed operation, and costs the
secondary 0.1 ms of CPU time."""
DISPLACED_ERRORS: Final = (LinkStolen, EntityClaimed)
"""Errors that mean that another host has the queue."""
FIRST_PAUSE_S: Final = 0.5
MAX_PAUSE_S: Final = 5.0
"""The longest pause between attempts to attach. It is short because connecting and attaching are not billed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PumpSettings:
    """The settings that all pumps of a syphon share."""

    secondary: MessagingFactory
    sender_to: Callable[[str], MessageSender]
    """A function that returns an ordinary sender to a destination in the primary."""
    wakeups: Wakeups
    """The wakeups of this process, which notify pumps when an entity of the primary responds."""
    epoch: int
    poll_s: float
    send_timeout_s: float
    deduct_parked_time: bool
    not_found_grace_s: float = NOT_FOUND_GRACE_S
    """The time messages for an entity that does not exist stay in the backlog before they are dead-lettered."""
    clock: Clock
    events: PairEventPublisher


class Pump:
    """The pump of one backlog queue."""

    def __init__(self, path: str, settings: PumpSettings, lock_ms: int = DEFAULT_LOCK_MS) -> None:
        """Create a pump; `start` starts it.

        `lock_ms` is the lock duration of the queue, which may differ from the default.
        """
        self.path = path
        self.is_active = False
        """Whether this pump drains the queue. If not, another host drains the queue, or the queue cannot be drained."""
        self.inactive_reason: ServiceBusError | None = None
        self._settings = settings
        self._has_secondary_answered = False
        """Whether the secondary has let this pump attach, or has refused an attach because another host has the queue.
        After that, this pump takes the queue only if the queue is free."""
        self._lock_ms = lock_ms
        self._task: asyncio.Task[None] | None = None
        self._consumer: BacklogConsumer | None = None
        self._possibly_delivered: set[int] = set()
        """Sequence numbers of messages that were in flight when a consumer stopped."""

    @property
    def has_ended(self) -> bool:
        """Whether the pump has ended, because a factory was closed or faulted or an unexpected error occurred."""
        return self._task is not None and self._task.done()

    def start(self) -> None:
        """Start the pump."""
        self._task = asyncio.ensure_future(self._run())

    async def close(self) -> None:
        """Stop the pump. Wait briefly for messages in flight, and release all other messages to the backlog queue."""
        if self._task is None:
            return
        if self._consumer is not None:
            self._consumer.stop()
            await asyncio.wait([self._task], timeout=FINISH_TIMEOUT_S + 1.0)
        self._task.cancel()
        await asyncio.wait([self._task])

    def on_primary_lost(self, path: str, error: ServiceBusError) -> None:
        """Stop receiving until the primary can be reached again, because sends to `path` lost the connection."""
        if self._consumer is not None:
            self._consumer.on_primary_lost(path, error)

    async def _run(self) -> None:
        pause_s = FIRST_PAUSE_S
        while True:
            started_s = asyncio.get_running_loop().time()
            try:
                error = await self._drain()
            except ServiceBusError as caught:
                error = caught
            if isinstance(error.error if isinstance(error, PrimaryLost) else error, ObjectClosed | FactoryFaulted):
                return
            self._report_end(error)
            if isinstance(error, PrimaryLost):
                await self._wait_for_primary(error.path)
                continue
            if isinstance(error, DISPLACED_ERRORS):
                self._has_secondary_answered = True
                pause_s = STANDBY_POLL_S
            elif asyncio.get_running_loop().time() - started_s > MAX_PAUSE_S:
                pause_s = FIRST_PAUSE_S
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, MAX_PAUSE_S)

    async def _wait_for_primary(self, path: str) -> None:
        """Wait until the primary responds. If it responds with another error, the next drain handles that error."""
        pause_s = FIRST_PAUSE_S
        while True:
            await self._settings.wakeups.wait(None, pause_s)
            pause_s = min(2 * pause_s, MAX_PAUSE_S)
            try:
                await self._settings.sender_to(path).link(NO_RETRY)
            except (ConnectionFailed, ConnectionLost, TimedOut):
                continue
            except ServiceBusError:
                return
            else:
                self._settings.wakeups.notify(path)
                return

    async def _drain(self) -> ServiceBusError:
        settings = self._settings
        receiver = settings.secondary.create_message_receiver(
            self.path, epoch=settings.epoch, silence_limit=SILENCE_LIMIT_S, if_free=self._has_secondary_answered
        )
        try:
            link = await receiver.link()
            was_outage = lost_namespace(self.inactive_reason) is not None
            self.is_active, self.inactive_reason, self._has_secondary_answered = True, None, True
            settings.events.outages.note_pump_resumed(self.path)
            settings.events.emit(EventKind.PUMP_STARTED, backlog_queue=self.path, is_outage=was_outage)
            self._consumer = consumer = BacklogConsumer(
                settings, receiver, link, self._possibly_delivered, self._lock_ms
            )
            try:
                return await consumer.run()
            finally:
                await consumer.end()
        finally:
            self.is_active, self._consumer = False, None
            await receiver.close()

    def _report_end(self, error: ServiceBusError) -> None:
        is_displaced = isinstance(error, DISPLACED_ERRORS)
        is_new = not (is_displaced and isinstance(self.inactive_reason, DISPLACED_ERRORS)) and type(
            self.inactive_reason
        ) is not type(error)
        self.inactive_reason = error
        events, role = self._settings.events, lost_namespace(error)
        if role is None:
            events.outages.note_pump_resumed(self.path)
        else:
            events.outages.note_lost(role, error, self.path)
        if is_new:
            kind = EventKind.PUMP_DISPLACED if is_displaced else EventKind.PUMP_FAILED
            events.emit(kind, backlog_queue=self.path, reason=str(error), is_outage=role is not None)
