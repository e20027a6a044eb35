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
from twinbus.server import identity, logs
from twinbus.server.config.apply import bring_to_plan
from twinbus.server.data_directory import write_atomically
from twinbus.server.entities import IDLE_LOOK_S
from twinbus.server.entity_info import shown
from twinbus.server.keeper import Keeper
from twinbus.server.listening import open_sockets
from twinbus.server.settings import ServeSettings, StartError
from twinbus.server.system_clock import SystemClock
from twinbus.server.workers.desk import Desk
from twinbus.server.workers.fleet import Fleet
from twinbus.server.workers.tally import Tally
from twinbus.server.workers.words import Copy, Reloaded, Row, Start, write
from twinbus.store.catalogue import Catalogue

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Awaitable, Callable

    from twinbus.model.info import Description
    from twinbus.model.queue import QueueDescription
    from twinbus.model.rule import RuleDescription
    from twinbus.model.topic import TopicDescription
    from twinbus.server.changes import Change
    from twinbus.server.data_directory import DataDirectory
    from twinbus.server.identity import Identity
    from twinbus.server.ready_file import ReadyFile
    from twinbus.server.workers.words import Buried

log: Final = logging.getLogger(__name__)

_KEPT: Final = frozenset({"data", "store_dirs", "ready_file", "tls_cert", "tls_key", "keys", "plan", "limits"})
"""Settings that a worker gets in another form, or has no use for."""


class Supervisor:
    """One namespace, served from a data directory by several processes."""

    def __init__(self, settings: ServeSettings, data: DataDirectory) -> None:
        """Nothing is started yet."""
        self._settings = settings
        self._data = data
        self._clock = SystemClock()
        self._stores = data.claim(settings)
        self._keys = identity.load_keys(settings, data)
        self._certificate = identity.choose_certificate(settings, data)
        self._copy = (-1, b"")
        """The last one that was written, and of which version."""
        self._burials: set[asyncio.Task[None]] = set()

    async def start(self, stack: contextlib.AsyncExitStack, stop: asyncio.Event) -> ReadyFile:
        """Start everything; `stack` stops it. What a client needs to know. Stopped if `stop` is set before that."""
        settings, data = self._settings, self._data
        self._sockets = open_sockets(settings)
        for sock in [sock for sockets in self._sockets.values() for sock in sockets]:
            stack.callback(sock.close)
        self._folder = RunFolder(data)
        stack.callback(self._folder.remove)
        self._tally = Tally.make(settings.workers, len(self._sockets))
        stack.callback(os.close, self._tally)
        self._fleet = self._make_fleet()
        self._keeper = await self._open_catalogue(stack)
        self._desk = Desk(self._keeper, self._clock, self._fleet.publish)
        stack.callback(self._desk.drive.stop)
        stack.push_async_callback(self._fleet.stop)
        await self._fleet.start(stop)
        idle = asyncio.get_running_loop().create_task(delete_idle(self._keeper, self._fleet.idle_times))
        stack.callback(idle.cancel)
        return self._ready()

    async def apply(self, found: Identity) -> ReadyFile:
        """Use other keys, another certificate and log level in all workers. What a client needs to know then."""
        self._keys = found.keys
        if found.certificate is not None:
            self._certificate = found.certificate
        if found.log_level is not None:
            self._settings = replace(self._settings, log_level=found.log_level)
            logs.set_level(found.log_level)
        # Nothing is awaited before the workers are notified: one that starts meanwhile has all of this, or is notified.
        files = self._certificate_files() if found.certificate is not None else None
        await self._fleet.publish(Reloaded(list(found.keys.all), files, found.log_level))
        return self._ready()

    @property
    def manager(self) -> PlannedEntities:
        """Manages the entities."""
        return PlannedEntities(self._keeper)

    async def settle_keys(self) -> None:
        """Do nothing: a change is made when the workers say that these links have ended."""

    def _ready(self) -> ReadyFile:
        ports = {way: sockets[0].getsockname()[1] for way, sockets in self._sockets.items()}
        return identity.make_ready_file(self._settings, ports, self._keys, self._certificate)

    def _make_fleet(self) -> Fleet:
        descriptors = [sock.fileno() for sockets in self._sockets.values() for sock in sockets]
        fleet = Fleet(
            self._settings.workers,
            timeout_s=self._settings.worker_timeout_s,
            descriptors=[*descriptors, self._data.lock, self._tally],
            make_start=self._make_start,
            answer=lambda request: self._desk.answer(request),  # noqa: PLW0108  # made below: each needs the other
            on_buried=self._note_burial,
        )
        fleet.on_pids = self._data.note_workers
        fleet.on_down = Tally(self._tally, self._settings.workers).drop
        return fleet

    async def _open_catalogue(self, stack: contextlib.AsyncExitStack) -> Keeper:
        settings = self._settings
        keeper = Keeper(
            settings.limits,
            self._clock,
            stores=len(self._stores),
            trouble=self._fleet.trouble,
            publish=self._publish,
        )
        try:
            await keeper.open(partial(Catalogue, self._data.catalogue), len(self._stores))
        except ServiceBusError as error:
            raise StartError(str(error)) from error
        stack.push_async_callback(keeper.close)
        stack.push_async_callback(self._finish_burials)
        if settings.plan is not None:
            await bring_to_plan(PlannedEntities(keeper), settings.plan, now_ms=self._clock.wall_ms())
        return keeper

    async def _publish(self, change: Change) -> None:
        await self._fleet.publish(write(change))

    # --- what a worker is told ----------------------------------------------------------------------------------------

    def _make_start(self) -> Start:
        return Start(
            workers=self._settings.workers,
            folder=str(self._folder.path),
            stores=[str(directory) for directory in self._stores],
            usage=str(self._data.usage),
            sockets={way: [sock.fileno() for sock in sockets] for way, sockets in self._sockets.items()},
            tally=self._tally,
            settings=_told(self._settings),
            limits=self._settings.limits,
            keys=list(self._keys.all),
            certificate=self._certificate_files(),
            version=self._fleet.version,
            catalogue=self._written_copy(),
            outages=self._desk.outages(),
        )

    def _certificate_files(self) -> tuple[str, str]:
        return str(self._certificate.certificate_file), str(self._certificate.key_file)

    def _written_copy(self) -> bytes:
        """Of ten thousand entities that is some work, and all workers start at the same time."""
        if self._copy[0] != self._fleet.version:
            copy = Copy(
                [(Row.of(known.row), list(known.rules.values())) for known in self._keeper.entities.values()],
                list(self._keeper.doomed.values()),
                self._keeper.created_ms,
            )
            self._copy = (self._fleet.version, msgspec.msgpack.encode(copy))
        return self._copy[1]

    # --- what a worker tells ------------------------------------------------------------------------------------------

    def _note_burial(self, word: Buried) -> None:
        task = asyncio.get_running_loop().create_task(self._bury(word))
        self._burials.add(task)
        task.add_done_callback(self._burials.discard)

    async def _finish_burials(self) -> None:
        await asyncio.gather(*self._burials)

    async def _bury(self, word: Buried) -> None:
        try:
            await self._keeper.buried(word.entity, word.stores)
        except ServiceBusError as error:
            log.warning("a deleted entity is removed once more at the next start: %s", error)


def _told(settings: ServeSettings) -> dict[str, Any]:
    return {field.name: getattr(settings, field.name) for field in fields(ServeSettings) if field.name not in _KEPT}


async def delete_idle(keeper: Keeper, ask: Callable[[], Awaitable[list[dict[int, float]] | None]]) -> None:
    """Delete entities that delete themselves when nobody uses them, for ever.

    `ask` gets how long each worker's clients have not used each entity, by the ids of entities. An entity is idle if
    all workers say so; while a worker is down, nothing is deleted: its clients are about to come back.
    """
    while True:
        await asyncio.sleep(IDLE_LOOK_S)
        await look_once(keeper, ask)


async def look_once(keeper: Keeper, ask: Callable[[], Awaitable[list[dict[int, float]] | None]]) -> None:
    """Delete the entities that are idle now."""
    limits_s = {
        known.row.id: known.description.auto_delete_on_idle_ms / 1000
        for known in keeper.entities.values()
        if known.description.auto_delete_on_idle_ms < FOREVER_MS
    }
    answers = await ask() if limits_s else None
    if answers is None:
        return
    for known in list(keeper.entities.values()):
        row, limit_s = known.row, limits_s.get(known.row.id)
        if limit_s is None or min(answer.get(row.id, 0.0) for answer in answers) < limit_s:
            continue
        try:
            await keeper.delete(row.path)
        except ServiceBusError as error:  # with its topic, or then at a later look
            log.debug("an idle entity was not deleted: %s", error, extra={"path": row.path})
        else:
            log.info("%s was deleted: it was idle", row.kind, extra={"path": row.path, "idle_s": limit_s})


LONGEST_FOLDER: Final = 80
"""Characters: the name of a local socket has at most 107."""
_PREFIX: Final = "twinbus-"


class RunFolder:
    """Where the workers' sockets are, from the start of a server to its end: private, and with a short name."""

    def __init__(self, data: DataDirectory) -> None:
        """Made anew; one that a server left behind which was killed is removed. StartError."""
        self._record = data.path / "run"
        self._remove_old()
        parent = tempfile.gettempdir()
        try:
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent if len(parent) < LONGEST_FOLDER else "/tmp"))  # noqa: S108  # mkdtemp is safe there
        except OSError as error:
            raise StartError(f"no folder can be made in {parent}: {error.strerror}") from error
        write_atomically(self._record, f"{self.path}\n".encode())

    def remove(self) -> None:
        """Nobody needs it any more."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._record.unlink(missing_ok=True)

    def _remove_old(self) -> None:
        try:
            old = Path(self._record.read_text("utf-8").strip())
        except (OSError, UnicodeDecodeError):
            return
        if old.name.startswith(_PREFIX) and old.is_dir() and not old.is_symlink():
            shutil.rmtree(old, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class Found:
    """An entity that is there."""

    path: str
    description: Description


class PlannedEntities:
    """The catalogue, as a configuration file is applied to it before any worker is started."""

    def __init__(self, keeper: Keeper) -> None:
        """Opened before."""
        self._keeper = keeper

    async def get(self, path: str) -> Found:
        """An entity, with the size that it is shown with. EntityNotFound."""
        known = self._keeper.find(path)
        description = known.description
        if isinstance(description, SubscriptionDescription) or not known.is_partitioned:
            return Found(known.path, description)
        return Found(known.path, shown(description))

    async def create_queue(self, path: str, description: QueueDescription) -> object:
        """Make a queue."""
        return await self._keeper.create(path, description)

    async def create_topic(self, path: str, description: TopicDescription) -> object:
        """Make a topic."""
        return await self._keeper.create(path, description)

    async def create_subscription(
        self, topic: str, name: str, description: SubscriptionDescription, rule: RuleDescription | None = None
    ) -> object:
        """Make a subscription."""
        return await self._keeper.create_subscription(topic, name, description, rule)

    async def update(self, path: str, description: Description) -> object:
        """Describe an entity anew."""
        return await self._keeper.update(path, description)

    async def list_rules(self, subscription: str, *, skip: int, top: int) -> list[RuleDescription]:
        """Some rules, in the order of their making."""
        return list(self._keeper.find(subscription).rules.values())[skip : skip + top]

    async def create_rule(self, subscription: str, rule: RuleDescription) -> object:
        """Add a rule."""
        return await self._keeper.create_rule(subscription, rule)

    async def update_rule(self, subscription: str, rule: RuleDescription) -> object:
        """Put a rule in the place of another."""
        return await self._keeper.update_rule(subscription, rule)

    async def delete_rule(self, subscription: str, name: str) -> None:
        """Delete a rule."""
        await self._keeper.delete_rule(subscription, name)
