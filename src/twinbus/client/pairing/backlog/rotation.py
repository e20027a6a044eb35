"""The backlog queues of a pair: their names, their making, and which of them take messages now.

Owns: the rotation. A queue that failed is left out for a while, for all senders of the factory at once (R043); if all
are out, the one that has been longest is tried again. Which queue a client uses is the client's choice (`Choice`).
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from twinbus.client.pairing.backlog.rewriting import DEFAULT_LOCK_MS
from twinbus.client.pairing.errors import PairingFailed
from twinbus.client.pairing.failover.namespace_outages import NamespaceRole, lost_namespace
from twinbus.client.pairing.observe.events import EventKind
from twinbus.model.annotations import BACKLOG_QUEUE_INFIX
from twinbus.model.description import FOREVER_MS
from twinbus.model.errors import (
    EntityAlreadyExists,
    EntityNotFound,
    OperationTimeout,
    ServiceBusError,
    Unauthorized,
)
from twinbus.model.limits import MAX_DELIVERY_COUNT_MAX
from twinbus.model.queue import QueueDescription

if TYPE_CHECKING:
    from collections.abc import Iterable
    from random import Random

    from twinbus.client.factory import MessagingFactory
    from twinbus.client.management import NamespaceManager
    from twinbus.client.pairing.observe.event_publisher import PairEventPublisher
    from twinbus.client.sender import MessageSender

log: Final = logging.getLogger(__name__)

BACKLOG_QUEUE_DESCRIPTION: Final = QueueDescription(
    max_size_mb=5120,
    max_delivery_count=MAX_DELIVERY_COUNT_MAX,
    default_time_to_live_ms=FOREVER_MS,
    auto_delete_on_idle_ms=FOREVER_MS,
    lock_duration_ms=DEFAULT_LOCK_MS,
    dead_lettering_on_expiration=True,
    enable_batched_operations=True,
)
"""R012 to R019."""
CREATE_ATTEMPTS: Final = 3
CREATE_PAUSE_S: Final = 0.5
_PATH_INFIX: Final = f"/{BACKLOG_QUEUE_INFIX}/"


def backlog_queue_prefix(primary: str) -> str:
    """How the paths of a primary's backlog queues begin."""
    return f"{primary}{_PATH_INFIX}"


def backlog_queue_path(primary: str, index: int) -> str:
    """The path of one of them (R010)."""
    return f"{backlog_queue_prefix(primary)}{index}"


def backlog_queue_index(path: str, primary: str) -> int | None:
    """Which of them a path is; None if none."""
    prefix = backlog_queue_prefix(primary).lower()
    number = path[len(prefix) :]
    return int(number) if path.lower().startswith(prefix) and number.isascii() and number.isdigit() else None


class BacklogQueue:
    """One of them, to those who park."""

    def __init__(
        self, path: str, sender: MessageSender, description: QueueDescription = BACKLOG_QUEUE_DESCRIPTION
    ) -> None:
        """`sender` is the secondary's own. A queue that was there before keeps its own description (R026)."""
        self.path = path
        self.sender = sender
        self.max_size_mb = description.max_size_mb
        """How much it can hold."""
        self.lock_ms = description.lock_duration_ms
        """How long it locks messages: what leaves it tells by that for how long it was parked."""
        self.failure: ServiceBusError | None = None
        """The last failure; None after a success. The queue is out of the rotation for the cool-down only."""
        self.out_since_s = 0.0


class Rotation:
    """All of them, and which take messages now."""

    def __init__(
        self,
        secondary: MessagingFactory,
        manager: NamespaceManager,
        primary_name: str,
        *,
        cool_down_s: float,
        events: PairEventPublisher,
        random: Random,
    ) -> None:
        """`prepare` finds or makes them."""
        self.queues: list[BacklogQueue] = []
        self.extra_paths: list[str] = []
        """Paths of backlog queues beyond those asked for (R022): they stay, and get nothing."""
        self._secondary = secondary
        self._manager = manager
        self._primary_name = primary_name
        self._cool_down_s = cool_down_s
        self._events = events
        self._random = random
        self._recreations: set[asyncio.Task[None]] = set()

    @property
    def path_pattern(self) -> str:
        """The paths of all of them, as a pattern."""
        return f"{backlog_queue_prefix(self._primary_name)}*"

    async def prepare(self, count: int) -> None:
        """Have `count` queues: those that are there as they are, the others made. PairingFailed if there is none."""
        try:
            prefix = backlog_queue_prefix(self._primary_name)
            there = {found.path.lower(): found async for found in self._manager.get_queues(prefix)}
        except ServiceBusError as error:
            if isinstance(error, Unauthorized):
                raise
            raise PairingFailed(f"the backlog queues of the secondary cannot be listed: {error}") from error
        wanted = [backlog_queue_path(self._primary_name, index) for index in range(count)]
        made = await asyncio.gather(*[self._ensure_queue(path, there) for path in wanted], return_exceptions=True)
        failures = [outcome for outcome in made if isinstance(outcome, BaseException)]
        for failure in failures:
            if not isinstance(failure, ServiceBusError) or isinstance(failure, Unauthorized):
                raise failure
            log.warning("a backlog queue could not be made: %s", failure)
        found = [path for path, outcome in zip(wanted, made, strict=True) if not isinstance(outcome, BaseException)]
        if not found:
            raise PairingFailed(f"not one of {count} backlog queues is there or could be made: {failures[0]}")
        known = {path.lower() for path in wanted}
        self.extra_paths = [
            one.path
            for key, one in there.items()
            if key not in known and backlog_queue_index(one.path, self._primary_name) is not None
        ]
        descriptions = {key: one.description for key, one in there.items()}
        self.queues = [
            BacklogQueue(
                path,
                self._secondary.create_message_sender(path),
                descriptions.get(path.lower(), BACKLOG_QUEUE_DESCRIPTION),
            )
            for path in found
        ]

    async def _ensure_queue(self, path: str, existing_paths: Iterable[str]) -> None:
        """Make a queue that is not there; somebody else may do the same now (Q16)."""
        if path.lower() in existing_paths:
            return
        for attempt in range(1, CREATE_ATTEMPTS + 1):
            try:
                await self._manager.create_queue(path, BACKLOG_QUEUE_DESCRIPTION)
            except EntityAlreadyExists:
                return
            except Unauthorized:
                raise
            except ServiceBusError as error:
                if attempt == CREATE_ATTEMPTS:
                    raise
                log.warning("backlog queue '%s' was not made, tried again: %s", path, error)
                await asyncio.sleep(CREATE_PAUSE_S)
            else:
                return

    def choose(self, tried: Iterable[BacklogQueue] = ()) -> BacklogQueue | None:
        """One at random of those that take messages and were not `tried`; if all are out, the one out longest."""
        now_s = asyncio.get_running_loop().time()
        untried = [queue for queue in self.queues if queue not in tried]
        if not untried:
            return None
        ready = [queue for queue in untried if not self._is_cooling_down(queue, now_s)]
        return self._random.choice(ready) if ready else min(untried, key=lambda queue: queue.out_since_s)

    def out_reason(self, queue: BacklogQueue) -> ServiceBusError | None:
        """The failure for which a queue is left out now; None if it can be chosen, as after its cool-down."""
        return queue.failure if self._is_cooling_down(queue, asyncio.get_running_loop().time()) else None

    def _is_cooling_down(self, queue: BacklogQueue, now_s: float) -> bool:
        return queue.failure is not None and now_s - queue.out_since_s < self._cool_down_s

    def is_usable(self, queue: BacklogQueue) -> bool:
        """Whether a client may go on using the queue it has chosen."""
        return queue.failure is None

    def note_failure(self, queue: BacklogQueue, error: ServiceBusError) -> None:
        """A send to it failed: it is left out, by everyone."""
        was_in = queue.failure is None
        queue.failure, queue.out_since_s = error, asyncio.get_running_loop().time()
        side = lost_namespace(error)
        if isinstance(error, OperationTimeout) and not any(one.failure for one in self.queues if one is not queue):
            side = None  # only this queue is slow, as far as is known
        if side is not None:
            self._events.outages.note_lost(side, error)
        if was_in:
            is_outage = side is not None
            self._events.emit(EventKind.QUEUE_OUT, backlog_queue=queue.path, reason=str(error), is_outage=is_outage)
        if isinstance(error, EntityNotFound):  # somebody deleted it under us
            mending = asyncio.ensure_future(self._recreate(queue))
            self._recreations.add(mending)
            mending.add_done_callback(self._recreations.discard)

    def note_success(self, queue: BacklogQueue) -> None:
        """It took a message."""
        if queue.failure is not None:
            is_outage = lost_namespace(queue.failure) is not None
            queue.failure = None
            self._events.outages.note_reached(NamespaceRole.SECONDARY)
            self._events.emit(EventKind.QUEUE_BACK, backlog_queue=queue.path, is_outage=is_outage)

    async def _recreate(self, queue: BacklogQueue) -> None:
        try:
            await self._ensure_queue(queue.path, ())
        except ServiceBusError as error:
            log.warning("backlog queue '%s' was deleted and could not be made again: %s", queue.path, error)
        else:
            self.note_success(queue)

    def close(self) -> None:
        """Nothing more is mended."""
        for task in self._recreations:
            task.cancel()


class QueueChoice:
    """The backlog queue of one QueueClient or TopicClient: chosen at its first parked send, kept until it fails."""

    def __init__(self, rotation: Rotation) -> None:
        """Nothing is chosen yet."""
        self._rotation = rotation
        self._chosen: BacklogQueue | None = None

    def current(self) -> BacklogQueue | None:
        """The one it has, or now chooses."""
        if self._chosen is None or not self._rotation.is_usable(self._chosen):
            self._chosen = self._rotation.choose()
        return self._chosen

    def next(self, tried: Iterable[BacklogQueue]) -> BacklogQueue | None:
        """Another, after those tried have failed; None if there is none left."""
        self._chosen = self._rotation.choose(tried)
        return self._chosen
