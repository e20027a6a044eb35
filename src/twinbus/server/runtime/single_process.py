"""A server that serves a namespace in a single process.

Owns: the machine's clock, disks, keys and sockets that the process's `NamespaceService` uses.
"""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING

from twinbus.server.runtime import live_settings, logs
from twinbus.server.runtime.acceptor import Acceptor
from twinbus.server.runtime.admission import Admission
from twinbus.server.runtime.listening_sockets import open_sockets
from twinbus.server.runtime.namespace_service import Dependencies, NamespaceService
from twinbus.server.runtime.open_file_limit import plan_open_files
from twinbus.server.runtime.rocksdb_backend import RocksStoreBackend
from twinbus.server.runtime.system_clock import SystemClock
from twinbus.server.tls.certificates import ServerTls
from twinbus.store.catalogue import Catalogue

if TYPE_CHECKING:
    import asyncio
    import contextlib

    from twinbus.server.catalogue.local_catalogue import LocalCatalogue
    from twinbus.server.config.settings import ServeSettings
    from twinbus.server.port.client_port import Accept
    from twinbus.server.runtime.data_directory import DataDirectory
    from twinbus.server.runtime.live_settings import LiveSettings
    from twinbus.server.runtime.ready_file import ReadyFile


class SingleProcessServer:
    """A namespace served from a data directory by this process."""

    service: NamespaceService
    """The namespace's service, set by `start`."""
    admission: Admission
    """The admission of connections to this process, set by `start`."""

    def __init__(self, settings: ServeSettings, data_directory: DataDirectory) -> None:
        """Prepare the stores, keys and certificate, without starting the service."""
        self._settings = settings
        self._data_directory = data_directory
        self._store_directories = data_directory.prepare_stores(settings)
        self._keys = live_settings.load_keys(settings, data_directory)
        self._certificate = live_settings.choose_certificate(settings, data_directory)

    async def start(self, stack: contextlib.AsyncExitStack, _stop: asyncio.Event | None = None) -> ReadyFile:
        """Start the service, and return the contents of the ready file. `stack` stops everything that was started."""
        settings = self._settings
        files = plan_open_files(stores=len(self._store_directories), connections=settings.max_connections)
        self.admission = Admission(max_connections=files.connections, max_unauthenticated=settings.max_unauthenticated)
        dependencies = Dependencies(
            clock=SystemClock(),
            random=random.SystemRandom(),
            keys=self._keys,
            store_backend=RocksStoreBackend(
                self._store_directories, sync=settings.sync, table_files=files.table_files_per_store
            ),
            open_catalogue=partial(Catalogue, self._data_directory.catalogue_file),
            open_acceptors=self._open_acceptors,
            usage_folder=self._data_directory.usage_directory,
        )
        self.service = NamespaceService(settings, dependencies)
        self._tls = ServerTls(self._certificate)
        self._ports = await self.service.start(stack, self._tls.context, self._certificate)
        return self._make_ready_file()

    async def apply(self, changes: LiveSettings) -> ReadyFile:
        """Apply reloaded keys, certificate and log level, and return the new ready file."""
        listeners = self.service.listeners
        if changes.certificate is not None and changes.tls is not None:
            listeners.replace_certificate(changes.certificate)
            self._tls.replace(changes.tls)
            self._certificate = changes.certificate
        if changes.log_level is not None:
            logs.set_level(changes.log_level)
        self._keys = changes.keys
        listeners.replace_keys(changes.keys)
        await self.wait_for_revocations()
        return self._make_ready_file()

    @property
    def administration(self) -> LocalCatalogue:
        """Operations on the entities of the namespace, for commands that change an entity's keys."""
        return self.service.catalogue

    async def wait_for_revocations(self) -> None:
        """Wait until all links whose rights are revoked are closed."""
        await self.service.listeners.wait_for_revocations()

    def _make_ready_file(self) -> ReadyFile:
        return live_settings.make_ready_file(self._settings, self._ports, self._keys, self._certificate)

    def _open_acceptors(self) -> dict[str, list[Accept]]:
        return {
            protocol: [Acceptor(sock, self.admission).serve for sock in sockets]
            for protocol, sockets in open_sockets(self._settings).items()
        }
