"""Changes to keys, certificate and log level while a server runs, on SIGHUP or through `twinbus key`.

    reloader = Reloader(settings, data_directory, server, ready_file, reread_settings)
    await reloader.reload()                # SIGHUP: read everything again
    await reloader.handle_command(command) # twinbus key

Owns: the order of changes. Changes are made one at a time, each completely or not at all, and the ready file is kept up
to date. Everything is read and checked before anything is changed. If a file is not usable, the error is logged and the
server continues unchanged. Files are read on a thread, so that the server keeps serving messages.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import os
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Final, Protocol

from twinbus.model.authorization import RIGHTS
from twinbus.server.auth import entity_keys, key_file
from twinbus.server.auth.key_file import KeyChangeRefused
from twinbus.server.auth.key_socket import CONFIGURATION_FILE, KeyCommandReply, KeyView, make_key_view
from twinbus.server.auth.keys import Key, KeyRing, Right
from twinbus.server.config.settings import ServeSettings, StartError
from twinbus.server.runtime import live_settings
from twinbus.server.runtime.live_settings import LiveSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twinbus.server.auth.entity_keys import EntityManager
    from twinbus.server.auth.key_file import KeyCommand, KeyRule
    from twinbus.server.runtime.data_directory import DataDirectory
    from twinbus.server.runtime.ready_file import ReadyFile

log: Final = logging.getLogger(__name__)

RELOADABLE_SETTINGS: Final = frozenset({"log_level", "tls_cert", "tls_key", "keys"})
"""Settings that a reload can change. All other settings need a restart."""


class ReloadableServer(Protocol):
    """A running server, in one process or several."""

    async def apply(self, changes: LiveSettings) -> ReadyFile:
        """Apply keys, certificate and log level in all processes, and return the new ready file."""

    @property
    def administration(self) -> EntityManager:
        """Operations on the entities of the namespace, for commands that change an entity's keys."""

    async def wait_for_revocations(self) -> None:
        """Wait until all links whose rights are revoked are closed."""


class Reloader:
    """Reloads settings and handles key commands for one server."""

    def __init__(
        self,
        settings: ServeSettings,
        data_directory: DataDirectory,
        server: ReloadableServer,
        ready_file: ReadyFile,
        reread_settings: Callable[[], ServeSettings],
    ) -> None:
        """Create a reloader; `settings` are from startup, and `reread_settings` returns the current settings."""
        self._settings = settings
        self._data_directory = data_directory
        self._server = server
        self._ready_file = ready_file
        self._reread_settings = reread_settings
        self._reload_lock = asyncio.Lock()

    async def reload(self) -> None:
        """Reread the configuration and apply reloadable settings. On failure, log the reason and change nothing."""
        async with self._reload_lock:
            try:
                settings, changes = await asyncio.to_thread(self._read_changes)
                await self._apply(settings, changes)
            except StartError as error:
                log.error("reload failed, the server continues unchanged: %s", error)  # noqa: TRY400
            except Exception:
                log.exception("reload failed, the server continues unchanged")
            else:
                log.info("reloaded", extra={"keys": len(changes.keys.all_keys), "log_level": changes.log_level})

    async def handle_command(self, command: KeyCommand) -> KeyCommandReply:
        """List the keys, or change one of them. Raise KeyChangeRefused if the change is not possible."""
        async with self._reload_lock:
            if command.entity:
                rules = await entity_keys.apply_command(self._server.administration, command, dt.datetime.now(dt.UTC))
                await self._server.wait_for_revocations()
                return self._make_reply(rules, command)
            try:
                rules = await asyncio.to_thread(key_file.read_rules, self._data_directory.keys_file)
                if command.do != "list":
                    rules = await self._change_keys(rules, command)
            except StartError as error:
                raise KeyChangeRefused(str(error)) from error
            return self._make_reply(rules, command)

    async def _change_keys(self, rules: Sequence[KeyRule], command: KeyCommand) -> tuple[KeyRule, ...]:
        if any(key.name == command.name for key in self._settings.keys):
            raise KeyChangeRefused(
                f"key {command.name!r} is in the configuration file: change it there, and send SIGHUP to process "
                f"{os.getpid()}"
            )
        after = key_file.apply_command(rules, command, dt.datetime.now(dt.UTC))
        ring = live_settings.add_configured_keys(
            self._settings, KeyRing.from_rules(after, self._data_directory.keys_file)
        )
        await asyncio.to_thread(key_file.write_rules, self._data_directory.keys_file, after)
        await self._apply(self._settings, LiveSettings(ring))
        log.info("keys changed", extra={"change": command.do, "key": command.name})
        return after

    def _read_changes(self) -> tuple[ServeSettings, LiveSettings]:
        reread = self._reread_settings()
        fixed = [
            field.name
            for field in fields(ServeSettings)
            if field.name not in RELOADABLE_SETTINGS
            and getattr(reread, field.name) != getattr(self._settings, field.name)
        ]
        if fixed:
            log.warning("changed settings have no effect before a restart: %s", ", ".join(map(_config_key, fixed)))
        settings = replace(self._settings, **{name: getattr(reread, name) for name in RELOADABLE_SETTINGS})
        return settings, live_settings.read_live_settings(settings, self._data_directory)

    async def _apply(self, settings: ServeSettings, changes: LiveSettings) -> None:
        ready = await self._server.apply(changes)
        self._settings = settings
        if ready == self._ready_file:
            return
        self._ready_file = ready
        if settings.ready_file is not None:
            try:
                await asyncio.to_thread(ready.write, settings.ready_file)
            except StartError as error:
                log.error("the ready file is out of date: %s", error)  # noqa: TRY400

    def _make_reply(self, rules: Sequence[KeyRule], command: KeyCommand) -> KeyCommandReply:
        own = [
            make_key_view(rule, include_secrets=command.show, connection_string=self._connection_string(rule, command))
            for rule in rules
        ]
        configured = (
            []
            if command.entity
            else [
                KeyView(key.name, tuple(right for right in RIGHTS if Right(right) in key.rights), CONFIGURATION_FILE)
                for key in self._settings.keys
            ]
        )
        return KeyCommandReply((*own, *configured), os.getpid())

    def _connection_string(self, rule: KeyRule, command: KeyCommand) -> str | None:
        if not command.show:
            return None
        ports = {protocol: getattr(self._ready_file, f"{protocol}_port") for protocol in ("amqp", "amqps")}
        text = live_settings.messaging_connection_string(self._settings, ports, Key(rule.name, rule.primary))
        return f"{text};EntityPath={command.entity}" if text is not None and command.entity else text


def _config_key(field: str) -> str:
    """Return the name that a setting has in the configuration file."""
    from twinbus.server.config.toml import SETTING_READERS  # noqa: PLC0415  # imports the filters, too

    names = {name: key for key, (name, _) in SETTING_READERS.items()}
    return names.get(field, "queues and topics" if field == "plan" else field)
