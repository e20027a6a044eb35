"""The supervisor: the process over those that serve a namespace.

Owns: the data directory and its catalogue, the listening sockets, and the workers. It serves nobody itself: while it is
down messages flow, and nothing can be managed. Its lock on the data directory is inherited by the workers, so that no
other server comes to the stores while one of them lives.
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

from twinbus.model.description import FOREVER_MS
from twinbus.model.errors import ServiceBusError
from twinbus.model.topic import SubscriptionDescription
from twinbus.server.catalogue.entity_info import with_total_size
from twinbus.server.catalogue.local_catalogue import IDLE_CHECK_INTERVAL_S
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
    from collections.abc import Awaitable, Callable

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
"""Settings that a worker gets in another form, or has no use for."""


class Supervisor:
    """One namespace, served from a data directory by several processes."""

    def __init__(self, settings: ServeSettings, data_directory: DataDirectory) -> None:
        """Nothing is started yet."""
        self._settings = settings
        self._data_directory = data_directory
        self._clock = SystemClock()
        self._store_directories = data_directory.prepare_stores(settings)
        self._keys = live_settings.load_keys(settings, data_directory)
        self._certificate = live_settings.choose_certificate(settings, data_directory)
        self._encoded_catalogue = (-1, b"")
        """The last one that was written, and of which version."""
        self._cleanups: set[asyncio.Task[None]] = set()

    async def start(self, stack: contextlib.AsyncExitStack, stop: asyncio.Event) -> ReadyFile:
        """Start everything; `stack` stops it. What a client needs to know. Stopped if `stop` is set before that."""
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
        stack.callback(self._request_handler.timer_drive.stop)
        stack.push_async_callback(self._workers.stop)
        await self._workers.start(stop)
        idle = asyncio.get_running_loop().create_task(delete_idle_entities(self._catalogue, self._workers.idle_seconds))
        stack.callback(idle.cancel)
        return self._make_ready_file()

    async def apply(self, changes: LiveSettings) -> ReadyFile:
        """Use other keys, another certificate and log level in all workers. What a client needs to know then."""
        self._keys = changes.keys
        if changes.certificate is not None:
            self._certificate = changes.certificate
        if changes.log_level is not None:
            self._settings = replace(self._settings, log_level=changes.log_level)
            logs.set_level(changes.log_level)
        # Nothing is awaited before the workers are notified: one that starts meanwhile has all of this, or is notified.
        files = self._certificate_files() if changes.certificate is not None else None
        await self._workers.publish(IdentityReloaded(list(changes.keys.all_keys), files, changes.log_level))
        return self._make_ready_file()

    @property
    def administration(self) -> CatalogueEntityManager:
        """Manages the entities."""
        return CatalogueEntityManager(self._catalogue)

    async def wait_for_revocations(self) -> None:
        """Do nothing: a change is made when the workers say that these links have ended."""

    def _make_ready_file(self) -> ReadyFile:
        ports = {way: sockets[0].getsockname()[1] for way, sockets in self._sockets.items()}
        return live_settings.make_ready_file(self._settings, ports, self._keys, self._certificate)

    def _make_workers(self) -> WorkerPool:
        descriptors = [sock.fileno() for sockets in self._sockets.values() for sock in sockets]
        fleet = WorkerPool(
            self._settings.workers,
            timeout_s=self._settings.worker_timeout_s,
            descriptors=[*descriptors, self._data_directory.lock_descriptor, self._connection_counts],
            make_start=self._make_start,
            handle_request=lambda request: self._request_handler.handle(request),  # noqa: PLW0108  # made below: each needs the other
            on_cleanup_finished=self._on_cleanup_finished,
        )
        fleet.on_pids = self._data_directory.record_workers
        fleet.on_down = ConnectionCounts(self._connection_counts, self._settings.workers).clear_worker
        return fleet

    async def _open_catalogue(self, stack: contextlib.AsyncExitStack) -> CatalogueService:
        settings = self._settings
        keeper = CatalogueService(
            settings.limits,
            self._clock,
            store_count=len(self._store_directories),
            unavailable_reason=self._workers.unavailable_reason,
            publish=self._publish,
        )
        try:
            await keeper.open(partial(Catalogue, self._data_directory.catalogue_file), len(self._store_directories))
        except ServiceBusError as error:
            raise StartError(str(error)) from error
        stack.push_async_callback(keeper.close)
        stack.push_async_callback(self._finish_cleanups)
        if settings.plan is not None:
            await reconcile(CatalogueEntityManager(keeper), settings.plan, now_ms=self._clock.wall_ms())
        return keeper

    async def _publish(self, change: Change) -> None:
        await self._workers.publish(encode_change(change))

    # --- what a worker is told ----------------------------------------------------------------------------------------

    def _make_start(self) -> Start:
        return Start(
            workers=self._settings.workers,
            run_folder=str(self._run_folder.path),
            stores=[str(directory) for directory in self._store_directories],
            usage_folder=str(self._data_directory.usage_directory),
            sockets={way: [sock.fileno() for sock in sockets] for way, sockets in self._sockets.items()},
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
        """Of ten thousand entities that is some work, and all workers start at the same time."""
        if self._encoded_catalogue[0] != self._workers.version:
            copy = CatalogueSnapshot(
                [
                    (EncodedRow.encode(known.row), list(known.rules.values()))
                    for known in self._catalogue.entities.values()
                ],
                list(self._catalogue.deleted_entities.values()),
                self._catalogue.created_ms,
            )
            self._encoded_catalogue = (self._workers.version, msgspec.msgpack.encode(copy))
        return self._encoded_catalogue[1]

    # --- what a worker tells ------------------------------------------------------------------------------------------

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
            log.warning("a deleted entity is removed once more at the next start: %s", error)


def _worker_settings(settings: ServeSettings) -> dict[str, Any]:
    return {
        field.name: getattr(settings, field.name)
        for field in fields(ServeSettings)
        if field.name not in _SUPERVISOR_SETTINGS
    }


async def delete_idle_entities(
    catalogue: CatalogueService, get_idle_seconds: Callable[[], Awaitable[list[dict[int, float]] | None]]
) -> None:
    """Delete entities that delete themselves when nobody uses them, for ever.

    `ask` gets how long each worker's clients have not used each entity, by the ids of entities. An entity is idle if
    all workers say so; while a worker is down, nothing is deleted: its clients are about to come back.
    """
    while True:
        await asyncio.sleep(IDLE_CHECK_INTERVAL_S)
        await delete_idle_once(catalogue, get_idle_seconds)


async def delete_idle_once(
    catalogue: CatalogueService, get_idle_seconds: Callable[[], Awaitable[list[dict[int, float]] | None]]
) -> None:
    """Delete the entities that are idle now."""
    limits_s = {
        known.row.id: known.description.auto_delete_on_idle_ms / 1000
        for known in catalogue.entities.values()
        if known.description.auto_delete_on_idle_ms < FOREVER_MS
    }
    answers = await get_idle_seconds() if limits_s else None
    if answers is None:
        return
    for known in list(catalogue.entities.values()):
        row, limit_s = known.row, limits_s.get(known.row.id)
        if limit_s is None or min(answer.get(row.id, 0.0) for answer in answers) < limit_s:
            continue
        try:
            await catalogue.delete(row.path)
        except ServiceBusError as error:  # with its topic, or then at a later look
            log.debug("an idle entity was not deleted: %s", error, extra={"path": row.path})
        else:
            log.info("%s was deleted: it was idle", row.kind, extra={"path": row.path, "idle_s": limit_s})


MAX_FOLDER_CHARACTERS: Final = 80
"""Characters: the name of a local socket has at most 107."""
_PREFIX: Final = "twinbus-"


class RunFolder:
    """Where the workers' sockets are, from the start of a server to its end: private, and with a short name."""

    def __init__(self, data_directory: DataDirectory) -> None:
        """Made anew; one that a server left behind which was killed is removed. StartError."""
        self._pointer_file = data_directory.path / "run"
        self._remove_old()
        parent = tempfile.gettempdir()
        try:
            self.path = Path(
                tempfile.mkdtemp(prefix=_PREFIX, dir=parent if len(parent) < MAX_FOLDER_CHARACTERS else "/tmp")  # noqa: S108  # mkdtemp is safe there
            )  # mkdtemp is safe there
        except OSError as error:
            raise StartError(f"no folder can be made in {parent}: {error.strerror}") from error
        write_atomically(self._pointer_file, f"{self.path}\n".encode())

    def remove(self) -> None:
        """Nobody needs it any more."""
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
    """An entity that is there."""

    path: str
    description: Description


class CatalogueEntityManager:
    """The catalogue, as a configuration file is applied to it before any worker is started."""

    def __init__(self, catalogue: CatalogueService) -> None:
        """Opened before."""
        self._catalogue = catalogue

    async def get(self, path: str) -> CataloguedEntity:
        """An entity, with the size that it is shown with. EntityNotFound."""
        known = self._catalogue.find(path)
        description = known.description
        if isinstance(description, SubscriptionDescription) or not known.is_partitioned:
            return CataloguedEntity(known.path, description)
        return CataloguedEntity(known.path, with_total_size(description))

    async def create_queue(self, path: str, description: QueueDescription) -> object:
        """Make a queue."""
        return await self._catalogue.create(path, description)

    async def create_topic(self, path: str, description: TopicDescription) -> object:
        """Make a topic."""
        return await self._catalogue.create(path, description)

    async def create_subscription(
        self, topic: str, name: str, description: SubscriptionDescription, rule: RuleDescription | None = None
    ) -> object:
        """Make a subscription."""
        return await self._catalogue.create_subscription(topic, name, description, rule)

    async def update(self, path: str, description: Description) -> object:
        """Describe an entity anew."""
        return await self._catalogue.update(path, description)

    async def list_rules(self, subscription: str, *, skip: int, top: int) -> list[RuleDescription]:
        """Some rules, in the order of their making."""
        return list(self._catalogue.find(subscription).rules.values())[skip : skip + top]

    async def create_rule(self, subscription: str, rule: RuleDescription) -> object:
        """Add a rule."""
        return await self._catalogue.create_rule(subscription, rule)

    async def update_rule(self, subscription: str, rule: RuleDescription) -> object:
        """Put a rule in the place of another."""
        return await self._catalogue.update_rule(subscription, rule)

    async def delete_rule(self, subscription: str, name: str) -> None:
        """Delete a rule."""
        await self._catalogue.delete_rule(subscription, name)
