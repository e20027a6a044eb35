"""A worker: one of the processes that serve a namespace.

    python -m twinbus.server.cluster.worker NUMBER DESCRIPTOR

Owns: the worker process, from its launch by the supervisor to its exit. A worker opens its own stores, loads all
entities of the namespace from the supervisor's catalogue, connects to the other workers, and serves clients on
inherited sockets. If the supervisor exits, the worker keeps serving until SIGTERM. A worker ignores SIGINT and SIGHUP:
the supervisor handles both and notifies its workers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import uvloop

from twinbus.broker.namespace import Namespace
from twinbus.model.errors import EntityNotFound, InvalidArgument, ServiceBusError
from twinbus.model.outage import OutageKind
from twinbus.model.path import canonical_key
from twinbus.server.amqp.outage_node import OutageSwitch
from twinbus.server.auth.keys import KeyRing
from twinbus.server.catalogue.auto_delete import idle_seconds
from twinbus.server.cluster.connection_counts import ConnectionCounts
from twinbus.server.cluster.control_connection import ControlConnection
from twinbus.server.cluster.control_protocol import (
    SUPERVISOR_DECODER,
    Apply,
    BeginOutage,
    CatalogueSnapshot,
    EndOutage,
    EntityUpdatedMessage,
    Failed,
    GetIdleSeconds,
    Heartbeat,
    Hello,
    IdentityReloaded,
    ListPrimaries,
    Loaded,
    OutageBegun,
    OutageEnded,
    PutReport,
    ReadReports,
    RemoveReport,
    Serve,
    Serving,
    Start,
    decode_change,
)
from twinbus.server.cluster.peer_network import PeerNetwork
from twinbus.server.cluster.transport import UnixTransport, connect_over
from twinbus.server.cluster.worker_catalogue import REQUEST_TIMEOUT_S, WorkerCatalogue
from twinbus.server.config.settings import ServeSettings, StartError
from twinbus.server.paired_clients.report_store import PairingReports, ReportPage
from twinbus.server.runtime import interpreter, logs
from twinbus.server.runtime.acceptor import Acceptor
from twinbus.server.runtime.admission import Admission
from twinbus.server.runtime.listeners import Listeners
from twinbus.server.runtime.open_file_limit import plan_open_files
from twinbus.server.runtime.rocksdb_backend import RocksStoreBackend
from twinbus.server.runtime.stores import StoreManager
from twinbus.server.runtime.system_clock import SystemClock, TimerDriver
from twinbus.server.tls import certificates
from twinbus.server.tls.certificates import Certificate, ServerTls
from twinbus.server.usage.meter import UsageMeter
from twinbus.server.usage.writer import UsageWriter, UsageWriterConfig

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.broker.commit_log import CommitLog
    from twinbus.broker.ports.outage import Outages
    from twinbus.server.cluster.control_protocol import FromSupervisor
    from twinbus.server.paired_clients.report_format import ClientDeparture, Report
    from twinbus.server.port.client_port import Accept


class ClusterOutageSwitch(OutageSwitch):
    """Rehearsed outages in all workers, begun and ended through the supervisor."""

    def __init__(self, outages: Outages, connection: ControlConnection) -> None:
        """Create a switch; `outages` are the outages in this worker."""
        super().__init__(outages)
        self._connection = connection

    async def begin(self, path: str, kind: str, seconds: float) -> dict[str, object]:
        """Begin an outage in all workers, and return its description."""
        if kind not in [member.value for member in OutageKind]:
            raise InvalidArgument(f"kind is {kind!r:.40}: use {', '.join(member.value for member in OutageKind)}")
        return await self._connection.request(
            BeginOutage(path, OutageKind(kind), seconds), dict[str, Any], REQUEST_TIMEOUT_S
        )

    async def end(self, path: str | None) -> list[dict[str, object]]:
        """End the outage of `path`, or all outages if None, in all workers; return descriptions of these outages."""
        return await self._connection.request(EndOutage(path), list[dict[str, Any]], REQUEST_TIMEOUT_S)

    def apply(self, change: OutageBegun | OutageEnded) -> None:
        """Begin or end an outage in this worker, because the supervisor has published this change."""
        if isinstance(change, OutageBegun):
            self.begin_local(change.path, change.kind, change.seconds, (change.since_ms, change.until_ms))
        else:
            self.end_local(change.path)


class ClusterReportService(PairingReports):
    """Reports from paired clients to all workers, stored in the supervisor."""

    def __init__(self, connection: ControlConnection) -> None:
        """Create a service that passes reports to the supervisor, which stores them."""
        self._connection = connection

    async def put(self, report: Report) -> None:
        """Store a report."""
        await self._connection.request(PutReport(report), type(None), REQUEST_TIMEOUT_S)

    async def remove(self, departure: ClientDeparture) -> None:
        """Remove the report of a client that has stopped."""
        await self._connection.request(RemoveReport(departure), type(None), REQUEST_TIMEOUT_S)

    async def read(
        self, may_read: Callable[[str], bool], *, primary: str | None = None, skip: int = 0, top: int
    ) -> ReportPage:
        """Return one page of the reports on `primary`, or on all primaries, that `may_read` allows."""
        primaries = (
            [canonical_key(primary)]
            if primary is not None
            else await self._connection.request(ListPrimaries(), list[str], REQUEST_TIMEOUT_S)
        )
        readable = [name for name in primaries if may_read(name)]
        return await self._connection.request(ReadReports(readable, skip, top), ReportPage, REQUEST_TIMEOUT_S)


log: Final = logging.getLogger(__name__)

HEARTBEAT_S: Final = 1.0
CONNECT_PEERS_S: Final = 2.0
"""How long a worker waits for connections to the other workers before it accepts clients."""


class SupervisorLost(StartError):
    """The supervisor exited before this worker was serving."""

    def __init__(self) -> None:
        """Create the error. The worker exits with this error, so that the next server finds the stores free."""
        super().__init__("the supervisor exited")


class Worker:
    """A worker process: its namespace, catalogue replica, stores and listeners."""

    namespace: Namespace
    catalogue: WorkerCatalogue

    def __init__(self, number: int) -> None:
        """Create worker `number` on the running event loop."""
        loop = asyncio.get_running_loop()
        self._number = number
        self._connection = ControlConnection(
            SUPERVISOR_DECODER,
            on_notice=self._on_notice,
            handle_request=self._handle_request,
            on_lost=self._on_supervisor_lost,
        )
        self._start_received: asyncio.Future[Start] = loop.create_future()
        self._serve_received: asyncio.Future[None] = loop.create_future()
        self._early_changes: list[Apply] | None = []
        """Changes received before the catalogue was loaded; None afterwards."""
        self._version = 0
        self._tls: ServerTls | None = None
        self._certificate: tuple[str, str] | None = None
        """The files of a reloaded certificate; None if the certificate from startup is still in use."""
        self._meter = UsageMeter()
        self._own_commit_logs: dict[int, CommitLog] = {}
        """The commit logs of this worker's stores, by store number."""

    async def run(self, sock: socket.socket) -> int:
        """Serve until SIGTERM, and return the exit code."""
        await self._connection.open(connect_over(sock))
        self._connection.notify(Hello())
        try:
            start = await self._start_received
            return await self._serve(start)
        except StartError as error:
            self._connection.notify(Failed(str(error)))
            await asyncio.sleep(0.1)  # until the notice is written to the socket
            return 1

    async def _serve(self, start: Start) -> int:
        settings = ServeSettings(**start.settings, limits=start.limits, data=Path())
        logs.configure(settings.log_level, settings.log_format, worker=self._number)
        interpreter.tune_interpreter()
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        async with contextlib.AsyncExitStack() as stack:
            heartbeats = asyncio.get_running_loop().create_task(self._send_heartbeats())
            stack.callback(heartbeats.cancel)
            peers = await self._open(stack, settings, start)
            self._connection.notify(Loaded())
            await self._serve_received
            await peers.wait_connected(CONNECT_PEERS_S)
            certificate = Certificate(*map(Path, self._certificate or start.certificate))
            self._tls = ServerTls(certificate)
            await self._listeners.open(stack, self._tls.context, self._acceptors(start), certificate)
            interpreter.freeze_objects()
            self._connection.notify(Serving())
            await stop.wait()
        return 0

    # --- start --------------------------------------------------------------------------------------------------------

    async def _open(self, stack: contextlib.AsyncExitStack, settings: ServeSettings, start: Start) -> PeerNetwork:
        clock, workers = SystemClock(), start.workers
        namespace = self.namespace = Namespace(
            clock=clock,
            random=random.SystemRandom(),
            call_at_turn_end=asyncio.get_running_loop().call_soon,
            on_failed=lambda commit_log: stores.reopen(commit_log),  # noqa: PLW0108  # `stores` is created below
            limits=settings.limits,
            store_timeout_s=settings.store_timeout_s,
        )
        self._start_metering(stack, settings, start)
        peers = PeerNetwork(
            namespace,
            worker_number=self._number,
            workers=workers,
            transport=UnixTransport(Path(start.run_folder)),
            timeout_s=settings.store_timeout_s,
        )
        own = range(self._number, len(start.stores), workers)
        files = plan_open_files(stores=len(own), connections=settings.max_connections, workers=workers)
        self._admission = Admission(max_connections=files.connections, max_unauthenticated=settings.max_unauthenticated)
        directories = [Path(directory) for directory in start.stores]
        disks = RocksStoreBackend(directories, sync=settings.sync, table_files=files.table_files_per_store)
        stores = StoreManager(
            namespace,
            disks,
            min_free_bytes=settings.min_free_bytes,
            owner_of=lambda store: None if store in own else peers.client(store % workers),
        )
        stack.push_async_callback(stores.close)
        await stores.open()
        self._own_commit_logs = stores.own_commit_logs
        stack.callback(TimerDriver(namespace.timers).stop)
        self.catalogue = WorkerCatalogue(namespace, settings.name, self._connection, peers, own)
        stack.callback(self.catalogue.close)
        self._listeners = self._make_listeners(settings, start)
        self._listeners.status_api.use_stores({store: directories[store] for store in own}, settings.min_free_bytes)
        self._listeners.status_api.join(peers)
        peers.handle_status = self._listeners.status_api.handle_peer
        await self._load(start)
        stack.push_async_callback(peers.close)
        await peers.start(self.catalogue)
        return peers

    def _start_metering(self, stack: contextlib.AsyncExitStack, settings: ServeSettings, start: Start) -> None:
        """Meter the usage of this worker's clients, and the messages forwarded from its stores."""
        namespace = self.namespace
        namespace.on_forwarded = self._meter.count_forwards
        if settings.metering:
            config = UsageWriterConfig(
                folder=Path(start.usage_folder),
                namespace=settings.name,
                process_number=self._number,
                process_count=start.workers,
                retention_days=settings.usage_days,
            )
            writer = UsageWriter(self._meter, namespace.clock, namespace.timers, config)
            stack.push_async_callback(writer.close)
            writer.start()

    def _make_listeners(self, settings: ServeSettings, start: Start) -> Listeners:
        listeners = Listeners(
            settings,
            self.namespace,
            self.catalogue,
            KeyRing(start.keys),
            self.namespace.clock,
            self._meter,
        )
        self._outage_switch = ClusterOutageSwitch(self.namespace.outages, self._connection)
        listeners.gateway.outage_switch = self._outage_switch
        listeners.gateway.pairing_reports = ClusterReportService(self._connection)
        return listeners

    def _acceptors(self, start: Start) -> dict[str, list[Accept]]:
        """Return functions that start accepting on the inherited sockets, by listener name."""
        counts = ConnectionCounts(start.connection_counts, start.workers)
        return {
            name: [
                Acceptor(socket.socket(fileno=fd), self._admission, counts.balancer_for(port, self._number)).serve
                for fd in descriptors
            ]
            for port, (name, descriptors) in enumerate(start.sockets.items())
        }

    async def _load(self, start: Start) -> None:
        snapshot = msgspec.msgpack.decode(start.catalogue, type=CatalogueSnapshot)
        self.catalogue.created_ms = snapshot.created_ms
        try:
            await self.catalogue.load([(row.decode(), rules) for row, rules in snapshot.entities])
        except ServiceBusError as error:
            raise StartError(str(error)) from error
        for outage in start.outages:
            with contextlib.suppress(EntityNotFound):
                self._outage_switch.apply(outage)
        for cleanup in snapshot.pending_cleanups:
            self.catalogue.start_cleanup(cleanup)
        self._version = start.version
        early, self._early_changes = self._early_changes or [], None
        for change in early:
            self._apply(change)

    # --- messages from the supervisor ---------------------------------------------------------------------------------

    def _on_notice(self, notice: FromSupervisor) -> None:
        if isinstance(notice, Start):
            self._start_received.set_result(notice)
        elif isinstance(notice, Serve):
            self._serve_received.set_result(None)
        elif isinstance(notice, Apply):
            self._apply(notice)

    async def _handle_request(self, request: FromSupervisor) -> object:
        if isinstance(request, Apply):
            self._apply(request)
            if isinstance(request.change, IdentityReloaded | EntityUpdatedMessage):
                await self._listeners.wait_for_revocations()
            return None
        assert isinstance(request, GetIdleSeconds)
        return idle_seconds(self.namespace)

    def _apply(self, message: Apply) -> None:
        if self._early_changes is not None:
            self._early_changes.append(message)
            return
        assert message.version == self._version + 1, "a change of the catalogue is missing"
        if isinstance(message.change, OutageBegun | OutageEnded):
            self._outage_switch.apply(message.change)
        elif isinstance(message.change, IdentityReloaded):
            self._reload(message.change)
        else:
            self.catalogue.apply(decode_change(message.change))
        self._version = message.version

    def _reload(self, message: IdentityReloaded) -> None:
        self._listeners.replace_keys(KeyRing(message.keys))
        if message.log_level is not None:
            logs.set_level(message.log_level)
        if message.certificate is None:
            return
        self._certificate = message.certificate
        if self._tls is None:  # the certificate is loaded when the listeners open
            return
        certificate = Certificate(*map(Path, message.certificate))
        try:
            self._tls.replace(certificates.make_server_context(certificate))
            self._listeners.replace_certificate(certificate)
        except StartError as error:  # the file changed after the supervisor read it
            log.error("keeping the present certificate: %s", error)  # noqa: TRY400  # the text includes the cause

    def _on_supervisor_lost(self) -> None:
        for future in (self._start_received, self._serve_received):
            if not future.done():
                future.set_exception(SupervisorLost())
        log.error(
            "the supervisor exited: this worker keeps serving messages, but nothing can be changed until the server is "
            "restarted"
        )

    async def _send_heartbeats(self) -> None:
        while True:
            reasons = {number: commit_log.unavailable_reason for number, commit_log in self._own_commit_logs.items()}
            self._connection.notify(
                Heartbeat({number: reason for number, reason in reasons.items() if reason is not None})
            )
            await asyncio.sleep(HEARTBEAT_S)


def main() -> int:
    """Run a worker process with the arguments that the supervisor passes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    number, descriptor = (int(argument) for argument in sys.argv[1:])
    sock = socket.socket(fileno=descriptor)

    async def work() -> int:
        return await Worker(number).run(sock)

    return uvloop.run(work())


if __name__ == "__main__":
    sys.exit(main())
