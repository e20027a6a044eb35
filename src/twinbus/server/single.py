"""A namespace that this process serves itself, with no other beside it.

Owns: which clock, disks, keys and catalogue a `service` stands on where it is that of a process.
"""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING

from twinbus.server import identity, logs
from twinbus.server.acceptor import Acceptor
from twinbus.server.admission import Admission
from twinbus.server.certificates import ServerTls
from twinbus.server.listening import open_sockets
from twinbus.server.open_files import open_files
from twinbus.server.rocks_disks import RocksDisks
from twinbus.server.service import Ground, Service
from twinbus.server.system_clock import SystemClock
from twinbus.store.catalogue import Catalogue

if TYPE_CHECKING:
    import asyncio
    import contextlib

    from twinbus.amqp.peers import Serve
    from twinbus.server.data_directory import DataDirectory
    from twinbus.server.entities import Entities
    from twinbus.server.identity import Identity
    from twinbus.server.ready_file import ReadyFile
    from twinbus.server.settings import ServeSettings


class Server:
    """One namespace, served from a data directory by this process."""

    service: Service
    """There from `start` on."""
    admission: Admission
    """The connections of this process. There from `start` on."""

    def __init__(self, settings: ServeSettings, data: DataDirectory) -> None:
        """Nothing is started yet."""
        self._settings = settings
        self._data = data
        self._stores = data.claim(settings)
        self._keys = identity.load_keys(settings, data)
        self._certificate = identity.choose_certificate(settings, data)

    async def start(self, stack: contextlib.AsyncExitStack, _stop: asyncio.Event | None = None) -> ReadyFile:
        """Start everything; `stack` stops it. What a client needs to know."""
        settings = self._settings
        files = open_files(stores=len(self._stores), connections=settings.max_connections)
        self.admission = Admission(max_connections=files.connections, max_unauthenticated=settings.max_unauthenticated)
        ground = Ground(
            clock=SystemClock(),
            random=random.SystemRandom(),
            keys=self._keys,
            disks=RocksDisks(self._stores, sync=settings.sync, table_files=files.per_store),
            open_catalogue=partial(Catalogue, self._data.catalogue),
            listen=self._listen,
            usage=self._data.usage,
        )
        self.service = Service(settings, ground)
        self._tls = ServerTls(self._certificate)
        self._ports = await self.service.start(stack, self._tls.context, self._certificate)
        return self._ready()

    async def apply(self, found: Identity) -> ReadyFile:
        """Use other keys, another certificate and log level from now on. What a client needs to know then."""
        front = self.service.front
        if found.certificate is not None and found.tls is not None:
            front.replace_certificate(found.certificate)
            self._tls.replace(found.tls)
            self._certificate = found.certificate
        if found.log_level is not None:
            logs.set_level(found.log_level)
        self._keys = found.keys
        front.replace_keys(found.keys)
        await self.settle_keys()
        return self._ready()

    @property
    def manager(self) -> Entities:
        """Manages the entities."""
        return self.service.entities

    async def settle_keys(self) -> None:
        """Wait until every link has ended that changed keys do not allow any more."""
        await self.service.front.settle_keys()

    def _ready(self) -> ReadyFile:
        return identity.make_ready_file(self._settings, self._ports, self._keys, self._certificate)

    def _listen(self) -> dict[str, list[Serve]]:
        return {
            way: [Acceptor(sock, self.admission).serve for sock in sockets]
            for way, sockets in open_sockets(self._settings).items()
        }
