"""Reports to the secondary: each client's view of the pair, so that operators can see all clients in one place.

A twinbus secondary has a node `$pairing` that keeps the last report of each client. Owns: when a report is sent (after
a change, and every `REPORT_INTERVAL_S` as a heartbeat, healthy or not) and its contents. At most one report per second
is sent, with at most `MAX_REPORT_BYTES`; a healthy pair's report has about 500 bytes. A client that closes sends a last
message, and a client that dies is forgotten after three missed heartbeats. A report concerns no entity, so it is not
metered, and a failed report neither delays nor fails a send.
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
"""The time between reports while nothing changes."""
MIN_INTERVAL_S: Final = 1.0
"""The minimum time between reports, however often the state changes."""
UNSUPPORTED_RETRY_S: Final = 3600.0
"""The time until the client tries a secondary without the node again, because the server may have been replaced. A
state change causes an earlier attempt."""
REPORT_TIMEOUT_S: Final = 5.0
"""The time limit for a report."""
LEAVE_TIMEOUT_S: Final = 1.0
"""The time limit for the last message, for which closing a pairing waits."""
COALESCE_S: Final = 0.1
"""Changes within this time are combined into one report."""
MAX_REPORT_BYTES: Final = 60_000
"""The maximum size of a report; the node accepts 64 KB."""
ITEM_LIMITS: Final = (100, 25, 5, 0)
"""The maximum numbers of entities, queues and alarms in a report, tried in this order until the report fits."""
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
"""The events that change a report."""


class Reports(ClientEntity):
    """The reports of one pairing, sent until the pairing or either factory is closed."""

    def __init__(self, pairing: Pairing) -> None:
        """Create a reporter; the first report is sent by `start`."""
        super().__init__(pairing.secondary, NODE)
        self._pairing = pairing
        self._ping_interval_s = duration_s(pairing.options.ping_primary_interval)
        self._started_ms = pairing.primary.settings.clock.wall_ms()
        self._instance = uuid.uuid4().hex
        """A unique id, because several factories in any number of processes may have the same client id."""
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._leave_task: asyncio.Task[None] | None = None
        self._links: RequestResponseLinks | None = None
        self._unsupported_by: weakref.ref[AmqpConnection] | None = None
        """The connection on which the node does not exist."""

    def start(self) -> None:
        """Send a report as soon as possible, and start the heartbeat if it is not running yet."""
        self._changed.set()
        if self._task is None and not self.is_closed:
            self._task = asyncio.ensure_future(self._run())

    async def close(self) -> None:
        """Stop reporting, and tell the secondary that this client has stopped. Idempotent."""
        self.is_closed = True
        if self._leave_task is None:
            self.factory.unregister(self)
            self._leave_task = asyncio.ensure_future(self._leave())
        await asyncio.shield(self._leave_task)  # the first caller of close may be cancelled

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
            log.debug("could not report the end of the pairing to %s: %r", self._pairing.secondary.address, error)
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
        if not queues:  # the token for a report is the token for a backlog queue, so one queue must exist
            return
        try:
            async with asyncio.timeout(REPORT_TIMEOUT_S):
                connection = await self._pairing.secondary.authorized_connection(queues[0].path)
                if self._unsupported_by is not None and self._unsupported_by() is connection:
                    return
                await self._send(connection)
        except (ServiceBusError, TimeoutError) as error:
            log.debug("could not report the pairing to %s: %r", self._pairing.secondary.address, error)

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
            log.debug("the secondary refused a report: %s", answer.error)

    def to_json(self) -> str:
        """Return the report as JSON."""
        text = ""
        for max_items in ITEM_LIMITS:
            text = json.dumps(self._body(max_items), separators=(",", ":"))
            if len(text) <= MAX_REPORT_BYTES:
                break
        return text

    def _body(self, max_items: int) -> Mapping[str, object]:
        pairing = self._pairing
        unhealthy = [entity for entity in pairing.entity_healths if not entity.is_fully_healthy]
        out_reasons = [(queue.path, pairing.rotation.out_reason(queue)) for queue in pairing.rotation.queues]
        out = [(path, _shortened(str(reason))) for path, reason in out_reasons if reason is not None]
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
            "healthy": sum(entity.state is EntityState.HEALTHY for entity in pairing.entity_healths),
            "entities": [_entity_fields(health) for health in unhealthy[:max_items]],
            "entities_not_shown": max(0, len(unhealthy) - max_items),
            "backlog": [{"path": path, "why_out": reason} for path, reason in out[:max_items]],
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
