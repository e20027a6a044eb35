"""Apply a configuration file to a namespace in this process, and return its entities.

    entities = await apply_config(folder, "twinbus.toml", '[[queues]]\nname = "orders"')
    assert entities["orders"].description.max_delivery_count == 10

The server is the one that `twinbus serve --config` starts, with real stores and sockets. It is stopped at once.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from twinbus.broker.entities.subscription import Subscription
from twinbus.server.config.file import read_config
from twinbus.server.config.settings import ServeSettings
from twinbus.server.runtime.data_directory import DataDirectory
from twinbus.server.runtime.single_process import SingleProcessServer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from twinbus.broker.namespace import Namespace
    from twinbus.model.rule import RuleDescription
    from twinbus.server.catalogue.local_catalogue import LocalCatalogue

FREE_PORTS = {f"{name}_port": 0 for name in ("amqp", "amqps", "http", "https")}


@dataclass(frozen=True)
class AppliedEntity:
    """An entity after the configuration was applied."""

    description: Any
    updated_ms: int
    rules: dict[str, RuleDescription]


def emulator_config(*, queues: list[Any] | None = None, topics: list[Any] | None = None) -> str:
    """A Config.json with one namespace."""
    namespace = {"Name": "sbemulatorns", "Queues": queues or [], "Topics": topics or []}
    return json.dumps({"UserConfig": {"Namespaces": [namespace], "Logging": {"Type": "Console"}}}, indent=2)


async def apply_config(
    folder: Path, name: str, content: str, *, before_apply: Callable[[LocalCatalogue], Awaitable[object]] | None = None
) -> dict[str, AppliedEntity]:
    """Start a server with that file and return all entities. `before_apply` is called once the server serves."""
    file = folder / name
    file.write_text(content)
    values = {"name": "contoso", **read_config(file, None), **FREE_PORTS, "data": folder / "data", "min_free_bytes": 0}
    settings = ServeSettings(**values)
    with DataDirectory(settings.data) as data:
        async with contextlib.AsyncExitStack() as stack:
            server = SingleProcessServer(settings, data)
            await server.start(stack)
            if before_apply is not None:
                await before_apply(server.service.catalogue)
            return _read_entities(server.service.namespace)


def _read_entities(namespace: Namespace) -> dict[str, AppliedEntity]:
    return {
        entity.path: AppliedEntity(
            entity.description,
            entity.updated_ms,
            {rule.description.name: rule.description for rule in entity.rules.values()}
            if isinstance(entity, Subscription)
            else {},
        )
        for entity in namespace.entities.values()
    }
