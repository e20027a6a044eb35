"""What changes while a server runs: keys, certificate and log level, on SIGHUP or by `twinbus key`.

    reloader = Reloader(settings, data, server, ready, reread)
    await reloader.reload()                # SIGHUP: read everything again
    await reloader.handle(order)           # twinbus key

Owns: that changes come one after the other, that each is made as a whole or not at all, and that the ready file says
what is true now. Everything is read and checked before anything is changed; an unusable file is logged, and the
server goes on as before. Reading takes place on a thread, so messages flow meanwhile.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import os
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Final, Protocol

from twinbus.model.authorization import RIGHTS
from twinbus.server import entity_keys, identity, key_file
from twinbus.server.identity import Identity
from twinbus.server.key_file import KeyRefused
from twinbus.server.key_socket import CONFIGURATION_FILE, Answer, Shown, shown
from twinbus.server.keys import Key, KeyRing, Right
from twinbus.server.settings import ServeSettings, StartError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twinbus.server.data_directory import DataDirectory
    from twinbus.server.entity_keys import Manager
    from twinbus.server.key_file import KeyRule, Order
    from twinbus.server.ready_file import ReadyFile

log: Final = logging.getLogger(__name__)

RELOADED: Final = frozenset({"log_level", "tls_cert", "tls_key", "keys"})
"""Settings that a reload changes. All others are those of the start."""


class Serving(Protocol):
    """A server that runs, in one process or several."""

    async def apply(self, found: Identity) -> ReadyFile:
        """Use these keys, this certificate and log level; when it returns, all processes do."""

    @property
    def manager(self) -> Manager:
        """Manages the entities."""

    async def settle_keys(self) -> None:
        """Wait until every link has ended that changed keys do not allow any more."""


class Reloader:
    """Changes of one server."""

    def __init__(
        self,
        settings: ServeSettings,
        data: DataDirectory,
        serving: Serving,
        ready: ReadyFile,
        reread: Callable[[], ServeSettings],
    ) -> None:
        """`settings` are those of the start; `reread` returns what the command line and the file say now."""
        self._settings = settings
        self._data = data
        self._serving = serving
        self._ready = ready
        self._reread = reread
        self._one_at_a_time = asyncio.Lock()

    async def reload(self) -> None:
        """Read the configuration again and use what can be changed; log why not, if it cannot be."""
        async with self._one_at_a_time:
            try:
                settings, found = await asyncio.to_thread(self._read)
                await self._apply(settings, found)
            except StartError as error:
                log.error("nothing was reloaded, and the server goes on as before: %s", error)  # noqa: TRY400
            except Exception:
                log.exception("nothing was reloaded, and the server goes on as before")
            else:
                log.info("reloaded", extra={"keys": len(found.keys.all), "log_level": found.log_level})

    async def handle(self, order: Order) -> Answer:
        """List the keys, or change one of them. KeyRefused; StartError becomes one."""
        async with self._one_at_a_time:
            if order.entity:
                rules = await entity_keys.change(self._serving.manager, order, dt.datetime.now(dt.UTC))
                await self._serving.settle_keys()
                return self._answer(rules, order)
            try:
                rules = await asyncio.to_thread(key_file.read, self._data.keys)
                if order.do != "list":
                    rules = await self._change(rules, order)
            except StartError as error:
                raise KeyRefused(str(error)) from error
            return self._answer(rules, order)

    async def _change(self, rules: Sequence[KeyRule], order: Order) -> tuple[KeyRule, ...]:
        if any(key.name == order.name for key in self._settings.keys):
            raise KeyRefused(
                f"key {order.name!r} is one of the configuration file: change it there, and send SIGHUP to process "
                f"{os.getpid()}"
            )
        after = key_file.change(rules, order, dt.datetime.now(dt.UTC))
        ring = identity.complete_keys(self._settings, KeyRing.of(after, self._data.keys))
        await asyncio.to_thread(key_file.write, self._data.keys, after)
        await self._apply(self._settings, Identity(ring))
        log.info("keys changed", extra={"change": order.do, "key": order.name})
        return after

    def _read(self) -> tuple[ServeSettings, Identity]:
        wanted = self._reread()
        fixed = [
            field.name
            for field in fields(ServeSettings)
            if field.name not in RELOADED and getattr(wanted, field.name) != getattr(self._settings, field.name)
        ]
        if fixed:
            log.warning("changed settings have no effect before a restart: %s", ", ".join(map(_key, fixed)))
        settings = replace(self._settings, **{name: getattr(wanted, name) for name in RELOADED})
        return settings, identity.reload(settings, self._data)

    async def _apply(self, settings: ServeSettings, found: Identity) -> None:
        ready = await self._serving.apply(found)
        self._settings = settings
        if ready == self._ready:
            return
        self._ready = ready
        if settings.ready_file is not None:
            try:
                await asyncio.to_thread(ready.write, settings.ready_file)
            except StartError as error:
                log.error("the ready file is out of date: %s", error)  # noqa: TRY400

    def _answer(self, rules: Sequence[KeyRule], order: Order) -> Answer:
        own = [shown(rule, show=order.show, connect=self._connection_string(rule, order)) for rule in rules]
        configured = (
            []
            if order.entity
            else [
                Shown(key.name, tuple(right for right in RIGHTS if Right(right) in key.rights), CONFIGURATION_FILE)
                for key in self._settings.keys
            ]
        )
        return Answer((*own, *configured), os.getpid())

    def _connection_string(self, rule: KeyRule, order: Order) -> str | None:
        if not order.show:
            return None
        ports = {way: getattr(self._ready, f"{way}_port") for way in ("amqp", "amqps")}
        text = identity.messaging(self._settings, ports, Key(rule.name, rule.primary))
        return f"{text};EntityPath={order.entity}" if text is not None and order.entity else text


def _key(field: str) -> str:
    """Return the name that a setting has in the configuration file."""
    from twinbus.server.config.toml import SETTINGS  # noqa: PLC0415  # reads filters, too: not before it is needed

    names = {name: key for key, (name, _) in SETTINGS.items()}
    return names.get(field, "queues and topics" if field == "plan" else field)
