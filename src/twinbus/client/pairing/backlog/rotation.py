"""The backlog queues of a pair: their names, their creation, and which of them accept messages now.

Owns: the rotation. A queue that failed leaves the rotation for the cool-down, for all senders of the factory. If all
queues are out, the queue that has been out longest is tried again. Each client chooses its own queue (`QueueChoice`).
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
"""The settings of a new backlog queue."""
CREATE_ATTEMPTS: Final = 3
CREATE_PAUSE_S: Final = 0.5
_PATH_INFIX: Final = f"/{BACKLOG_QUEUE_INFIX}/"


def backlog_queue_prefix(primary: str) -> str:
    """Return the path prefix of a primary's backlog queues."""
    return f"{primary}{_PATH_INFIX}"


def backlog_queue_path(primary: str, index: int) -> str:
    """Return the path of the backlog queue with this index."""
    return f"{backlog_queue_prefix(primary)}{index}"


def backlog_queue_index(path: str, primary: str) -> int | None:
    """Return the index of the backlog queue with this path; None if it is not a backlog queue."""
    prefix = backlog_queue_prefix(primary).lower()
    number = path[len(prefix) :]
    return int(number) if path.lower().startswith(prefix) and number.isascii() and number.isdigit() else None


class BacklogQueue:
    """A backlog queue, as paired senders see it."""

    def __init__(
        self, path: str, sender: MessageSender, description: QueueDescription = BACKLOG_QUEUE_DESCRIPTION
    ) -> None:
        """Create a backlog queue with a sender to the secondary.

        If the queue existed before the pairing, `description` is the queue's own, not the default one.
        """
        self.path = path
        self.sender = sender
        self.max_size_mb = description.max_size_mb
        """The maximum size of the queue."""
        self.lock_ms = description.lock_duration_ms
        """The lock duration of the queue, which is needed to compute how long a message was parked."""
        self.failure: ServiceBusError | None = None
        """The last failure; None after a success. The queue is out of the rotation for the cool-down only."""
        self.out_since_s = 0.0


class Rotation:
    """All backlog queues of a pair, and which of them accept messages now."""

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
        """Create a rotation without queues; `prepare` finds or creates them."""
        self.queues: list[BacklogQueue] = []
        self.extra_paths: list[str] = []
        """Paths of backlog queues beyond the configured number, which are kept but not used for parking."""
        self._secondary = secondary
        self._manager = manager
        self._primary_name = primary_name
        self._cool_down_s = cool_down_s
        self._events = events
        self._random = random
        self._recreations: set[asyncio.Task[None]] = set()

    @property
    def path_pattern(self) -> str:
        """A pattern that matches the paths of all backlog queues."""
        return f"{backlog_queue_prefix(self._primary_name)}*"

    async def prepare(self, count: int) -> None:
        """Find or create `count` queues; existing queues are not changed.

        Raise PairingFailed if no queue exists or can be created.
        """
        try:
            prefix = backlog_queue_prefix(self._primary_name)
            existing = {found.path.lower(): found async for found in self._manager.get_queues(prefix)}
        except ServiceBusError as error:
            if isinstance(error, Unauthorized):
                raise
            raise PairingFailed(f"the backlog queues of the secondary cannot be listed: {error}") from error
        wanted = [backlog_queue_path(self._primary_name, index) for index in range(count)]
        outcomes = await asyncio.gather(
            *[self._ensure_queue(path, existing) for path in wanted], return_exceptions=True
        )
        failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        for failure in failures:
            if not isinstance(failure, ServiceBusError) or isinstance(failure, Unauthorized):
                raise failure
            log.warning("a backlog queue could not be created: %s", failure)
        found = [path for path, outcome in zip(wanted, outcomes, strict=True) if not isinstance(outcome, BaseException)]
        if not found:
            raise PairingFailed(f"none of {count} backlog queues exists or could be created: {failures[0]}")
        wanted_keys = {path.lower() for path in wanted}
        self.extra_paths = [
            queue.path
            for key, queue in existing.items()
            if key not in wanted_keys and backlog_queue_index(queue.path, self._primary_name) is not None
        ]
        descriptions = {key: queue.description for key, queue in existing.items()}
        self.queues = [
            BacklogQueue(
                path,
                self._secondary.create_message_sender(path),
                descriptions.get(path.lower(), BACKLOG_QUEUE_DESCRIPTION),
            )
            for path in found
        ]

    async def _ensure_queue(self, path: str, existing_paths: Iterable[str]) -> None:
        """Create a queue unless it exists; another client may create it at the same time."""
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
                log.warning("backlog queue '%s' could not be created, retrying: %s", path, error)
                await asyncio.sleep(CREATE_PAUSE_S)
            else:
                return

    def choose(self, tried: Iterable[BacklogQueue] = ()) -> BacklogQueue | None:
        """Return a random queue that is in the rotation and not in `tried`.

        If all of the untried queues are out of the rotation, return the queue that has been out longest.
        """
        now_s = asyncio.get_running_loop().time()
        untried = [queue for queue in self.queues if queue not in tried]
        if not untried:
            return None
        ready = [queue for queue in untried if not self._is_cooling_down(queue, now_s)]
        return self._random.choice(ready) if ready else min(untried, key=lambda queue: queue.out_since_s)

    def out_reason(self, queue: BacklogQueue) -> ServiceBusError | None:
        """Return the failure that keeps a queue out of the rotation now; None if the queue can be chosen."""
        return queue.failure if self._is_cooling_down(queue, asyncio.get_running_loop().time()) else None

    def _is_cooling_down(self, queue: BacklogQueue, now_s: float) -> bool:
        return queue.failure is not None and now_s - queue.out_since_s < self._cool_down_s

    def is_usable(self, queue: BacklogQueue) -> bool:
        """Return whether a client may continue to use the queue that it chose."""
        return queue.failure is None

    def note_failure(self, queue: BacklogQueue, error: ServiceBusError) -> None:
        """Take a queue out of the rotation after a failed send. Recreate the queue if it was deleted."""
        was_in = queue.failure is None
        queue.failure, queue.out_since_s = error, asyncio.get_running_loop().time()
        role = lost_namespace(error)
        if isinstance(error, OperationTimeout) and not any(
            other.failure for other in self.queues if other is not queue
        ):
            role = None  # a timeout of a single queue is not an outage of the secondary
        if role is not None:
            self._events.outages.note_lost(role, error)
        if was_in:
            is_outage = role is not None
            self._events.emit(EventKind.QUEUE_OUT, backlog_queue=queue.path, reason=str(error), is_outage=is_outage)
        if isinstance(error, EntityNotFound):  # the queue was deleted after it was prepared
            recreation = asyncio.ensure_future(self._recreate(queue))
            self._recreations.add(recreation)
            recreation.add_done_callback(self._recreations.discard)

    def note_success(self, queue: BacklogQueue) -> None:
        """Note that a queue accepted a message."""
        if queue.failure is not None:
            is_outage = lost_namespace(queue.failure) is not None
            queue.failure = None
            self._events.outages.note_reached(NamespaceRole.SECONDARY)
            self._events.emit(EventKind.QUEUE_BACK, backlog_queue=queue.path, is_outage=is_outage)

    async def _recreate(self, queue: BacklogQueue) -> None:
        try:
            await self._ensure_queue(queue.path, ())
        except ServiceBusError as error:
            log.warning("backlog queue '%s' was deleted and could not be created again: %s", queue.path, error)
        else:
            self.note_success(queue)

    def close(self) -> None:
        """Cancel the recreation of queues."""
        for task in self._recreations:
            task.cancel()


class QueueChoice:
    """The backlog queue of one QueueClient or TopicClient, chosen at the first parked send and kept until it fails."""

    def __init__(self, rotation: Rotation) -> None:
        """Create a choice without a queue; the first parked send chooses one."""
        self._rotation = rotation
        self._chosen: BacklogQueue | None = None

    def current(self) -> BacklogQueue | None:
        """Return the chosen queue; choose one if there is none or if it failed."""
        if self._chosen is None or not self._rotation.is_usable(self._chosen):
            self._chosen = self._rotation.choose()
        return self._chosen

    def next(self, tried: Iterable[BacklogQueue]) -> BacklogQueue | None:
        """Choose another queue after the queues in `tried` failed; None if no queue is left."""
        self._chosen = self._rotation.choose(tried)
        return self._chosen
