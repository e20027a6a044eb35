"""The current status of a pair: `await pairing.status()`.

Owns: the contents of the status, and collecting them within a few seconds. Reading the status changes nothing; a value
that the secondary does not return in time is unknown (None). The contents of backlog queues are read by `inspection`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from twinbus.client.pairing.backlog.inspection import SAMPLE_SIZE, BacklogQueueContents, inspect
from twinbus.client.pairing.failover.entity_health import EntityState
from twinbus.model.errors import EntityClaimed, LinkStolen
from twinbus.model.times import datetime_of

if TYPE_CHECKING:
    import datetime as dt

    from twinbus.client.pairing.backlog.rotation import BacklogQueue
    from twinbus.client.pairing.failover.entity_health import EntityHealth
    from twinbus.client.pairing.failover.fragment_outages import FragmentOutage
    from twinbus.client.pairing.observe.alarms import Alarm
    from twinbus.client.pairing.pairing import Pairing
    from twinbus.client.pairing.spool.spool import SpoolStatus
    from twinbus.client.pairing.syphon.pump import Pump
    from twinbus.model.errors import ServiceBusError

STATUS_TIMEOUT_S: Final = 5.0
"""The time limit for collecting the status."""


class PumpState(Enum):
    """The state of one of the syphon's pumps."""

    STARTING = "starting"
    ACTIVE = "active"
    STANDING_BY = "standing by"
    """Another host drains the queue."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentStatus:
    """The status of a fragment that is marked down."""

    number: int
    why: str
    since: dt.datetime
    next_ping: dt.datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityStatus:
    """The status of one entity of the primary, as this client sees it."""

    path: str
    state: EntityState
    why: str | None
    """The error that caused the current state; None while the entity is healthy."""
    since: dt.datetime
    next_ping: dt.datetime | None
    fragments_down: tuple[FragmentStatus, ...]
    """The fragments of the entity whose messages are parked, whatever the state of the entity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BacklogQueueStatus:
    """The status of one backlog queue."""

    path: str
    is_in_rotation: bool
    why_out: str | None
    out_since: dt.datetime | None
    contents: BacklogQueueContents


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtraQueueStatus:
    """A backlog queue that this client does not use, but that has messages."""

    path: str
    contents: BacklogQueueContents


@dataclass(frozen=True, slots=True, kw_only=True)
class PumpStatus:
    """The status of one pump of this client's syphon."""

    backlog_queue: str
    state: PumpState
    why: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PairingStatus:
    """The status of a pair, as this client sees it."""

    at: dt.datetime
    primary: str
    secondary: str
    is_protected: bool
    entities: tuple[EntityStatus, ...]
    backlog_queues: tuple[BacklogQueueStatus, ...]
    extra_backlog_queues: tuple[ExtraQueueStatus, ...]
    """The unused backlog queues that have messages, or may have messages."""
    pumps: tuple[PumpStatus, ...]
    """The pumps of the syphon; empty if this client runs no syphon."""
    spool: SpoolStatus | None
    """The messages on the local disk, pending and refused; None without a `spool_dir`."""
    alarms: tuple[Alarm, ...]

    @property
    def parked(self) -> int | None:
        """The number of messages in all backlog queues; None if a count is unknown."""
        return self._sum([queue.contents.parked for queue in self._queues])

    @property
    def dead_lettered(self) -> int | None:
        """The number of messages in the dead-letter queues of all backlog queues; None if a count is unknown.

        These messages were not delivered. After the cause is fixed, `twinbus pair drain --dead-letters` sends them
        again.
        """
        return self._sum([queue.contents.dead_lettered for queue in self._queues])

    @property
    def _queues(self) -> list[BacklogQueueStatus | ExtraQueueStatus]:
        return [*self.backlog_queues, *self.extra_backlog_queues]

    @staticmethod
    def _sum(counts: list[int | None]) -> int | None:
        known = [count for count in counts if count is not None]
        return sum(known) if len(known) == len(counts) else None


async def pairing_status(pairing: Pairing, *, limit_s: float = STATUS_TIMEOUT_S) -> PairingStatus:
    """Collect the status, with all requests in parallel.

    If the secondary is still being prepared, wait until the preparation succeeds or the pair is reported as
    unprotected.
    """
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + limit_s
    await pairing.preparation.wait_until_protection_known(limit_s)
    queues, extra = list(pairing.rotation.queues), list(pairing.rotation.extra_paths)
    manager = pairing.options.secondary_namespace_manager
    contents = await asyncio.gather(
        *[
            inspect(pairing.secondary, manager, path, sample=SAMPLE_SIZE, limit_s=deadline_s - loop.time())
            for path in [*(queue.path for queue in queues), *extra]
        ]
    )
    now_ms, now_s = pairing.primary.settings.clock.wall_ms(), loop.time()
    return PairingStatus(
        at=datetime_of(now_ms),
        primary=pairing.primary.address,
        secondary=pairing.secondary.address,
        is_protected=pairing.is_protected,
        entities=tuple(entity_status(health) for health in pairing.entity_healths),
        backlog_queues=tuple(
            _queue_status(queue, pairing.rotation.out_reason(queue), queue_contents, now_ms, now_s)
            for queue, queue_contents in zip(queues, contents[: len(queues)], strict=True)
        ),
        extra_backlog_queues=tuple(
            ExtraQueueStatus(path=path, contents=queue_contents)
            for path, queue_contents in zip(extra, contents[len(queues) :], strict=True)
            if queue_contents.parked != 0 or queue_contents.oldest is not None or queue_contents.dead_lettered
        ),
        pumps=tuple(_pump_status(pump) for pump in (() if pairing.syphon is None else pairing.syphon.pumps)),
        spool=pairing.spool_status,
        alarms=pairing.observers.alarms.raised,
    )


def entity_status(health: EntityHealth) -> EntityStatus:
    """Return the status of an entity."""
    return EntityStatus(
        path=health.path,
        state=health.state,
        why=None if health.failure is None else str(health.failure),
        since=datetime_of(health.since_ms),
        next_ping=None if health.next_ping_ms is None else datetime_of(health.next_ping_ms),
        fragments_down=tuple(_fragment_status(outage) for outage in health.fragment_outages.down.values()),
    )


def healthy_entity_status(path: str, since_ms: int) -> EntityStatus:
    """Return the status of an entity without any known failure."""
    return EntityStatus(
        path=path,
        state=EntityState.HEALTHY,
        why=None,
        since=datetime_of(since_ms),
        next_ping=None,
        fragments_down=(),
    )


def _fragment_status(outage: FragmentOutage) -> FragmentStatus:
    return FragmentStatus(
        number=outage.number,
        why=str(outage.failure),
        since=datetime_of(outage.since_ms),
        next_ping=None if outage.next_ping_ms is None else datetime_of(outage.next_ping_ms),
    )


def _queue_status(
    queue: BacklogQueue, why_out: ServiceBusError | None, contents: BacklogQueueContents, now_ms: int, now_s: float
) -> BacklogQueueStatus:
    is_in = why_out is None
    return BacklogQueueStatus(
        path=queue.path,
        is_in_rotation=is_in,
        why_out=None if is_in else str(why_out),
        out_since=None if is_in else datetime_of(now_ms - round((now_s - queue.out_since_s) * 1000)),
        contents=contents,
    )


def _pump_status(pump: Pump) -> PumpStatus:
    if pump.is_active:
        return PumpStatus(backlog_queue=pump.path, state=PumpState.ACTIVE, why=None)
    if pump.inactive_reason is None:
        return PumpStatus(backlog_queue=pump.path, state=PumpState.STARTING, why=None)
    is_standing_by = isinstance(pump.inactive_reason, LinkStolen | EntityClaimed)
    state = PumpState.STANDING_BY if is_standing_by else PumpState.FAILED
    return PumpStatus(backlog_queue=pump.path, state=state, why=str(pump.inactive_reason))
