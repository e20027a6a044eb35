"""The two namespaces, as driver and tasks reach them, and the backlog queues between them.

Owns: the connection strings, which no `repr` shows, and the counts of what is parked.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from twinbus.client import ConnectionString, MessagingFactory, NamespaceManager
from twinbus.client.pairing.backlog import index_of, prefix_of
from twinbus.pipeline.errors import PipelineError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """How to reach both. It travels to the tasks, and shows nothing of itself anywhere."""

    primary: str = field(repr=False)
    secondary: str = field(repr=False)
    admin: str = field(repr=False)
    """Of the secondary, as for its administration."""
    primary_name: str
    """What backlog queues are named after."""
    authorities: str = field(default="", repr=False)
    """Certificates to trust beside those of each machine, as PEM: a task has no file of the driver's."""

    @classmethod
    def of(
        cls, primary: str, secondary: str, admin: str, *, name: str | None = None, ca_files: Sequence[Path] = ()
    ) -> Pair:
        """Check what the user has typed. ValueError, OSError; PipelineError where a name is missing."""
        where, *_ = [ConnectionString.parse(text) for text in (primary, secondary, admin)]
        name = name or where.namespace
        if name is None:
            raise PipelineError(
                f"the name of the primary cannot be read from its host {where.host!r}: say --primary-name"
            )
        pair = cls(
            primary=primary,
            secondary=secondary,
            admin=admin,
            primary_name=name,
            authorities="\n".join(file.read_text() for file in ca_files),
        )
        pair.trust()
        return pair

    def trust(self) -> ssl.SSLContext:
        """What takes the certificates of these authorities, and of this machine's."""
        context = ssl.create_default_context()
        if self.authorities:
            context.load_verify_locations(cadata=self.authorities)
        return context

    def factories(self) -> tuple[MessagingFactory, MessagingFactory]:
        """The primary's and the secondary's."""
        tls = self.trust()
        primary = MessagingFactory.from_connection_string(self.primary, tls=tls)
        return primary, MessagingFactory.from_connection_string(self.secondary, tls=tls)

    def manager(self) -> NamespaceManager:
        """Who lists the backlog queues."""
        return NamespaceManager.from_connection_string(self.admin, tls=self.trust())


async def look(manager: NamespaceManager, primary_name: str) -> dict[str, int]:
    """Each backlog queue, and how many messages are parked there: one request, however many there are."""
    return {
        found.path: found.runtime.active_count + found.runtime.deferred_count
        async for found in manager.get_queues(prefix_of(primary_name))
        if index_of(found.path, primary_name) is not None
    }


async def lock_durations(manager: NamespaceManager, primary_name: str) -> dict[str, int]:
    """Each backlog queue, and how many milliseconds its locks last: by that a message tells how long it was parked."""
    return {
        found.path: found.description.lock_duration_ms
        async for found in manager.get_queues(prefix_of(primary_name))
        if index_of(found.path, primary_name) is not None
    }
