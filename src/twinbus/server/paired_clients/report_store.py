"""Reports from paired clients to their secondary: the last report from each client, until it expires.

Owns: the stored reports, their expiry, and the rights to report for a primary and to read its reports. The store is not
an entity, so it is not listed, not counted and not kept across restarts. `report_format` defines a valid report.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from twinbus.model.annotations import BACKLOG_QUEUE_INFIX
from twinbus.model.errors import QuotaExceeded, Unauthorized
from twinbus.model.path import canonical_key
from twinbus.model.times import datetime_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from twinbus.broker.clock import Clock, Timer, Timers
    from twinbus.server.auth.keys import Right
    from twinbus.server.auth.sas import Grant
    from twinbus.server.paired_clients.report_format import ClientDeparture, Report

NODE_NAME: Final = "$pairing"
MAX_CLIENTS: Final = 10_000
MAX_TOTAL_BYTES: Final = 67_108_864
"""The maximum total size of all reports: a thousand reports of the largest size, or many more of the usual size."""
MISSED_INTERVALS: Final = 3
"""The number of report intervals after which a silent client's report expires."""
MAX_PAGE_BYTES: Final = 1_048_576
MAX_PAGE_REPORTS: Final = 1_000
BACKLOG_QUEUE_PATH: Final = re.compile(rf"([^/]+)/{BACKLOG_QUEUE_INFIX}/[0-9]+")
"""The canonical path of a backlog queue; the pattern's group is the primary."""


@dataclass(frozen=True, slots=True)
class StoredReport:
    """A report with its deadline."""

    content: bytes
    """The report as JSON, with the time of the report added."""
    deadline_s: float
    """The time of expiry on the monotonic clock."""


class ReportPage(NamedTuple):
    """A page of reports."""

    reports: list[bytes]
    next: int | None
    """How many reports to skip for the next page; None if this is the last page."""


class ReportStore:
    """The reports that paired clients sent to this namespace, in memory."""

    def __init__(self, clock: Clock, timers: Timers) -> None:
        """Create an empty store."""
        self._clock = clock
        self._timers = timers
        self._reports: dict[tuple[str, str, str], StoredReport] = {}
        """Reports by canonical primary, client and instance."""
        self._total_bytes = 0
        self._expiry_timer: Timer | None = None
        self._expiry_s = 0.0

    def __len__(self) -> int:
        return len(self._reports)

    def put(self, report: Report) -> None:
        """Store a report in place of the client's previous report. Raise QuotaExceeded if the store is full."""
        now_s, now_ms = self._clock.monotonic_s(), self._clock.wall_ms()
        reported = datetime_of(now_ms).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        content = msgspec.json.encode({**report.content, "reported": reported})
        key = _report_key(report)
        previous = self._reports.get(key)
        if previous is None and len(self._reports) >= MAX_CLIENTS:
            raise QuotaExceeded(f"{MAX_CLIENTS:,} clients have reported, the limit: retry after a report has expired")
        size = self._total_bytes + len(content) - (len(previous.content) if previous is not None else 0)
        if size > MAX_TOTAL_BYTES:
            raise QuotaExceeded(f"all reports together would have {size:,} bytes (limit: {MAX_TOTAL_BYTES:,})")
        self._total_bytes = size
        self._reports[key] = stored = StoredReport(content, now_s + MISSED_INTERVALS * report.report_interval_s)
        self._schedule_expiry(stored.deadline_s)

    def remove(self, departure: ClientDeparture) -> None:
        """Remove the report of a client that has closed, if there is one."""
        stored = self._reports.pop(_report_key(departure), None)
        if stored is not None:
            self._total_bytes -= len(stored.content)

    def read(
        self, may_read: Callable[[str], bool], *, primary: str | None = None, skip: int = 0, top: int
    ) -> ReportPage:
        """Return reports on the primaries for which `may_read` returns True, ordered by primary and client."""
        return self.read_primaries({name for name in self.primaries(primary) if may_read(name)}, skip=skip, top=top)

    def primaries(self, primary: str | None = None) -> set[str]:
        """Return the canonical names of all primaries with reports, or of `primary` only."""
        return {key[0] for key in self._reports} if primary is None else {canonical_key(primary)}

    def read_primaries(self, allowed_primaries: Collection[str], *, skip: int, top: int) -> ReportPage:
        """Return a page of the reports on `allowed_primaries`."""
        self._drop_expired()
        matches = [self._reports[key] for key in sorted(self._reports) if key[0] in allowed_primaries]
        reports: list[bytes] = []
        size = 0
        for stored in matches[skip : skip + min(top, MAX_PAGE_REPORTS)]:
            size += len(stored.content)
            if reports and size > MAX_PAGE_BYTES:
                break
            reports.append(stored.content)
        end = skip + len(reports)
        return ReportPage(reports, end if end < len(matches) else None)

    def _drop_expired(self) -> None:
        now_s = self._clock.monotonic_s()
        for key in [key for key, stored in self._reports.items() if stored.deadline_s <= now_s]:
            self._total_bytes -= len(self._reports.pop(key).content)

    def _schedule_expiry(self, when_s: float) -> None:
        """Set the timer, which always waits for the earliest deadline."""
        if self._expiry_timer is not None and self._expiry_s <= when_s:
            return
        if self._expiry_timer is not None:
            self._expiry_timer.cancel()
        self._expiry_s = when_s
        self._expiry_timer = self._timers.call_at(when_s, self._on_expiry_timer)

    def _on_expiry_timer(self) -> None:
        self._expiry_timer = None
        self._drop_expired()
        if self._reports:
            self._schedule_expiry(min(stored.deadline_s for stored in self._reports.values()))


class PairingReports:
    """The reports of a namespace, as the AMQP and HTTP endpoints access them."""

    def __init__(self, store: ReportStore) -> None:
        """Create the interface to a store in this process."""
        self._store = store

    async def put(self, report: Report) -> None:
        """Store a report. Raise QuotaExceeded if the store is full."""
        self._store.put(report)

    async def remove(self, departure: ClientDeparture) -> None:
        """Remove the report of a client that has closed."""
        self._store.remove(departure)

    async def read(
        self, may_read: Callable[[str], bool], *, primary: str | None = None, skip: int = 0, top: int
    ) -> ReportPage:
        """Return reports on the primaries for which `may_read` returns True."""
        return self._store.read(may_read, primary=primary, skip=skip, top=top)


def _report_key(report: Report | ClientDeparture) -> tuple[str, str, str]:
    return canonical_key(report.primary), report.client, report.instance


def is_allowed(grants: Iterable[Grant], right: Right, primary: str, address: str = NODE_NAME) -> bool:
    """Return whether the grants give a right on the node at `address`, or on any backlog queue of the primary."""
    key = canonical_key(primary)
    for grant in grants:
        queue = BACKLOG_QUEUE_PATH.fullmatch(grant.scope)
        queue_path = grant.scope if queue is not None and queue[1] == key else f"{key}/{BACKLOG_QUEUE_INFIX}/0"
        if grant.allows(right, queue_path) or grant.allows(right, address):
            return True
    return False


def check_allowed(grants: Iterable[Grant], right: Right, primary: str, address: str = NODE_NAME) -> None:
    """Raise Unauthorized unless `is_allowed` returns True."""
    if not is_allowed(grants, right, primary, address):
        raise Unauthorized(
            f"Unauthorized access. '{right.value}' claim(s) on a queue of '{primary}/{BACKLOG_QUEUE_INFIX}' "
            "are required "
            f"for the pairing of '{primary}'."
        )
