"""What an application says when it pairs two namespaces.

Owns: the options, their defaults and their ranges.
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
    """What any pairing needs."""

    secondary_factory: MessagingFactory
    secondary_namespace_manager: NamespaceManager
    """With a key that may Manage: backlog queues are made by it."""
    failover_interval: dt.timedelta | float = _MINUTE
    """From the first failure of a send until sends are parked; 0: at once."""

    def check(self) -> None:
        """InvalidArgument names what cannot be."""
        _check_range("failover_interval", self.failover_interval, 0, 3600)


@dataclass(kw_only=True)
class SendAvailabilityPairedNamespaceOptions(PairedNamespaceOptions):
    """Sends survive the loss of the primary: they are parked in backlog queues of the secondary."""

    backlog_queue_count: int = 10
    """How many are wanted; after pairing: how many were found or made."""
    enable_syphon: bool = False
    """Take parked messages back to the primary. At least one program of the application should."""
    ping_primary_interval: dt.timedelta | float = _MINUTE
    """How often an entity that failed over is pinged."""
    primary_attempt_timeout: dt.timedelta | float | None = None
    """How long a silent primary is waited for; None: half the operation timeout. The rest is for parking."""
    hold_during_failover_interval: bool = False
    """A send that fails within the failover interval waits until it is delivered or parked; else it raises."""
    park_on_fragment_outage: bool = False
    """Park a keyed send to a partitioned entity whose fragment is down, and only such, instead of failing it."""
    deduct_parked_time: bool = False
    """Take the time for which a message was parked off its time to live; what expired is dead-lettered."""
    primary_namespace_name: str | None = None
    """What backlog queues are named after, where the primary's host is an address or `localhost`."""
    require_secondary: bool = True
    """False: start at once, and prepare the secondary in the background, again and again until it is there."""
    syphon_poll: dt.timedelta | float = dt.timedelta(minutes=15)
    """How long the syphon waits for a message before it asks anew."""
    backlog_cool_down: dt.timedelta | float = dt.timedelta(seconds=30)
    """How long a backlog queue that failed is left out."""
    close_grace: dt.timedelta | float = dt.timedelta(seconds=5)
    """How long the other factory may stay open when one was closed; only where the syphon runs."""
    fault_grace: dt.timedelta | float = dt.timedelta(seconds=5)
    """The same when one has faulted."""
    not_found_grace: dt.timedelta | float = dt.timedelta(seconds=NOT_FOUND_GRACE_S)
    """How long messages wait for a destination that does not exist. After that the syphon dead-letters parked ones, and
    the spool moves its own to `refused/`."""
    alarm_after: dt.timedelta | float = dt.timedelta(minutes=15)
    """How long messages may be parked before an alarm is raised."""
    spool_dir: Path | str | None = None
    """A folder where messages go when both namespaces are down; None: such a send fails."""
    spool_max_bytes: int = 1 << 30
    """How much may be there."""
    journal_dir: Path | str | None = None
    """Where every send's outcome is written down, for the audit; None: nowhere."""
    triggers: Triggers = field(default_factory=dict)
    """Which failures trigger failover, where that differs from the errors' own classes; `triggers.AS_DOCUMENTED` is
    the reading of Microsoft's documents."""

    def check(self) -> None:
        """InvalidArgument names what cannot be."""
        super().check()
        if self.backlog_queue_count < 1:
            raise InvalidArgument(f"backlog_queue_count is {self.backlog_queue_count}; it must be at least 1")
        name = self.primary_namespace_name
        if name and not NAMESPACE_NAME.fullmatch(name):
            raise InvalidArgument(
                f"primary_namespace_name is {name!r:.80}; a namespace's name has letters, digits and hyphens, 50 at"
                " most, and a letter first"
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
