"""A worker: one of the processes that serve a namespace.

    python -m twinbus.server.workers.worker NUMBER DESCRIPTOR

Owns: the process from its start by the supervisor to its end. It opens its own stores, knows all entities of the
namespace by the supervisor's copy of the catalogue, reaches those of other workers, and serves clients on sockets that
it has inherited. If the supervisor ends, it goes on serving until SIGTERM; SIGINT and SIGHUP are for the supervisor
alone, which passes on what has to be known here.
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
from typing import TYPE_CHECKING, Final

import msgspec
import uvloop

from twinbus.broker.namespace import Namespace
from twinbus.model.errors import EntityNotFound, ServiceBusError
from twinbus.server import certificates, logs, process
from twinbus.server.acceptor import Acceptor
from twinbus.server.admission import Admission
from twinbus.server.certificates import Certificate, ServerTls
from twinbus.server.front import Front
from twinbus.server.keys import KeyRing
from twinbus.server.metering.clerk import Clerk, Desk
from twinbus.server.metering.meter import Meter
from twinbus.server.open_files import open_files
from twinbus.server.peers.peers import Peers
from twinbus.server.peers.transport import UnixTransport, over
from twinbus.server.rocks_disks import RocksDisks
from twinbus.server.settings import ServeSettings, StartError
from twinbus.server.stores import Stores
from twinbus.server.system_clock import SystemClock, TimerDrive
from twinbus.server.workers.control import Control
from twinbus.server.workers.entities import WorkerEntities
from twinbus.server.workers.shared import SharedOutageSwitch, SharedPairingDesk
from twinbus.server.workers.tally import Tally
from twinbus.server.workers.words import (
    FROM_SUPERVISOR,
    Apply,
    Beat,
    Copy,
    Failed,
    Hello,
    HowIdle,
    Loaded,
    OutageBegun,
    OutageEnded,
    Reloaded,
    Serve,
    Serving,
    Start,
    Updated,
    read,
)

if TYPE_CHECKING:
    from twinbus.amqp import peers as amqp_peers
    from twinbus.broker.journal import Journal
    from twinbus.server.workers.words import FromSupervisor

log: Final = logging.getLogger(__name__)

BEAT_S: Final = 1.0
REACH_S: Final = 2.0
"""How long it waits for the way to the other workers before clients come to it."""


class Orphaned(StartError):
    """The supervisor has ended before this served."""

    def __init__(self) -> None:
        """Whoever is started next finds the stores free."""
        super().__init__("the supervisor has ended")


class Worker:
    """One of them."""

    namespace: Namespace
    entities: WorkerEntities

    def __init__(self, number: int) -> None:
        """On the running loop."""
        loop = asyncio.get_running_loop()
        self._number = number
        self._control = Control(FROM_SUPERVISOR, hear=self._hear, answer=self._answer, lost=self._lost)
        self._told: asyncio.Future[Start] = loop.create_future()
        self._admitted: asyncio.Future[None] = loop.create_future()
        self._early: list[Apply] | None = []
        """Changes that came before all was loaded."""
        self._version = 0
        self._tls: ServerTls | None = None
        self._certificate: tuple[str, str] | None = None
        """Another one than that of the start."""
        self._meter = Meter()
        self._own: dict[int, Journal] = {}
        """By the numbers of their stores."""

    async def run(self, sock: socket.socket) -> int:
        """Serve until told to stop; the exit code."""
        await self._control.open(over(sock))
        self._control.say(Hello())
        try:
            start = await self._told
            return await self._serve(start)
        except StartError as error:
            self._control.say(Failed(str(error)))
            await asyncio.sleep(0.1)  # until it is said
            return 1

    async def _serve(self, start: Start) -> int:
        settings = ServeSettings(**start.settings, limits=start.limits, data=Path())
        logs.configure(settings.log_level, settings.log_format, worker=self._number)
        process.tune()
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        async with contextlib.AsyncExitStack() as stack:
            beat = asyncio.get_running_loop().create_task(self._beat())
            stack.callback(beat.cancel)
            peers = await self._open(stack, settings, start)
            self._control.say(Loaded())
            await self._admitted
            await peers.wait(REACH_S)
            certificate = Certificate(*map(Path, self._certificate or start.certificate))
            self._tls = ServerTls(certificate)
            await self._front.open(stack, self._tls.context, self._acceptors(start), certificate)
            process.set_apart()
            self._control.say(Serving())
            await stop.wait()
        return 0

    # --- its start ----------------------------------------------------------------------------------------------------

    async def _open(self, stack: contextlib.AsyncExitStack, settings: ServeSettings, start: Start) -> Peers:
        clock, workers = SystemClock(), start.workers
        namespace = self.namespace = Namespace(
            clock=clock,
            random=random.SystemRandom(),
            defer=asyncio.get_running_loop().call_soon,
            on_failed=lambda journal: stores.reopen(journal),  # noqa: PLW0108  # made below: each needs the other
            limits=settings.limits,
            store_timeout_s=settings.store_timeout_s,
        )
        self._count(stack, settings, start)
        peers = Peers(
            namespace,
            number=self._number,
            workers=workers,
            transport=UnixTransport(Path(start.folder)),
            timeout_s=settings.store_timeout_s,
        )
        own = range(self._number, len(start.stores), workers)
        files = open_files(stores=len(own), connections=settings.max_connections, workers=workers)
        self._admission = Admission(max_connections=files.connections, max_unauthenticated=settings.max_unauthenticated)
        directories = [Path(directory) for directory in start.stores]
        disks = RocksDisks(directories, sync=settings.sync, table_files=files.per_store)
        stores = Stores(
            namespace,
            disks,
            min_free_bytes=settings.min_free_bytes,
            owner_of=lambda store: None if store in own else peers.owner(store % workers),
        )
        stack.push_async_callback(stores.close)
        await stores.open()
        self._own = stores.own
        stack.callback(TimerDrive(namespace.timers).stop)
        self.entities = WorkerEntities(namespace, settings.name, self._control, peers, own)
        stack.callback(self.entities.close)
        self._front = self._make_front(settings, start)
        await self._load(start)
        stack.push_async_callback(peers.close)
        await peers.start(self.entities)
        return peers

    def _count(self, stack: contextlib.AsyncExitStack, settings: ServeSettings, start: Start) -> None:
        """What its own clients use, and what is forwarded from its own stores."""
        namespace = self.namespace
        namespace.on_forwarded = self._meter.count_forwards
        if settings.metering:
            desk = Desk(
                folder=Path(start.usage),
                namespace=settings.name,
                process=self._number,
                processes=start.workers,
                days=settings.usage_days,
            )
            clerk = Clerk(self._meter, namespace.clock, namespace.timers, desk)
            stack.push_async_callback(clerk.close)
            clerk.start()

    def _make_front(self, settings: ServeSettings, start: Start) -> Front:
        front = Front(
            settings,
            self.namespace,
            self.entities,
            KeyRing(start.keys),
            self.namespace.clock,
            self._meter,
        )
        self._switch = SharedOutageSwitch(self.namespace.outages, self._control)
        front.gateway.outage_switch = self._switch
        front.gateway.pairings = SharedPairingDesk(self._control)
        return front

    def _acceptors(self, start: Start) -> dict[str, list[amqp_peers.Serve]]:
        """For each socket that was inherited."""
        tally = Tally(start.tally, start.workers)
        return {
            way: [
                Acceptor(socket.socket(fileno=one), self._admission, tally.share(place, self._number)).serve
                for one in some
            ]
            for place, (way, some) in enumerate(start.sockets.items())
        }

    async def _load(self, start: Start) -> None:
        copy = msgspec.msgpack.decode(start.catalogue, type=Copy)
        self.entities.created_ms = copy.created_ms
        try:
            await self.entities.load([(row.read(), rules) for row, rules in copy.entities])
        except ServiceBusError as error:
            raise StartError(str(error)) from error
        for outage in start.outages:
            with contextlib.suppress(EntityNotFound):
                self._switch.apply(outage)
        for doomed in copy.doomed:
            self.entities.start_burial(doomed)
        self._version = start.version
        early, self._early = self._early or [], None
        for change in early:
            self._apply(change)

    # --- what the supervisor says -------------------------------------------------------------------------------------

    def _hear(self, word: FromSupervisor) -> None:
        if isinstance(word, Start):
            self._told.set_result(word)
        elif isinstance(word, Serve):
            self._admitted.set_result(None)
        elif isinstance(word, Apply):
            self._apply(word)

    async def _answer(self, question: FromSupervisor) -> object:
        if isinstance(question, Apply):
            self._apply(question)
            if isinstance(question.change, Reloaded | Updated):
                await self._front.settle_keys()
            return None
        assert isinstance(question, HowIdle)
        return self.entities.idle_times()

    def _apply(self, word: Apply) -> None:
        if self._early is not None:
            self._early.append(word)
            return
        assert word.version == self._version + 1, "a change of the catalogue is missing"
        if isinstance(word.change, OutageBegun | OutageEnded):
            self._switch.apply(word.change)
        elif isinstance(word.change, Reloaded):
            self._reload(word.change)
        else:
            self.entities.apply(read(word.change))
        self._version = word.version

    def _reload(self, word: Reloaded) -> None:
        self._front.replace_keys(KeyRing(word.keys))
        if word.log_level is not None:
            logs.set_level(word.log_level)
        if word.certificate is None:
            return
        self._certificate = word.certificate
        if self._tls is None:  # it is read when clients are let in
            return
        certificate = Certificate(*map(Path, word.certificate))
        try:
            self._tls.replace(certificates.server_context(certificate))
            self._front.replace_certificate(certificate)
        except StartError as error:  # the supervisor has just read it: the file was changed in the meantime
            log.error("the certificate stays as it was: %s", error)  # noqa: TRY400  # it says all there is

    def _lost(self) -> None:
        for future in (self._told, self._admitted):
            if not future.done():
                future.set_exception(Orphaned())
        log.error("the supervisor has ended: messages flow on, and nothing can be managed until a new start")

    async def _beat(self) -> None:
        while True:
            troubles = {number: journal.trouble for number, journal in self._own.items()}
            self._control.say(Beat({number: trouble for number, trouble in troubles.items() if trouble is not None}))
            await asyncio.sleep(BEAT_S)


def main() -> int:
    """Run as the supervisor starts it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    number, descriptor = (int(argument) for argument in sys.argv[1:])
    sock = socket.socket(fileno=descriptor)

    async def work() -> int:
        return await Worker(number).run(sock)

    return uvloop.run(work())


if __name__ == "__main__":
    sys.exit(main())
