"""Options of a pairing.

Owns: the options, their defaults and their allowed ranges.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from twinbus.client.pairing.delivery_failure import NOT_FOUND_GRACE_S
from twinbus.model.errors import InvalidArgument
from twinbus.model.path import NAMESPACE_NAME
from twinbus.model.times import duration_s

if TYPE_CHECKING:
    from pathlib import Path

    from twinbus.client.factory import MessagingFactory
    from twinbus.client.management import NamespaceManager
    from twinbus.client.pairing.triggers import Triggers

_MINUTE: Final = dt.timedelta(minutes=1)


@dataclass(kw_only=True)
class PairedNamespaceOptions:
    """Options that every kind of pairing needs."""

    secondary_factory: MessagingFactory
    secondary_namespace_manager: NamespaceManager
    """The manager that creates the backlog queues; its key needs the Manage right."""
    failover_interval: dt.timedelta | float = _MINUTE
    """The time from the first failed send until sends are parked; 0 parks sends at once (default: 1 minute)."""

    def check(self) -> None:
        """Raise InvalidArgument if an option is out of range."""
        _check_range("failover_interval", self.failover_interval, 0, 3600)


@dataclass(kw_only=True)
class SendAvailabilityPairedNamespaceOptions(PairedNamespaceOptions):
    """Options for a pairing that parks sends in the secondary's backlog queues while the primary is down."""

    backlog_queue_count: int = 10
    """The number of backlog queues to create; after pairing, the number of backlog queues that exist (default: 10)."""
    enable_syphon: bool = False
    """Move parked messages to the primary. Enable the syphon in at least one program of the application."""
    ping_primary_interval: dt.timedelta | float = _MINUTE
    """The interval between pings of an entity that failed over (default: 1 minute)."""
    primary_attempt_timeout: dt.timedelta | float | None = None
    """The time a send waits for the primary (default: half the operation timeout). The remaining time is for
    parking."""
    hold_during_failover_interval: bool = False
    """Hold a send that fails within the failover interval until the message is delivered or parked, instead of raising
    the error."""
    park_on_fragment_outage: bool = False
    """If a fragment of a partitioned entity is down, park the messages whose key maps to that fragment, instead of
    failing their sends."""
    deduct_parked_time: bool = False
    """Subtract the time a message was parked from its time to live; dead-letter a message that expired while parked."""
    primary_namespace_name: str | None = None
    """The namespace name used in the names of backlog queues. This option is required if the primary's host is an IP
    address or `localhost`."""
    require_secondary: bool = True
    """Fail pairing if the secondary cannot be prepared (default: True). If False, prepare the secondary in the
    background, with retries."""
    syphon_poll: dt.timedelta | float = dt.timedelta(minutes=15)
    """The time a pump of the syphon waits for a message before it withdraws its credit and grants it again (default:
    15 minutes)."""
    backlog_cool_down: dt.timedelta | float = dt.timedelta(seconds=30)
    """The time a failed backlog queue is not used for parking (default: 30 s)."""
    close_grace: dt.timedelta | float = dt.timedelta(seconds=5)
    """The time that the second factory of the pair may stay open after one factory was closed (default: 5 s). This
    option applies to programs that run the syphon."""
    fault_grace: dt.timedelta | float = dt.timedelta(seconds=5)
    """The time that the second factory of the pair may stay open after one factory faulted (default: 5 s). This option
    applies to programs that run the syphon."""
    not_found_grace: dt.timedelta | float = dt.timedelta(seconds=NOT_FOUND_GRACE_S)
    """The time messages wait for a destination that does not exist (default: 1 hour). After that, the syphon
    dead-letters the parked messages, and the spool moves its messages to `refused/`."""
    alarm_after: dt.timedelta | float = dt.timedelta(minutes=15)
    """The time messages may stay parked before an alarm is raised (default: 15 minutes)."""
    spool_dir: Path | str | None = None
    """The folder that stores messages while both namespaces are down. If None, sends fail while both are down."""
    spool_max_bytes: int = 1 << 30
    """The maximum size of the spool in bytes (default: 1 GiB)."""
    journal_dir: Path | str | None = None
    """The folder of the journal that records the outcome of every send, for audits (default: no journal)."""
    triggers: Triggers = field(default_factory=dict)
    """Failure classes that replace the default classes of some errors. `triggers.AS_DOCUMENTED` follows Microsoft's
    documentation."""

    def check(self) -> None:
        """Raise InvalidArgument if an option is out of range."""
        super().check()
        if self.backlog_queue_count < 1:
            raise InvalidArgument(f"backlog_queue_count is {self.backlog_queue_count}; it must be at least 1")
        name = self.primary_namespace_name
        if name and not NAMESPACE_NAME.fullmatch(name):
            raise InvalidArgument(
                f"primary_namespace_name is {name!r:.80}; a namespace name starts with a letter and has at most 50"
                " letters, digits and hyphens"
            )
        if self.spool_max_bytes < 1:
            raise InvalidArgument(f"spool_max_bytes is {self.spool_max_bytes}; it must be at least 1")
        _check_range("ping_primary_interval", self.ping_primary_interval, 1, 1800)
        _check_range("syphon_poll", self.syphon_poll, 1, 86_400)
        _check_range("backlog_cool_down", self.backlog_cool_down, 0, 3600)
        _check_range("close_grace", self.close_grace, 0, 3600)
        _check_range("fault_grace", self.fault_grace, 0, 3600)
        _check_range("not_found_grace", self.not_found_grace, 0, 30 * 86_400)
        _check_range("alarm_after", self.alarm_after, 1, 86_400)
        if self.primary_attempt_timeout is not None:
            _check_range("primary_attempt_timeout", self.primary_attempt_timeout, 0.001, 3600)


def _check_range(name: str, value: dt.timedelta | float, lowest_s: float, highest_s: float) -> None:
    seconds = duration_s(value)
    if not lowest_s <= seconds <= highest_s:
        raise InvalidArgument(f"{name} is {seconds:g} s; it can be {lowest_s:g} s to {highest_s:g} s")
