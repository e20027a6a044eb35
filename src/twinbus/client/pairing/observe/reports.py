"""Reports to the secondary: how a pair is, from each client's point of view, so that operators see all of them.

A secondary that is a twinbus has a node `$pairing` that keeps the last report of each client. Owns: when a report is
sent (after a change, and every `REPORT_S` as a heartbeat, healthy or not) and its contents. At most one report a second
is sent, of at most `MOST_BYTES`; while all is well it is some 500 bytes. A client that ends says so, and one that dies
is forgotten after three missing heartbeats. A report concerns no entity, so it is not metered, and a report that fails
neither delays nor fails a send.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import uuid
import weakref
from typing import TYPE_CHECKING, Final

from twinbus.client.amqp.request_response import RequestResponseLinks
from twinbus.client.client_entity import ClientEntity
from twinbus.client.errors import ConnectionFailed, ConnectionLost
from twinbus.client.pairing.failover.entity_health import EntityState
from twinbus.client.pairing.observe.events import EventKind
from twinbus.model.errors import ServiceBusError
from twinbus.model.times import datetime_of, duration_s, milliseconds_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from twinbus.client.amqp.connection import AmqpConnection
    from twinbus.client.pairing.failover.entity_health import EntityHealth
    from twinbus.client.pairing.failover.fragment_outages import FragmentOutage
    from twinbus.client.pairing.observe.alarms import Alarm
    from twinbus.client.pairing.pairing import Pairing
    from twinbus.client.pairing.spool.spool import SpoolStatus

log: Final = logging.getLogger(__name__)

NODE: Final = "$pairing"
REPORT_OPERATION: Final = "twinbus:report"
LEAVE_OPERATION: Final = "twinbus:leave"
REPORT_INTERVAL_S: Final = 30.0
"""Between reports while nothing changes."""
MIN_INTERVAL_S: Final = 1.0
"""Between reports, however much changes."""
UNSUPPORTED_RETRY_S: Final = 3600.0
"""Until a secondary without the node is asked again, unless something changes: it may be another server by then."""
REPORT_TIMEOUT_S: Final = 5.0
"""How long a report may take."""
LEAVE_TIMEOUT_S: Final = 1.0
"""How long the last word may take: closing a pairing waits for it."""
COALESCE_S: Final = 0.1
"""Changes of one moment go in one report."""
MAX_REPORT_BYTES: Final = 60_000
"""The node takes 64 KB."""
ITEM_LIMITS: Final = (100, 25, 5, 0)
"""Entities, queues and alarms in a report: as many as fit."""
MAX_TEXT_LENGTH: Final = 200
EVENT_KINDS: Final = frozenset(
    {
        EventKind.SUSPECTED,
        EventKind.FAILED_OVER,
        EventKind.RESTORED,
        EventKind.UNREACHABLE,
        EventKind.FRAGMENT_DOWN,
        EventKind.FRAGMENT_BACK,
        EventKind.QUEUE_OUT,
        EventKind.QUEUE_BACK,
        EventKind.ALARM,
        EventKind.ALARM_OVER,
        EventKind.PROTECTED,
    }
)
"""What changes a report."""


class Reports(ClientEntity):
    """The reports of one pairing. They end with the pairing, or with either factory."""

    def __init__(self, pairing: Pairing) -> None:
        """Nothing is reported before `start`, or before something changes."""
        super().__init__(pairing.secondary, NODE)
        self._pairing = pairing
        self._ping_interval_s = duration_s(pairing.options.ping_primary_interval)
        self._started_ms = pairing.primary.settings.clock.wall_ms()
        self._instance = uuid.uuid4().hex
        """Several factories, in any number of processes, may have the same client id."""
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._leave_task: asyncio.Task[None] | None = None
        self._links: RequestResponseLinks | None = None
        self._unsupported_by: weakref.ref[AmqpConnection] | None = None
        """The connection on which there is no such node."""

    def start(self) -> None:
        """Report from now on: at once, also where something changed before there was anybody to report to."""
        self._changed.set()
        if self._task is None and not self.is_closed:
            self._task = asyncio.ensure_future(self._run())

    async def close(self) -> None:
        """Report no more, and tell the secondary that this client has ended. May be called again."""
        self.is_closed = True
        if self._leave_task is None:
            self.factory.unregister(self)
            self._leave_task = asyncio.ensure_future(self._leave())
        await asyncio.shield(self._leave_task)  # who closed it first may not wait for it

    async def _leave(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        links = self._links
        if links is None or links.failure is not None:
            return
        body = {"client": self._client_id, "primary": self._pairing.primary_name, "instance": self._instance}
        try:
            await links.request({"operation": LEAVE_OPERATION}, body, timeout_s=LEAVE_TIMEOUT_S)
        except ServiceBusError as error:
            log.debug("the end of the pairing was not reported to %s: %r", self._pairing.secondary.address, error)
        links.detach()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(COALESCE_S)
            self._changed.clear()
            await self._report()
            await asyncio.sleep(MIN_INTERVAL_S - COALESCE_S)
            await self._pause(REPORT_INTERVAL_S if self._unsupported_by is None else UNSUPPORTED_RETRY_S)

    async def _pause(self, limit_s: float) -> None:
        try:
            async with asyncio.timeout(limit_s - MIN_INTERVAL_S):
                await self._changed.wait()
        except TimeoutError:
            pass

    @property
    def _client_id(self) -> str:
        return self._pairing.primary.settings.client_id

    async def _report(self) -> None:
        queues = self._pairing.rotation.queues
        if not queues:  # unprotected: there is nobody to tell, and no right to
            return
        try:
            async with asyncio.timeout(REPORT_TIMEOUT_S):
                conversation = await self._pairing.secondary.authorized_connection(queues[0].path)
                if self._unsupported_by is not None and self._unsupported_by() is conversation:
                    return
                await self._send(conversation)
        except (ServiceBusError, TimeoutError) as error:
            log.debug("the pairing was not reported to %s: %r", self._pairing.secondary.address, error)

    async def _send(self, connection: AmqpConnection) -> None:
        links = self._links
        if links is None or links.failure is not None:
            links = RequestResponseLinks(connection, NODE)
            try:
                await links.open()
            except BaseException as error:
                links.detach()
                is_refused = isinstance(error, ServiceBusError) and not isinstance(
                    error, ConnectionFailed | ConnectionLost
                )
                if is_refused:
                    self._unsupported_by = weakref.ref(connection)
                raise
            self._links, self._unsupported_by = links, None
        answer = await links.request({"operation": REPORT_OPERATION}, self.to_json(), timeout_s=REPORT_TIMEOUT_S)
        if not answer.is_success:
            log.debug("a report was refused: %s", answer.error)

    def to_json(self) -> str:
        """The report, as JSON."""
        text = ""
        for most in ITEM_LIMITS:
            text = json.dumps(self._body(most), separators=(",", ":"))
            if len(text) <= MAX_REPORT_BYTES:
                break
        return text

    def _body(self, max_items: int) -> Mapping[str, object]:
        pairing = self._pairing
        unwell = [one for one in pairing.entity_healths if not one.is_fully_healthy]
        whys_out = [(queue.path, pairing.rotation.out_reason(queue)) for queue in pairing.rotation.queues]
        out = [(path, _shortened(str(why))) for path, why in whys_out if why is not None]
        alarms = pairing.observers.alarms.raised
        return {
            "client": self._client_id,
            "instance": self._instance,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "primary": pairing.primary_name,
            "secondary": pairing.secondary.address,
            "at": _iso_time(pairing.primary.settings.clock.wall_ms()),
            "since": _iso_time(self._started_ms),
            "report_interval_s": REPORT_INTERVAL_S,
            "ping_interval_s": self._ping_interval_s,
            "is_protected": pairing.is_protected,
            "runs_syphon": pairing.syphon is not None,
            "backlog_queues": len(pairing.rotation.queues),
            "healthy": sum(one.state is EntityState.HEALTHY for one in pairing.entity_healths),
            "entities": [_entity_fields(health) for health in unwell[:max_items]],
            "entities_not_shown": max(0, len(unwell) - max_items),
            "backlog": [{"path": path, "why_out": why} for path, why in out[:max_items]],
            "alarms": [_alarm_fields(alarm) for alarm in alarms[:max_items]],
        } | ({} if pairing.spool_status is None else {"spool": _spool_fields(pairing.spool_status)})


def _entity_fields(health: EntityHealth) -> dict[str, object]:
    fragments = [_fragment_fields(outage) for outage in health.fragment_outages.down.values()]
    return {
        "path": health.path,
        "state": health.state.value,
        "why": None if health.failure is None else _shortened(str(health.failure)),
        "since": _iso_time(health.since_ms),
        "next_ping": None if health.next_ping_ms is None else _iso_time(health.next_ping_ms),
    } | ({"fragments_down": fragments} if fragments else {})


def _fragment_fields(outage: FragmentOutage) -> dict[str, object]:
    return {
        "fragment": outage.number,
        "why": _shortened(str(outage.failure)),
        "since": _iso_time(outage.since_ms),
        "next_ping": None if outage.next_ping_ms is None else _iso_time(outage.next_ping_ms),
    }


def _alarm_fields(alarm: Alarm) -> dict[str, object]:
    since = _iso_time(milliseconds_of(alarm.since))
    return {"kind": alarm.kind.value, "path": alarm.backlog_queue, "reason": _shortened(alarm.reason), "since": since}


def _spool_fields(status: SpoolStatus) -> dict[str, object]:
    return {
        "count": status.count,
        "bytes": status.bytes,
        "oldest": None if status.oldest_ms is None else _iso_time(status.oldest_ms),
        "refused": status.refused,
        "refused_bytes": status.refused_bytes,
    }


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_TEXT_LENGTH else f"{text[: MAX_TEXT_LENGTH - 1]}…"


def _iso_time(milliseconds: int) -> str:
    return datetime_of(milliseconds).isoformat(timespec="milliseconds")
