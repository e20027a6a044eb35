"""What paired clients have reported to their secondary: the last report of each, for as long as it is fresh.

Owns: which reports there are, when one is forgotten, and who may report for which primary and read of it. This is no
entity: it is not listed, not counted and not kept over a restart. What is valid in a report is in `pairing_report`.
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
"""All reports together: a thousand of the largest, or many more of the usual size."""
MISSED_INTERVALS: Final = 3
"""A client that has not reported for so many of its report intervals is gone."""
MAX_PAGE_BYTES: Final = 1_048_576
MAX_PAGE_REPORTS: Final = 1_000
BACKLOG_QUEUE_PATH: Final = re.compile(rf"([^/]+)/{BACKLOG_QUEUE_INFIX}/[0-9]+")
"""The path of a backlog queue, in lower case; its group is the primary."""


@dataclass(frozen=True, slots=True)
class StoredReport:
    """A report, as it is told."""

    content: bytes
    """JSON."""
    deadline_s: float
    """When it is forgotten, by the monotonic clock."""


class ReportPage(NamedTuple):
    """Some of the reports."""

    reports: list[bytes]
    next: int | None
    """How many to skip for the page after it; None if there is none."""


class ReportStore:
    """The reports of a namespace."""

    def __init__(self, clock: Clock, timers: Timers) -> None:
        """None yet."""
        self._clock = clock
        self._timers = timers
        self._reports: dict[tuple[str, str, str], StoredReport] = {}
        """By primary, in lower case, client and instance."""
        self._total_bytes = 0
        self._expiry_timer: Timer | None = None
        self._expiry_s = 0.0

    def __len__(self) -> int:
        return len(self._reports)

    def put(self, report: Report) -> None:
        """Keep a report, in place of the client's last one. QuotaExceeded."""
        now_s, now_ms = self._clock.monotonic_s(), self._clock.wall_ms()
        reported = datetime_of(now_ms).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        content = msgspec.json.encode({**report.content, "reported": reported})
        key = _report_key(report)
        before = self._reports.get(key)
        if before is None and len(self._reports) >= MAX_CLIENTS:
            raise QuotaExceeded(f"{MAX_CLIENTS:,} clients have reported, which is the limit: others are forgotten soon")
        size = self._total_bytes + len(content) - (len(before.content) if before is not None else 0)
        if size > MAX_TOTAL_BYTES:
            raise QuotaExceeded(f"all reports together would have {size:,} bytes; they can have {MAX_TOTAL_BYTES:,}")
        self._total_bytes = size
        self._reports[key] = kept = StoredReport(content, now_s + MISSED_INTERVALS * report.report_interval_s)
        self._schedule_expiry(kept.deadline_s)

    def remove(self, departure: ClientDeparture) -> None:
        """Forget the report of a client that has ended. Nothing happens where there is none."""
        kept = self._reports.pop(_report_key(departure), None)
        if kept is not None:
            self._total_bytes -= len(kept.content)

    def read(
        self, may_read: Callable[[str], bool], *, primary: str | None = None, skip: int = 0, top: int
    ) -> ReportPage:
        """Reports in the order of their primaries and clients: those of the primaries that one may see."""
        return self.read_primaries({one for one in self.primaries(primary) if may_read(one)}, skip=skip, top=top)

    def primaries(self, primary: str | None = None) -> set[str]:
        """Those that there are reports of, or the one that is asked for; in lower case."""
        return {key[0] for key in self._reports} if primary is None else {canonical_key(primary)}

    def read_primaries(self, allowed_primaries: Collection[str], *, skip: int, top: int) -> ReportPage:
        """Reports of these primaries."""
        self._drop_expired()
        found = [self._reports[key] for key in sorted(self._reports) if key[0] in allowed_primaries]
        reports: list[bytes] = []
        size = 0
        for kept in found[skip : skip + min(top, MAX_PAGE_REPORTS)]:
            size += len(kept.content)
            if reports and size > MAX_PAGE_BYTES:
                break
            reports.append(kept.content)
        reached = skip + len(reports)
        return ReportPage(reports, reached if reached < len(found) else None)

    def _drop_expired(self) -> None:
        now_s = self._clock.monotonic_s()
        for key in [key for key, kept in self._reports.items() if kept.deadline_s <= now_s]:
            self._total_bytes -= len(self._reports.pop(key).content)

    def _schedule_expiry(self, when_s: float) -> None:
        """One timer, for the first that is to be forgotten: that is another one by then, as a rule."""
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
            self._schedule_expiry(min(kept.deadline_s for kept in self._reports.values()))


class PairingReports:
    """The reports of a namespace, as both ways in reach them."""

    def __init__(self, store: ReportStore) -> None:
        """They are in this process."""
        self._store = store

    async def put(self, report: Report) -> None:
        """Keep a report. QuotaExceeded."""
        self._store.put(report)

    async def remove(self, departure: ClientDeparture) -> None:
        """Forget the report of a client that has ended."""
        self._store.remove(departure)

    async def read(
        self, may_read: Callable[[str], bool], *, primary: str | None = None, skip: int = 0, top: int
    ) -> ReportPage:
        """Reports of the primaries that one may see."""
        return self._store.read(may_read, primary=primary, skip=skip, top=top)


def _report_key(report: Report | ClientDeparture) -> tuple[str, str, str]:
    return canonical_key(report.primary), report.client, report.instance


def is_allowed(grants: Iterable[Grant], right: Right, primary: str, address: str = NODE_NAME) -> bool:
    """Somebody has a right on this node, or on a backlog queue of a primary; any one of them will do."""
    owned = canonical_key(primary)
    for grant in grants:
        queue = BACKLOG_QUEUE_PATH.fullmatch(grant.scope)
        of_queue = grant.scope if queue is not None and queue[1] == owned else f"{owned}/{BACKLOG_QUEUE_INFIX}/0"
        if grant.allows(right, of_queue) or grant.allows(right, address):
            return True
    return False


def check_allowed(grants: Iterable[Grant], right: Right, primary: str, address: str = NODE_NAME) -> None:
    """Unauthorized where nobody has it."""
    if not is_allowed(grants, right, primary, address):
        raise Unauthorized(
            f"Unauthorized access. '{right.value}' claim(s) on a queue of '{primary}/{BACKLOG_QUEUE_INFIX}' "
            "are required "
            f"for the pairing of '{primary}'."
        )
