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
from twinbus.client.pairing.blame import NOT_FOUND_GRACE_S
from twinbus.client.pairing.draining import FINISH_S, Draining
from twinbus.client.pairing.errors import PrimaryLost
from twinbus.client.pairing.events import EventKind
from twinbus.client.pairing.outages import side_of
from twinbus.client.pairing.rewriting import LOCK_MS
from twinbus.client.retry import NO_RETRY
from twinbus.model.errors import EntityClaimed, LinkStolen, ServiceBusError

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.client.clock import Clock
    from twinbus.client.factory import MessagingFactory
    from twinbus.client.pairing.pair_events import PairEvents
    from twinbus.client.pairing.wakeups import Wakeups
    from twinbus.client.sender import MessageSender

SILENCE_LIMIT_S: Final = 5.0
"""The silence after which the secondary takes the queue from a host; the host notices a silent secondary as fast."""
STANDBY_S: Final = 1.0
"""How often a host that stands by asks for the queue. An attach that is refused is not charged, and takes a tenth of a
millisecond of the secondary's processor time."""
DISPLACED: Final = (LinkStolen, EntityClaimed)
"""Another host has the queue."""
FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 5.0
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
    deduct: bool
    not_found_grace_s: float = NOT_FOUND_GRACE_S
    """How long messages for an entity that does not exist stay in the backlog before they are dead-lettered."""
    clock: Clock
    events: PairEvents


class Pump:
    """Of one backlog queue."""

    def __init__(self, path: str, settings: PumpSettings, lock_ms: int = LOCK_MS) -> None:
        """`start` begins. `lock_ms` is how long the queue locks messages, which may be its own (R026)."""
        self.path = path
        self.is_active = False
        """It drains the queue now; else another host does, or nobody can."""
        self.why_not: ServiceBusError | None = None
        self._settings = settings
        self._has_asked = False
        """The secondary has answered: the queue was ours, or another host has it."""
        self._lock_ms = lock_ms
        self._task: asyncio.Task[None] | None = None
        self._draining: Draining | None = None
        self._in_doubt: set[int] = set()
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
        if self._draining is not None:
            self._draining.stop()
            await asyncio.wait([self._task], timeout=FINISH_S + 1.0)
        self._task.cancel()
        await asyncio.wait([self._task])

    def lose_primary(self, path: str, error: ServiceBusError) -> None:
        """Receive nothing until the primary can be reached again: sends to `path` say that it cannot."""
        if self._draining is not None:
            self._draining.lose_primary(path, error)

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
            self._tell_end(error)
            if isinstance(error, PrimaryLost):
                await self._await_primary(error.path)
                continue
            if isinstance(error, DISPLACED):
                self._has_asked = True
                pause_s = STANDBY_S
            elif asyncio.get_running_loop().time() - started_s > LONGEST_PAUSE_S:
                pause_s = FIRST_PAUSE_S
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _await_primary(self, path: str) -> None:
        """Go on when the primary can be reached again, or refuses for another reason: which the draining will see."""
        pause_s = FIRST_PAUSE_S
        while True:
            await self._settings.wakeups.wait(None, pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            try:
                await self._settings.sender_to(path).link(NO_RETRY)
            except (ConnectionFailed, ConnectionLost, TimedOut):
                continue  # not yet
            except ServiceBusError:
                return
            else:
                self._settings.wakeups.answered(path)
                return

    async def _drain(self) -> ServiceBusError:
        settings = self._settings
        receiver = settings.secondary.create_message_receiver(
            self.path, epoch=settings.epoch, silence_limit=SILENCE_LIMIT_S, if_free=self._has_asked
        )
        try:
            link = await receiver.link()
            was_outage = side_of(self.why_not) is not None
            self.is_active, self.why_not, self._has_asked = True, None, True
            settings.events.outages.end_wait(self.path)
            settings.events.emit(EventKind.PUMP_STARTED, backlog_queue=self.path, is_outage=was_outage)
            self._draining = draining = Draining(settings, receiver, link, self._in_doubt, self._lock_ms)
            try:
                return await draining.run()
            finally:
                await draining.end()
        finally:
            self.is_active, self._draining = False, None
            await receiver.close()

    def _tell_end(self, error: ServiceBusError) -> None:
        is_displaced = isinstance(error, DISPLACED)
        is_new = not (is_displaced and isinstance(self.why_not, DISPLACED)) and type(self.why_not) is not type(error)
        self.why_not = error
        events, side = self._settings.events, side_of(error)
        if side is None:
            events.outages.end_wait(self.path)
        else:
            events.outages.lose(side, error, self.path)
        if is_new:
            kind = EventKind.PUMP_DISPLACED if is_displaced else EventKind.PUMP_FAILED
            events.emit(kind, backlog_queue=self.path, reason=str(error), is_outage=side is not None)
