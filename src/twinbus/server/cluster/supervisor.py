"""The supervisor: the parent process of the workers that serve a namespace.

Owns: the data directory and its catalogue, the listening sockets, and the workers. The supervisor serves no clients.
While the supervisor is down, clients can send and receive messages, but entities cannot be changed. Workers inherit the
supervisor's lock on the data directory, so that no other server opens the stores while a worker runs.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import tempfile
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from twinbus.model.errors import ServiceBusError
from twinbus.model.topic import SubscriptionDescription
from twinbus.server.catalogue.auto_delete import delete_idle_entities
from twinbus.server.catalogue.entity_info import with_total_size
from twinbus.server.catalogue.service import CatalogueService
from twinbus.server.cluster.connection_counts import ConnectionCounts
from twinbus.server.cluster.control_protocol import (
    CatalogueSnapshot,
    EncodedRow,
    IdentityReloaded,
    Start,
    encode_change,
)
from twinbus.server.cluster.worker_pool import WorkerPool
from twinbus.server.cluster.worker_requests import WorkerRequestHandler
from twinbus.server.config.reconciler import reconcile
from twinbus.server.config.settings import ServeSettings, StartError
from twinbus.server.runtime import live_settings, logs
from twinbus.server.runtime.data_directory import write_atomically
from twinbus.server.runtime.listening_sockets import open_sockets
from twinbus.server.runtime.system_clock import SystemClock
from twinbus.store.catalogue import Catalogue

if TYPE_CHECKING:
    import contextlib

    from twinbus.model.info import Description
    from twinbus.model.queue import QueueDescription
    from twinbus.model.rule import RuleDescription
    from twinbus.model.topic import TopicDescription
    from twinbus.server.catalogue.changes import Change
    from twinbus.server.cluster.control_protocol import CleanupFinished
    from twinbus.server.runtime.data_directory import DataDirectory
    from twinbus.server.runtime.live_settings import LiveSettings
    from twinbus.server.runtime.ready_file import ReadyFile

log: Final = logging.getLogger(__name__)

_SUPERVISOR_SETTINGS: Final = frozenset(
    {"data", "store_dirs", "ready_file", "tls_cert", "tls_key", "keys", "plan", "limits"}
)
"""Settings that a worker gets in another form, or does not need."""


class Supervisor:
    """One namespace, served from a data directory by several processes."""

    def __init__(self, settings: ServeSettings, data_directory: DataDirectory) -> None:
        """Prepare the stores, keys and certificate, without starting a worker."""
        self._settings = settings
        self._data_directory = data_directory
        self._clock = SystemClock()
        self._store_directories = data_directory.prepare_stores(settings)
        self._keys = live_settings.load_keys(settings, data_directory)
        self._certificate = live_settings.choose_certificate(settings, data_directory)
        self._encoded_catalogue = (-1, b"")
        """The version and bytes of the last encoded catalogue snapshot."""
        self._cleanups: set[asyncio.Task[None]] = set()

    async def start(self, stack: contextlib.AsyncExitStack, stop: asyncio.Event) -> ReadyFile:
        """Start the workers, and return the contents of the ready file. `stack` stops everything that was started.

        Raise StoppedBeforeReady if `stop` is set first.
        """
        settings, data = self._settings, self._data_directory
        self._sockets = open_sockets(settings)
        for sock in [sock for sockets in self._sockets.values() for sock in sockets]:
            stack.callback(sock.close)
        self._run_folder = RunFolder(data)
        stack.callback(self._run_folder.remove)
        self._connection_counts = ConnectionCounts.create_memory(settings.workers, len(self._sockets))
        stack.callback(os.close, self._connection_counts)
        self._workers = self._make_workers()
        self._catalogue = await self._open_catalogue(stack)
        self._request_handler = WorkerRequestHandler(self._catalogue, self._clock, self._workers.publish)
        stack.callback(self._request_handler.timer_driver.stop)
        stack.push_async_callback(self._workers.stop)
        await self._workers.start(stop)
        idle = asyncio.get_running_loop().create_task(delete_idle_entities(self._catalogue, self._workers.idle_seconds))
        stack.callback(idle.cancel)
        return self._make_ready_file()

    async def apply(self, changes: LiveSettings) -> ReadyFile:
        """Apply reloaded keys, certificate and log level in all workers, and return the new ready file."""
        self._keys = changes.keys
        if changes.certificate is not None:
            self._certificate = changes.certificate
        if changes.log_level is not None:
            self._settings = replace(self._settings, log_level=changes.log_level)
            logs.set_level(changes.log_level)
        # No await before `publish`, so that a worker that starts now has the new values or is notified of them.
        files = self._certificate_files() if changes.certificate is not None else None
        await self._workers.publish(IdentityReloaded(list(changes.keys.all_keys), files, changes.log_level))
        return self._make_ready_file()

    @property
    def administration(self) -> CatalogueEntityManager:
        """Operations on the entities of the namespace, for commands that change an entity's keys."""
        return CatalogueEntityManager(self._catalogue)

    async def wait_for_revocations(self) -> None:
        """Do nothing, because `apply` waits until the workers have closed the links whose rights were revoked."""

    def _make_ready_file(self) -> ReadyFile:
        ports = {listener: sockets[0].getsockname()[1] for listener, sockets in self._sockets.items()}
        return live_settings.make_ready_file(self._settings, ports, self._keys, self._certificate)

    def _make_workers(self) -> WorkerPool:
        descriptors = [sock.fileno() for sockets in self._sockets.values() for sock in sockets]
        pool = WorkerPool(
            self._settings.workers,
            timeout_s=self._settings.worker_timeout_s,
            descriptors=[*descriptors, self._data_directory.lock_descriptor, self._connection_counts],
            make_start=self._make_start,
            handle_request=lambda request: self._request_handler.handle(request),  # noqa: PLW0108  # created later
            on_cleanup_finished=self._on_cleanup_finished,
        )
        pool.on_pids = self._data_directory.record_workers
        pool.on_down = ConnectionCounts(self._connection_counts, self._settings.workers).clear_worker
        return pool

    async def _open_catalogue(self, stack: contextlib.AsyncExitStack) -> CatalogueService:
        settings = self._settings
        service = CatalogueService(
            settings.limits,
            self._clock,
            store_count=len(self._store_directories),
            unavailable_reason=self._workers.unavailable_reason,
            publish=self._publish,
        )
        try:
            await service.open(partial(Catalogue, self._data_directory.catalogue_file), len(self._store_directories))
        except ServiceBusError as error:
            raise StartError(str(error)) from error
        stack.push_async_callback(service.close)
        stack.push_async_callback(self._finish_cleanups)
        if settings.plan is not None:
            await reconcile(CatalogueEntityManager(service), settings.plan, now_ms=self._clock.wall_ms())
        return service

    async def _publish(self, change: Change) -> None:
        await self._workers.publish(encode_change(change))

    # --- starting a worker --------------------------------------------------------------------------------------------

    def _make_start(self) -> Start:
        return Start(
            workers=self._settings.workers,
            run_folder=str(self._run_folder.path),
            stores=[str(directory) for directory in self._store_directories],
            usage_folder=str(self._data_directory.usage_directory),
            sockets={listener: [sock.fileno() for sock in sockets] for listener, sockets in self._sockets.items()},
            connection_counts=self._connection_counts,
            settings=_worker_settings(self._settings),
            limits=self._settings.limits,
            keys=list(self._keys.all_keys),
            certificate=self._certificate_files(),
            version=self._workers.version,
            catalogue=self._encode_catalogue(),
            outages=self._request_handler.active_outages(),
        )

    def _certificate_files(self) -> tuple[str, str]:
        return str(self._certificate.certificate_file), str(self._certificate.key_file)

    def _encode_catalogue(self) -> bytes:
        """Return the encoded catalogue. The cache per version saves time, because all workers start at once."""
        if self._encoded_catalogue[0] != self._workers.version:
            snapshot = CatalogueSnapshot(
                [
                    (EncodedRow.encode(entry.row), list(entry.rules.values()))
                    for entry in self._catalogue.entities.values()
                ],
                list(self._catalogue.deleted_entities.values()),
                self._catalogue.created_ms,
            )
            self._encoded_catalogue = (self._workers.version, msgspec.msgpack.encode(snapshot))
        return self._encoded_catalogue[1]

    # --- cleanup of deleted entities ----------------------------------------------------------------------------------

    def _on_cleanup_finished(self, report: CleanupFinished) -> None:
        task = asyncio.get_running_loop().create_task(self._record_cleanup(report))
        self._cleanups.add(task)
        task.add_done_callback(self._cleanups.discard)

    async def _finish_cleanups(self) -> None:
        await asyncio.gather(*self._cleanups)

    async def _record_cleanup(self, report: CleanupFinished) -> None:
        try:
            await self._catalogue.cleanup_finished(report.entity_id, report.stores)
        except ServiceBusError as error:
            log.warning("the cleanup of a deleted entity runs again at the next start: %s", error)


def _worker_settings(settings: ServeSettings) -> dict[str, Any]:
    return {
        field.name: getattr(settings, field.name)
        for field in fields(ServeSettings)
        if field.name not in _SUPERVISOR_SETTINGS
    }


MAX_FOLDER_CHARACTERS: Final = 80
"""The longest path of a parent folder, because the path of a Unix socket has at most 107 characters."""
_PREFIX: Final = "twinbus-"


class RunFolder:
    """The private folder for the workers' Unix sockets, with a short path, for one run of the server."""

    def __init__(self, data_directory: DataDirectory) -> None:
        """Create the folder, and remove any folder that a killed server left behind. Raise StartError if this fails."""
        self._pointer_file = data_directory.path / "run"
        self._remove_old()
        parent = tempfile.gettempdir()
        try:
            self.path = Path(
                tempfile.mkdtemp(prefix=_PREFIX, dir=parent if len(parent) < MAX_FOLDER_CHARACTERS else "/tmp")  # noqa: S108  # mkdtemp is safe there
            )
        except OSError as error:
            raise StartError(f"cannot create a folder in {parent}: {error.strerror}") from error
        write_atomically(self._pointer_file, f"{self.path}\n".encode())

    def remove(self) -> None:
        """Remove the folder and the file that points to it."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._pointer_file.unlink(missing_ok=True)

    def _remove_old(self) -> None:
        try:
            old = Path(self._pointer_file.read_text("utf-8").strip())
        except (OSError, UnicodeDecodeError):
            return
        if old.name.startswith(_PREFIX) and old.is_dir() and not old.is_symlink():
            shutil.rmtree(old, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class CataloguedEntity:
    """An entity that exists, with its description."""

    path: str
    description: Description


class CatalogueEntityManager:
    """Operations on the catalogue service, for configuration files and key commands."""

    def __init__(self, catalogue: CatalogueService) -> None:
        """Create a manager for a catalogue service that is open."""
        self._catalogue = catalogue

    async def get(self, path: str) -> CataloguedEntity:
        """Return an entity, with the total size of all its fragments. Raise EntityNotFound if there is none."""
        entry = self._catalogue.find(path)
        description = entry.description
        if isinstance(description, SubscriptionDescription) or not entry.is_partitioned:
            return CataloguedEntity(entry.path, description)
        return CataloguedEntity(entry.path, with_total_size(description))

    async def create_queue(self, path: str, description: QueueDescription) -> object:
        """Create a queue."""
        return await self._catalogue.create(path, description)

    async def create_topic(self, path: str, description: TopicDescription) -> object:
        """Create a topic."""
        return await self._catalogue.create(path, description)

    async def create_subscription(
        self, topic: str, name: str, description: SubscriptionDescription, rule: RuleDescription | None = None
    ) -> object:
        """Create a subscription with `rule` (default: a rule that matches every message)."""
        return await self._catalogue.create_subscription(topic, name, description, rule)

    async def update(self, path: str, description: Description) -> object:
        """Replace the description of an entity."""
        return await self._catalogue.update(path, description)

    async def list_rules(self, subscription: str, *, skip: int, top: int) -> list[RuleDescription]:
        """Return up to `top` rules of a subscription, in order of creation, after skipping `skip`."""
        return list(self._catalogue.find(subscription).rules.values())[skip : skip + top]

    async def create_rule(self, subscription: str, rule: RuleDescription) -> object:
        """Add a rule to a subscription."""
        return await self._catalogue.create_rule(subscription, rule)

    async def update_rule(self, subscription: str, rule: RuleDescription) -> object:
        """Replace the rule with the same name."""
        return await self._catalogue.update_rule(subscription, rule)

    async def delete_rule(self, subscription: str, name: str) -> None:
        """Delete a rule of a subscription."""
        await self._catalogue.delete_rule(subscription, name)
