"""Messages go on from the spool: each is sent as if an application sent it now, and leaves the spool when it is safe.

Owns: when that is tried, and what follows a failure. While an entity takes nothing, and nothing can be parked for it,
one message at a time asks again, with pauses that grow; once one has gone, many are on their way at the same time. The
order is the pile's (`spool_index`).
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import logging
from enum import Enum
from typing import TYPE_CHECKING, Final

from msgspec import structs

from twinbus.amqp.message import Message
from twinbus.client.errors import FactoryFaulted, ObjectClosed, may_have_happened
from twinbus.client.pairing.blame import Patience, is_refusal
from twinbus.client.pairing.errors import MessageCannotBeParked, NotSent, SpoolFailed
from twinbus.client.pairing.events import EventKind
from twinbus.client.pairing.triggers import class_of
from twinbus.model.callbacks import ignore
from twinbus.model.errors import FailureClass, PartlyStored, ServiceBusError
from twinbus.model.message import BATCH_FORMAT, BrokeredMessage
from twinbus.model.path import key_of
from twinbus.model.times import duration_s

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinbus.client.pairing.pairing import Pairing
    from twinbus.client.pairing.spool import Spool
    from twinbus.client.pairing.spool_index import Pile
    from twinbus.client.pairing.spool_record import Record

log: Final = logging.getLogger(__name__)

FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0
MOST_ON_WAY: Final = 64
"""Messages for one entity that are sent at the same time."""


class Verdict(Enum):
    """What a failure means for the message, and for those behind it."""

    ENTITY_WAITS = "the entity takes nothing now"
    MESSAGE_WAITS = "this message does not go now; others may"
    REFUSED = "it will never be accepted"
    OVER = "the factory has ended"


_VERDICTS: Final[dict[type[BaseException], Verdict]] = {
    PartlyStored: Verdict.ENTITY_WAITS,  # the rest of the batch follows
    MessageCannotBeParked: Verdict.MESSAGE_WAITS,  # it goes when the primary is back
    SpoolFailed: Verdict.MESSAGE_WAITS,  # it cannot be read now, or not be put aside
    OSError: Verdict.MESSAGE_WAITS,
}


class Unspooling:
    """Of one pairing."""

    def __init__(self, pairing: Pairing, spool: Spool) -> None:
        """`start` begins."""
        self._pairing = pairing
        self._spool = spool
        self._outlets: dict[str, Outlet] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Go on with what is there, and with what comes."""
        self._spool.added = self._added
        for pile in self._spool.piles:
            self._begin(pile, 0.0)

    async def close(self) -> None:
        """Stop. What was not sent stays in the spool."""
        self._spool.added = ignore
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _added(self, pile: Pile) -> None:
        outlet = self._outlets.get(key_of(pile.path))
        if outlet is None or outlet.pile is not pile:  # the last one has just seen that nothing is left
            self._begin(pile, FIRST_PAUSE_S)  # both namespaces have just refused it
        else:
            outlet.changed.set()

    def _begin(self, pile: Pile, pause_s: float) -> None:
        try:
            outlet = Outlet(self._pairing, self._spool, pile)
        except (ObjectClosed, FactoryFaulted) as error:
            log.warning("what is spooled for '%s' stays there until the next start: %s", pile.path, error)
            return
        self._outlets[key_of(pile.path)] = outlet
        task = asyncio.ensure_future(self._run(outlet, pile, pause_s))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, outlet: Outlet, pile: Pile, pause_s: float) -> None:
        try:
            await outlet.run(pause_s)
        finally:
            if self._outlets[key_of(pile.path)] is outlet:
                del self._outlets[key_of(pile.path)]


class Outlet:
    """The way out for what is spooled for one entity."""

    def __init__(self, pairing: Pairing, spool: Spool, pile: Pile) -> None:
        """`run` is its life: until nothing is left."""
        self.changed = asyncio.Event()
        """Something was added, or has gone, or failed."""
        self.pile = pile
        self._pairing = pairing
        self._spool = spool
        self._sender = pairing.make_sender(pile.path)
        self._on_way: set[asyncio.Task[None]] = set()
        self._most = 1
        """That may be on their way now."""
        self._doubtful: set[int] = set()
        """Sent before without an answer."""
        self._stored: dict[int, Sequence[int]] = {}
        """Of a batch that was sent in part, the places of messages that are safe."""
        self._failures = 0
        """In a row, of the entity."""
        self._patience = Patience(duration_s(pairing.options.not_found_grace))
        self._refusal: ServiceBusError | None = None
        """Why the entity refuses all messages now: it is disabled or missing, or the key is not accepted."""
        self._has_failed = False
        """Since the last pause."""
        self._is_over = False

    async def run(self, pause_s: float) -> None:
        """Send until there is nothing; the first after a pause."""
        try:
            await self._pause(pause_s)
            while self.pile and not self._is_over:
                self._start()
                self.changed.clear()
                await self.changed.wait()
                if self._has_failed:
                    await self._wait_for_others()
                    await self._pause(min(FIRST_PAUSE_S * 2 ** (self._failures - 1), LONGEST_PAUSE_S))
        finally:
            for task in self._on_way:
                task.cancel()
            await self._wait_for_others()
            self._end_refusal()
            await self._sender.close()

    def _start(self) -> None:
        """Send as many as may be on their way."""
        while len(self._on_way) < self._most:
            position = self.pile.take()
            if position is None:
                return
            task = asyncio.ensure_future(self._take_out(position))
            self._on_way.add(task)
            task.add_done_callback(self._was_tried)

    def _was_tried(self, task: asyncio.Task[None]) -> None:
        self._on_way.discard(task)
        self.changed.set()
        if not task.cancelled() and task.exception() is not None:
            log.error(
                "a spooled message for '%s' is left for the next start", self.pile.path, exc_info=task.exception()
            )

    async def _wait_for_others(self) -> None:
        """Let those that are on their way have their answers."""
        if self._on_way:
            await asyncio.wait(self._on_way)
        self._has_failed = False

    async def _pause(self, pause_s: float) -> None:
        """Wait, but no longer than until the entity's state has changed."""
        if pause_s > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._sender.health.moved.wait()

    async def _take_out(self, position: int) -> None:
        """Send one, and remove it; or see what its failure means."""
        record: Record | None = None
        try:
            record = await self._spool.read(position)
            messages = messages_of(record)
            await self._sender.send_spooled(
                record.payload,
                record.message_format,
                messages,
                may_have_arrived=self._is_doubtful(position, record),
                stored=self._stored.get(position, ()),
            )
        except Exception as error:  # noqa: BLE001  # whatever it is: the message stays
            await self._failed(position, record, error)
        else:
            self._accepted()
            await self._spool.remove(position, record)
            self._doubtful.discard(position)
            self._stored.pop(position, None)
            self._tell(EventKind.UNSPOOLED, messages)

    def _is_doubtful(self, position: int, record: Record) -> bool:
        return record.may_have_arrived or position in self._doubtful or self._spool.is_doubtful(position)

    def _accepted(self) -> None:
        if self._failures:
            log.info("messages spooled for '%s' are sent again", self.pile.path)
        self._failures, self._most = 0, min(2 * self._most, MOST_ON_WAY)
        self._patience.accepted()
        self._end_refusal()

    # --- failures -----------------------------------------------------------------------------------------------------

    async def _failed(self, position: int, record: Record | None, error: Exception) -> None:
        verdict = self._verdict_of(error)
        if isinstance(error, NotSent | PartlyStored) and error.stored:
            self._stored[position] = error.stored
        if may_have_happened(error):
            self._doubtful.add(position)
        if verdict is Verdict.REFUSED and record is not None:
            try:
                await self._refuse(position, record, error)
            except (OSError, SpoolFailed) as failure:
                log.error("%s; it could not be put aside: %s", error, failure)  # noqa: TRY400  # both are the disk's
                verdict = Verdict.MESSAGE_WAITS
            else:
                return
        # An outage is told once, not with every attempt.
        level = logging.DEBUG if verdict is Verdict.ENTITY_WAITS and self._failures else logging.WARNING
        log.log(level, "a spooled message for '%s' was not sent: %s: %s", self.pile.path, verdict.value, error)
        if verdict is Verdict.MESSAGE_WAITS:
            asyncio.get_running_loop().call_later(LONGEST_PAUSE_S, self._put_back, position)
            return
        if verdict is Verdict.OVER:
            self._is_over = True
        else:
            self._failures, self._most, self._has_failed = self._failures + 1, 1, True
        self._put_back(position)

    def _put_back(self, position: int) -> None:
        self.pile.put_back(position)
        self.changed.set()

    def _verdict_of(self, error: Exception) -> Verdict:
        if self._pairing.primary.ended.is_set():
            return Verdict.OVER  # whatever its end looks like from here
        for kind, verdict in _VERDICTS.items():
            if isinstance(error, kind):
                return verdict
        if isinstance(error, ServiceBusError):
            return self._verdict_of_answer(error)
        log.error("a spooled message for '%s' met a fault of ours", self.pile.path, exc_info=error)
        return Verdict.MESSAGE_WAITS

    def _verdict_of_answer(self, error: ServiceBusError) -> Verdict:
        """Judge as the syphon does (`blame`), unless the application says that such an error is an outage."""
        is_outage = class_of(error, self._pairing.options.triggers) is not FailureClass.CALLER
        if not is_outage and self._patience.is_over(error, asyncio.get_running_loop().time()):
            return Verdict.REFUSED
        if is_refusal(error) and type(error) is not type(self._refusal):
            self._end_refusal()
            self._refusal = error
            self._pairing.pair_events.emit(EventKind.DESTINATION_REFUSES, path=self.pile.path, reason=str(error))
        return Verdict.ENTITY_WAITS

    def _end_refusal(self) -> None:
        if self._refusal is not None:
            self._refusal = None
            self._pairing.pair_events.emit(EventKind.DESTINATION_ACCEPTS, path=self.pile.path)

    async def _refuse(self, position: int, record: Record, error: Exception) -> None:
        now = dt.datetime.fromtimestamp(self._pairing.primary.settings.clock.wall_ms() / 1000, dt.UTC)
        record = structs.replace(record, may_have_arrived=self._is_doubtful(position, record))
        file = await self._spool.refuse(
            position,
            record,
            f"{now.isoformat(timespec='seconds')}: '{record.path}' refused the message\n"
            f"{type(error).__name__}: {error}\n"
            f"MessageId: {', '.join(record.message_ids)}\n",
        )
        self._doubtful.discard(position)
        self._stored.pop(position, None)
        log.error("'%s' refused a spooled message, which is kept as %s: %s", record.path, file, error)
        self._tell(EventKind.SPOOL_REFUSED, messages_of(record), reason=str(error))

    def _tell(self, kind: EventKind, messages: list[BrokeredMessage], reason: str | None = None) -> None:
        for message in messages:
            self._pairing.pair_events.emit(
                kind,
                path=self.pile.path,
                message_id=message.message_id,
                session_id=message.session_id,
                reason=reason,
            )


def messages_of(record: Record) -> list[BrokeredMessage]:
    """The messages in a record: one, or those of a batch."""
    payloads = Message(record.payload).data if record.message_format == BATCH_FORMAT else [record.payload]
    return [BrokeredMessage.decode(payload) for payload in payloads]
