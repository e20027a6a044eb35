"""The status of this process: its connections, its fragments with their locks and sessions, and its resources.

Owns the answers to the calls in `process_calls`. Answers describe this process only; `collector` puts the answers of
all processes together. Knows nothing of HTTP, and of who may read what.
"""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from twinbus.amqp.codec.performatives import Error
from twinbus.amqp.errors import CONNECTION_FORCED
from twinbus.broker.namespace import Queue, Subscription
from twinbus.broker.ports.peer_protocol import SUB_QUEUES
from twinbus.model.status import DiskStatus, FailedLogin, WorkerStatus
from twinbus.model.times import datetime_of
from twinbus.server.amqp.session_link import SessionLink
from twinbus.server.api import process_calls as calls
from twinbus.server.api.connection_status import make_connection_details, make_connection_status, make_holder
from twinbus.server.api.entity_watch import EntityWatches, own_receivers
from twinbus.server.api.oldest_messages import OldestMessages
from twinbus.server.api.time_slices import in_slices

if TYPE_CHECKING:
    import logging
    from collections.abc import Mapping, Sequence

    from twinbus.broker.namespace import Topic
    from twinbus.broker.ports.inspection import PartInspection
    from twinbus.model.status import ConnectionDetails, ConnectionStatus, Holder
    from twinbus.server.amqp.gateway import Gateway
    from twinbus.server.amqp.open_connections import OpenConnection
    from twinbus.server.amqp.outgoing_link import OutgoingLink
    from twinbus.server.api.entity_index import EntityIndex
    from twinbus.server.api.entity_watch import EntityWatch
    from twinbus.server.api.process_calls import ProcessCall
    from twinbus.server.api.usage_rates import UsageRates

RECENT_S: Final = 300.0
"""Failed logins in this time count as recent."""
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


class ProcessStatus:
    """The status of this process."""

    def __init__(self, gateway: Gateway, rates: UsageRates, index: EntityIndex, log: logging.Logger) -> None:
        """Create the status of a process without stores."""
        self.number = 0
        self.directories: Mapping[int, Path] = {}
        """The directories of this process's stores, by store number."""
        self.min_free_bytes = 0
        self._gateway = gateway
        self._namespace = gateway.namespace
        self._rates = rates
        self._index = index
        self._log = log
        self._started_ms = gateway.namespace.clock.wall_ms()
        self._oldest = OldestMessages()
        self._watches = EntityWatches()
        self._handlers: dict[type, Any] = {
            calls.GetFigures: self._get_figures,
            calls.GetFragments: self._get_fragments,
            calls.GetLocks: self._get_locks,
            calls.GetSessions: self._get_sessions,
            calls.FindHolders: self._find_holders,
            calls.ListConnections: self._list_connections,
            calls.GetConnection: self._get_connection,
            calls.CloseConnection: self._close_connection,
            calls.GetProcess: self._get_process,
            calls.ListFailedLogins: self._list_failed_logins,
        }

    async def handle(self, call: ProcessCall) -> Any:  # noqa: ANN401  # RESULT_TYPES has the type for each call
        """Answer a call of this or another process."""
        return await self._handlers[type(call)](call)

    async def handle_encoded(self, request: bytes) -> bytes:
        """Answer a call of another process."""
        return msgspec.msgpack.encode(await self.handle(calls.CALL_DECODER.decode(request)))

    # --- figures ------------------------------------------------------------------------------------------------------

    async def figures(
        self, entities: Sequence[Queue | Topic | Subscription], max_reads: int
    ) -> list[calls.EntityFigures]:
        """Return the figures of entities, in the same order; `max_reads` as in `GetFigures`."""
        self._watches.forget_deleted(len(self._namespace.entities))
        self._oldest.forget_deleted(len(self._namespace.entities))
        found: list[calls.EntityFigures] = []
        active: list[tuple[int, EntityWatch]] = []
        async for chunk in in_slices(entities):
            rates = self._rates.by_entity()
            for entity in chunk:
                watch = self._watches.of(entity)
                figures = watch.read(rates)
                if watch.is_active:
                    active.append((len(found), watch))
                found.append(figures)
        if active:
            await self._oldest.read([part for _, watch in active for part in watch.parts], max_reads)
            async for positions in in_slices(active):
                rates = self._rates.by_entity()
                for position, watch in positions:
                    found[position] = watch.read(rates, self._oldest)
        return found

    async def _get_figures(self, call: calls.GetFigures) -> list[calls.EntityFigures]:
        return await self.figures(self._index.find_ids(call.entity_ids), call.max_reads)

    async def _get_fragments(self, call: calls.GetFragments) -> list[calls.FragmentFigures]:
        entities = self._index.find_ids([call.entity_id])
        return [
            calls.FragmentFigures(part.number, part.figures())
            for entity in entities
            for part in self._watches.of(entity).parts
        ]

    # --- locks and sessions -------------------------------------------------------------------------------------------

    async def _get_locks(self, call: calls.GetLocks) -> list[calls.FragmentLock]:
        locks: list[calls.FragmentLock] = []
        async for chunk in in_slices(self._own_parts(call.entity_id), 1):
            for part in chunk:
                found = part.locks(SUB_QUEUES[call.sub_queue], call.after, call.limit)
                locks += [calls.FragmentLock(part.number, lock) for lock in found]
        return sorted(locks, key=lambda one: one.lock.sequence_number)[: call.limit]

    async def _get_sessions(self, call: calls.GetSessions) -> list[calls.FragmentSession]:
        sessions: list[calls.FragmentSession] = []
        async for chunk in in_slices(self._own_parts(call.entity_id), 1):
            for part in chunk:
                found = part.sessions(call.after, call.limit)
                sessions += [calls.FragmentSession(part.number, session) for session in found]
        return sorted(sessions, key=lambda one: one.session.session_id)[: call.limit]

    async def _find_holders(self, call: calls.FindHolders) -> calls.Holders:
        by_lock: dict[int, Holder] = {}
        by_session: dict[bytes, Holder] = {}
        wanted_locks, wanted_sessions = set(call.lock_numbers), set(call.session_ids)
        for entity in self._index.find_ids([call.entity_id]):
            if not isinstance(entity, Queue | Subscription):
                continue
            async for links in in_slices(own_receivers(entity, SUB_QUEUES[call.sub_queue]), 1):
                for receiver in links:
                    holder = self._holder_of(receiver)
                    if holder is None:
                        continue
                    held = {int.from_bytes(delivery.tag[8:]) for delivery in receiver.link.unsettled()}
                    by_lock.update(dict.fromkeys(held & wanted_locks, holder))
                    if isinstance(receiver, SessionLink) and receiver.session_lock is not None:
                        session_id = receiver.session_lock.session_id
                        if session_id in wanted_sessions:
                            by_session[session_id] = holder
        return calls.Holders(by_lock, by_session)

    def _holder_of(self, receiver: OutgoingLink) -> Holder | None:
        connection = self._gateway.open_connections.by_number.get(receiver.receiver_identity.client_id)
        return make_holder(connection, self.number, receiver.link) if connection is not None else None

    def _own_parts(self, entity_id: int) -> list[PartInspection]:
        return [part for entity in self._index.find_ids([entity_id]) for part in self._watches.of(entity).parts]

    # --- connections --------------------------------------------------------------------------------------------------

    async def _list_connections(self, call: calls.ListConnections) -> list[ConnectionStatus]:
        found: list[ConnectionStatus] = []
        async for chunk in in_slices(self._gateway.open_connections.page(call.after, call.limit), 1):
            found += [make_connection_status(connection, self.number) for connection in chunk]
        return found

    async def _get_connection(self, call: calls.GetConnection) -> ConnectionDetails | None:
        connection = self._find_connection(call.number)
        return make_connection_details(connection, self.number) if connection is not None else None

    async def _close_connection(self, call: calls.CloseConnection) -> bool:
        connection = self._find_connection(call.number)
        if connection is None:
            return False
        status = make_connection_status(connection, self.number)
        self._log.warning(
            "closing a connection on request",
            extra={"connection": status.id, "client": status.client, "key": call.by_key},
        )
        text = "the connection was closed by an administrator of the namespace: connect again"
        connection.peer.close(Error(condition=CONNECTION_FORCED, description=text))
        return True

    def _find_connection(self, number: int) -> OpenConnection | None:
        return self._gateway.open_connections.by_number.get(number)

    # --- the process --------------------------------------------------------------------------------------------------

    async def _get_process(self, _: calls.GetProcess) -> calls.ProcessFigures:
        await self._rates.refresh_totals()
        login_log, now_ms = self._gateway.login_log, self._namespace.clock.wall_ms()
        recent = [record for record in login_log.last if now_ms - record.time_ms <= RECENT_S * 1000]
        return calls.ProcessFigures(
            self._worker_status(),
            [self._disk_status(store, directory) for store, directory in self.directories.items()],
            self._gateway.open_connections.opened_count,
            login_log.total,
            len(recent),
            self._rates.totals,
        )

    def _worker_status(self) -> WorkerStatus:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return WorkerStatus(
            number=self.number,
            is_up=True,
            started=datetime_of(self._started_ms),
            connections=len(self._gateway.open_connections.by_number),
            cpu_s=round(usage.ru_utime + usage.ru_stime, 3),
            memory_bytes=_resident_bytes(usage.ru_maxrss),
            open_files=_count_open_files(),
        )

    def _disk_status(self, store: int, directory: Path) -> DiskStatus:
        free: int | None = None
        total: int | None = None
        try:
            status = os.statvfs(directory)
        except OSError:
            pass
        else:
            free, total = status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize
        return DiskStatus(
            store=store, worker=self.number, free_bytes=free, total_bytes=total, min_free_bytes=self.min_free_bytes
        )

    async def _list_failed_logins(self, call: calls.ListFailedLogins) -> list[FailedLogin]:
        return [
            FailedLogin(
                time=datetime_of(record.time_ms),
                worker=self.number,
                mechanism=record.mechanism,
                client=record.client,
                key=record.key_name,
                reason=record.reason,
            )
            for record in list(self._gateway.login_log.last)[: -call.limit - 1 : -1]
        ]


def _resident_bytes(peak_kilobytes: int) -> int:
    """Return the resident memory; the peak where Linux does not say."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * _PAGE_BYTES
    except OSError:
        return peak_kilobytes * 1024


def _count_open_files() -> int:
    try:
        return len(list(Path("/proc/self/fd").iterdir()))
    except OSError:
        return 0
