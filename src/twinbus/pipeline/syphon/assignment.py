"""The assignment of a task: its backlog queues, both namespaces, and the driver to report to.

Owns the connection strings, which `repr` does not show, the distribution of backlog queues over tasks, and the epochs
of exclusive receivers.
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
    """Connection settings for both namespaces, sent to tasks. `repr` shows no secrets."""

    primary_connection_string: str = field(repr=False)
    secondary_connection_string: str = field(repr=False)
    admin_connection_string: str = field(repr=False)
    """Connection string for administering the secondary."""
    primary_name: str
    """Name of the primary, which is part of the backlog queue names."""
    ca_certificates: str = field(default="", repr=False)
    """Additional trusted certificates as PEM text, because a task cannot read the driver's files."""

    @classmethod
    def of(
        cls, primary: str, secondary: str, admin: str, *, name: str | None = None, ca_files: Sequence[Path] = ()
    ) -> Pair:
        """Validate the user's input. Raise ValueError, OSError, or PipelineError if the primary's name is unknown."""
        endpoint, *_ = [ConnectionString.parse(text) for text in (primary, secondary, admin)]
        name = name or endpoint.namespace
        if name is None:
            raise PipelineError(
                f"the name of the primary cannot be read from its host {endpoint.host!r}: set --primary-name"
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
        """Return a TLS context that trusts these certificates and the machine's certificates."""
        context = ssl.create_default_context()
        if self.ca_certificates:
            context.load_verify_locations(cadata=self.ca_certificates)
        return context

    def factories(self) -> tuple[MessagingFactory, MessagingFactory]:
        """Return factories for the primary and the secondary."""
        tls = self.tls_context()
        primary = MessagingFactory.from_connection_string(self.primary_connection_string, tls=tls)
        return primary, MessagingFactory.from_connection_string(self.secondary_connection_string, tls=tls)

    def manager(self) -> NamespaceManager:
        """Return a manager that lists the backlog queues."""
        return NamespaceManager.from_connection_string(self.admin_connection_string, tls=self.tls_context())


async def count_parked(manager: NamespaceManager, primary_name: str) -> dict[str, int]:
    """Return the number of parked messages in each backlog queue, from one listing of all queues."""
    return {
        queue.path: queue.runtime.active_count + queue.runtime.deferred_count
        async for queue in manager.get_queues(backlog_queue_prefix(primary_name))
        if backlog_queue_index(queue.path, primary_name) is not None
    }


async def lock_durations(manager: NamespaceManager, primary_name: str) -> dict[str, int]:
    """Return the lock duration of each backlog queue in milliseconds, which is needed to compute parked times."""
    return {
        queue.path: queue.description.lock_duration_ms
        async for queue in manager.get_queues(backlog_queue_prefix(primary_name))
        if backlog_queue_index(queue.path, primary_name) is not None
    }


# --- assignments ------------------------------------------------------------------------------------------------------

MAX_ATTEMPTS: Final = 100
"""Upper bound on the number of attempts that Spark makes for one task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverAddress:
    """Address at which the driver listens for tasks."""

    host: str
    port: int
    token: str = field(repr=False)
    """Secret that identifies the tasks of this driver."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """Assignment of one task, sent as partition data so that plans and logs do not show the assignment."""

    pair: Pair
    backlog_queues: tuple[str, ...]
    driver_address: DriverAddress
    round: int
    group: int
    """Index of this task in its round."""
    driver_started_ms: int
    """Start time of the driver according to its own clock. The syphon that was started last has precedence."""
    poll_s: float
    deduct: bool
    journal_dir: str | None
    not_found_grace_s: float = NOT_FOUND_GRACE_S
    lock_durations_ms: Mapping[str, int] = field(default_factory=dict)
    """Lock duration of each backlog queue in milliseconds."""

    def epoch(self, attempt: int) -> int:
        """Return an epoch that is higher than the epochs of all earlier tasks of this driver.

        A restarted task thus takes over the queues of a lost task, even if the lost task still runs. The epoch is based
        on the driver's start time, so the syphon that was started last gets the queues, not the syphon with the newest
        task.
        """
        return self.driver_started_ms + MAX_ATTEMPTS * self.round + min(attempt, MAX_ATTEMPTS - 1)


def spread_queues(parked: Mapping[str, int], max_tasks: int) -> list[tuple[str, ...]]:
    """Spread backlog queues over tasks so that each task has similar numbers of messages and queues.

    The fullest queues are assigned first.
    """
    groups: list[list[str]] = [[] for _ in range(max(1, min(max_tasks, len(parked))))]
    weights = [0] * len(groups)
    for queue in sorted(parked, key=lambda path: (-parked[path], path)):
        lightest = weights.index(min(weights))
        groups[lightest].append(queue)
        weights[lightest] += parked[queue] + 1
    return [tuple(group) for group in groups]
