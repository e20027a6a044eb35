"""The pump of one backlog queue: takes it for itself, drains it, and stands by while another host does.

Owns: the pump's life: the exclusive link, by epoch (Q17), and what to do when that is lost. How messages move is in
`draining`. A pump displaces the holder of the queue once, when it starts, if its epoch is higher. Later it asks for the
queue only if nobody holds it: a host that was stopped or cut off for a while must not take the queue back from the host
that took over.

A host that falls silent loses the queue after SILENCE_LIMIT_S (`client.lease`); another one asks every STANDBY_S, and
so has the queue within the sum of both.
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
"""The silence after which the secondary takes the queue from a host; the host notices a silent secondary as fast."""
STANDBY_POLL_S: Final = 1.0
"""How often a host that stands by asks for the queue. An attach that is refused is not charged, and takes a tenth of a
millisecond of the secondary's processor time."""
DISPLACED_ERRORS: Final = (LinkStolen, EntityClaimed)
"""Another host has the queue."""
FIRST_PAUSE_S: Final = 0.5
MAX_PAUSE_S: Final = 5.0
"""To connect and to attach is not charged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PumpSettings:
    """What all pumps of a syphon have in common."""

    secondary: MessagingFactory
    sender_to: Callable[[str], MessageSender]
    """An ordinary sender of the primary's, to a destination."""
    wakeups: Wakeups
    """Of this process: says when an entity of the primary answers."""
    epoch: int
    poll_s: float
    send_timeout_s: float
    deduct_parked_time: bool
    not_found_grace_s: float = NOT_FOUND_GRACE_S
    """How long messages for an entity that does not exist stay in the backlog before they are dead-lettered."""
    clock: Clock
    events: PairEventPublisher


class Pump:
    """Of one backlog queue."""

    def __init__(self, path: str, settings: PumpSettings, lock_ms: int = DEFAULT_LOCK_MS) -> None:
        """`start` begins. `lock_ms` is how long the queue locks messages, which may be its own (R026)."""
        self.path = path
        self.is_active = False
        """It drains the queue now; else another host does, or nobody can."""
        self.inactive_reason: ServiceBusError | None = None
        self._settings = settings
        self._has_secondary_answered = False
        """The secondary has answered: the queue was ours, or another host has it."""
        self._lock_ms = lock_ms
        self._task: asyncio.Task[None] | None = None
        self._consumer: BacklogConsumer | None = None
        self._possibly_delivered: set[int] = set()
        """Numbers of messages that were on their way when a draining ended."""

    @property
    def has_ended(self) -> bool:
        """It will not go on by itself: a factory has ended, or it met what it does not know."""
        return self._task is not None and self._task.done()

    def start(self) -> None:
        """Drain from now on."""
        self._task = asyncio.ensure_future(self._run())

    async def close(self) -> None:
        """Stop: what is on its way is waited for, for a moment, and what is not goes back to its place."""
        if self._task is None:
            return
        if self._consumer is not None:
            self._consumer.stop()
            await asyncio.wait([self._task], timeout=FINISH_TIMEOUT_S + 1.0)
        self._task.cancel()
        await asyncio.wait([self._task])

    def on_primary_lost(self, path: str, error: ServiceBusError) -> None:
        """Receive nothing until the primary can be reached again: sends to `path` say that it cannot."""
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
        """Go on when the primary can be reached again, or refuses for another reason: which the draining will see."""
        pause_s = FIRST_PAUSE_S
        while True:
            await self._settings.wakeups.wait(None, pause_s)
            pause_s = min(2 * pause_s, MAX_PAUSE_S)
            try:
                await self._settings.sender_to(path).link(NO_RETRY)
            except (ConnectionFailed, ConnectionLost, TimedOut):
                continue  # not yet
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
            self._consumer = draining = BacklogConsumer(
                settings, receiver, link, self._possibly_delivered, self._lock_ms
            )
            try:
                return await draining.run()
            finally:
                await draining.end()
        finally:
            self.is_active, self._consumer = False, None
            await receiver.close()

    def _report_end(self, error: ServiceBusError) -> None:
        is_displaced = isinstance(error, DISPLACED_ERRORS)
        is_new = not (is_displaced and isinstance(self.inactive_reason, DISPLACED_ERRORS)) and type(
            self.inactive_reason
        ) is not type(error)
        self.inactive_reason = error
        events, side = self._settings.events, lost_namespace(error)
        if side is None:
            events.outages.note_pump_resumed(self.path)
        else:
            events.outages.note_lost(side, error, self.path)
        if is_new:
            kind = EventKind.PUMP_DISPLACED if is_displaced else EventKind.PUMP_FAILED
            events.emit(kind, backlog_queue=self.path, reason=str(error), is_outage=side is not None)
