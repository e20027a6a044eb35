"""How a pair is now, to be looked at: `await pairing.status()`.

Owns: what there is to see, and putting it together within a few seconds. Looking changes nothing; what the secondary
does not tell now is unknown (None). What lies in the backlog queues is found by `inspection`.
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
"""How long looking may take."""


class PumpState(Enum):
    """What a pump of the syphon does."""

    STARTING = "starting"
    ACTIVE = "active"
    STANDING_BY = "standing by"
    """Another host drains the queue."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentStatus:
    """A fragment of an entity that is held to be down."""

    number: int
    why: str
    since: dt.datetime
    next_ping: dt.datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityStatus:
    """One entity of the primary, to this client."""

    path: str
    state: EntityState
    why: str | None
    """The failure that made it so; None while it is healthy."""
    since: dt.datetime
    next_ping: dt.datetime | None
    fragments_down: tuple[FragmentStatus, ...]
    """Those of it for which messages are parked, whatever its state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BacklogQueueStatus:
    """One backlog queue."""

    path: str
    is_in_rotation: bool
    why_out: str | None
    out_since: dt.datetime | None
    contents: BacklogQueueContents


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtraQueueStatus:
    """A backlog queue beyond those that this client uses, with messages in it."""

    path: str
    contents: BacklogQueueContents


@dataclass(frozen=True, slots=True, kw_only=True)
class PumpStatus:
    """One pump of this client's syphon."""

    backlog_queue: str
    state: PumpState
    why: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PairingStatus:
    """All that can be seen of a pair from this client."""

    at: dt.datetime
    primary: str
    secondary: str
    is_protected: bool
    entities: tuple[EntityStatus, ...]
    backlog_queues: tuple[BacklogQueueStatus, ...]
    extra_backlog_queues: tuple[ExtraQueueStatus, ...]
    """Those in which messages are, or may be: R022, Q20."""
    pumps: tuple[PumpStatus, ...]
    """None where this client runs no syphon."""
    spool: SpoolStatus | None
    """What waits on the local disk, and what was refused from there; None without a `spool_dir`."""
    alarms: tuple[Alarm, ...]

    @property
    def parked(self) -> int | None:
        """Messages in all backlog queues; None if one did not tell."""
        return self._sum([queue.contents.parked for queue in self._queues])

    @property
    def dead_lettered(self) -> int | None:
        """Messages in the dead-letter queues of all backlog queues; None if one did not tell.

        They were not delivered. `twinbus pair drain --dead-letters` sends them again when the cause is removed.
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
    """Look at everything at once. A pair whose secondary is just being prepared is looked at when that is over."""
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
            _queue_status(queue, pairing.rotation.out_reason(queue), found, now_ms, now_s)
            for queue, found in zip(queues, contents[: len(queues)], strict=True)
        ),
        extra_backlog_queues=tuple(
            ExtraQueueStatus(path=path, contents=found)
            for path, found in zip(extra, contents[len(queues) :], strict=True)
            if found.parked != 0 or found.oldest is not None or found.dead_lettered
        ),
        pumps=tuple(_pump_status(pump) for pump in (() if pairing.syphon is None else pairing.syphon.pumps)),
        spool=pairing.spool_status,
        alarms=pairing.observers.alarms.raised,
    )


def entity_status(health: EntityHealth) -> EntityStatus:
    """What is held of an entity."""
    return EntityStatus(
        path=health.path,
        state=health.state,
        why=None if health.failure is None else str(health.failure),
        since=datetime_of(health.since_ms),
        next_ping=None if health.next_ping_ms is None else datetime_of(health.next_ping_ms),
        fragments_down=tuple(_fragment_status(outage) for outage in health.fragment_outages.down.values()),
    )


def healthy_entity_status(path: str, since_ms: int) -> EntityStatus:
    """Return the state of an entity that nothing is held against."""
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
