"""What a task is to do: which backlog queues, between which namespaces, and whom it tells.

Owns: the connection strings, which no `repr` shows; how backlog queues are spread over tasks, and the epochs with which
they are claimed.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from twinbus.client import ConnectionString, MessagingFactory, NamespaceManager
from twinbus.client.pairing.backlog.rotation import backlog_queue_index, backlog_queue_prefix
from twinbus.client.pairing.delivery_failure import NOT_FOUND_GRACE_S
from twinbus.pipeline.errors import PipelineError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

# --- the pair ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """How driver and tasks reach both namespaces. It travels to the tasks, and shows nothing of itself anywhere."""

    primary_connection_string: str = field(repr=False)
    secondary_connection_string: str = field(repr=False)
    admin_connection_string: str = field(repr=False)
    """Of the secondary, as for its administration."""
    primary_name: str
    """What backlog queues are named after."""
    ca_certificates: str = field(default="", repr=False)
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
            primary_connection_string=primary,
            secondary_connection_string=secondary,
            admin_connection_string=admin,
            primary_name=name,
            ca_certificates="\n".join(file.read_text() for file in ca_files),
        )
        pair.tls_context()
        return pair

    def tls_context(self) -> ssl.SSLContext:
        """What takes the certificates of these authorities, and of this machine's."""
        context = ssl.create_default_context()
        if self.ca_certificates:
            context.load_verify_locations(cadata=self.ca_certificates)
        return context

    def factories(self) -> tuple[MessagingFactory, MessagingFactory]:
        """The primary's and the secondary's."""
        tls = self.tls_context()
        primary = MessagingFactory.from_connection_string(self.primary_connection_string, tls=tls)
        return primary, MessagingFactory.from_connection_string(self.secondary_connection_string, tls=tls)

    def manager(self) -> NamespaceManager:
        """Who lists the backlog queues."""
        return NamespaceManager.from_connection_string(self.admin_connection_string, tls=self.tls_context())


async def count_parked(manager: NamespaceManager, primary_name: str) -> dict[str, int]:
    """Each backlog queue, and how many messages are parked there: one request, however many there are."""
    return {
        found.path: found.runtime.active_count + found.runtime.deferred_count
        async for found in manager.get_queues(backlog_queue_prefix(primary_name))
        if backlog_queue_index(found.path, primary_name) is not None
    }


async def lock_durations(manager: NamespaceManager, primary_name: str) -> dict[str, int]:
    """Each backlog queue, and how many milliseconds its locks last: by that a message tells how long it was parked."""
    return {
        found.path: found.description.lock_duration_ms
        async for found in manager.get_queues(backlog_queue_prefix(primary_name))
        if backlog_queue_index(found.path, primary_name) is not None
    }


# --- assignments ------------------------------------------------------------------------------------------------------

MAX_ATTEMPTS: Final = 100
"""More than Spark makes of one task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverAddress:
    """Where the driver listens."""

    host: str
    port: int
    token: str = field(repr=False)
    """What shows that a task is one of this driver's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """Of one task. It travels inside a partition, so that no plan and no log shows it."""

    pair: Pair
    backlog_queues: tuple[str, ...]
    driver_address: DriverAddress
    round: int
    group: int
    """The place of this task among those of its round."""
    driver_started_ms: int
    """When the driver began, by its clock: the age of this syphon among others."""
    poll_s: float
    deduct: bool
    journal_dir: str | None
    not_found_grace_s: float = NOT_FOUND_GRACE_S
    lock_durations_ms: Mapping[str, int] = field(default_factory=dict)
    """How long each backlog queue locks messages, in milliseconds."""

    def epoch(self, attempt: int) -> int:
        """Newer than any earlier task of this driver, and no newer than it was when the driver began.

        So a task that is started again takes its queues from the one that was lost, whether or not that is known to be
        gone; and of several syphons the one that was started last has the queues (Q17), not the one with the youngest
        task.
        """
        return self.driver_started_ms + MAX_ATTEMPTS * self.round + min(attempt, MAX_ATTEMPTS - 1)


def spread_queues(parked: Mapping[str, int], max_tasks: int) -> list[tuple[str, ...]]:
    """Backlog queues by task: each has about as many messages to move, and about as many queues. Fullest first."""
    groups: list[list[str]] = [[] for _ in range(max(1, min(max_tasks, len(parked))))]
    weights = [0] * len(groups)
    for queue in sorted(parked, key=lambda path: (-parked[path], path)):
        lightest = weights.index(min(weights))
        groups[lightest].append(queue)
        weights[lightest] += parked[queue] + 1
    return [tuple(group) for group in groups]
