"""What paired clients have reported to their secondary: the last report of each, for as long as it is fresh.

Owns: which reports there are, when one is forgotten, and who may report for which primary and read of it. This is no
entity: it is not listed, not counted and not kept over a restart. What is valid in a report is in `pairing_report`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from twinbus.model.annotations import BACKLOG_QUEUES
from twinbus.model.errors import QuotaExceeded, Unauthorized
from twinbus.model.path import key_of
from twinbus.model.times import moment_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from twinbus.broker.clock import Clock, Timer, Timers
    from twinbus.server.keys import Right
    from twinbus.server.pairing_report import Leave, Report
    from twinbus.server.sas import Grant

NODE: Final = "$pairing"
MAX_CLIENTS: Final = 10_000
MAX_BYTES: Final = 67_108_864
"""All reports together: a thousand of the largest, or many more of the usual size."""
INTERVALS: Final = 3
"""A client that has not reported for so many of its report intervals is gone."""
PAGE_BYTES: Final = 1_048_576
MAX_PAGE: Final = 1_000
BACKLOG_QUEUE: Final = re.compile(rf"([^/]+)/{BACKLOG_QUEUES}/[0-9]+")
"""The path of a backlog queue, in lower case; its group is the primary."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A report, as it is told."""

    content: bytes
    """JSON."""
    deadline_s: float
    """When it is forgotten, by the monotonic clock."""


class Page(NamedTuple):
    """Some of the reports."""

    reports: list[bytes]
    next: int | None
    """How many to skip for the page after it; None if there is none."""


class Pairings:
    """The reports of a namespace."""

    def __init__(self, clock: Clock, timers: Timers) -> None:
        """None yet."""
        self._clock = clock
        self._timers = timers
        self._kept: dict[tuple[str, str, str], Kept] = {}
        """By primary, in lower case, client and instance."""
        self._size = 0
        self._look: Timer | None = None
        self._look_s = 0.0

    def __len__(self) -> int:
        return len(self._kept)

    def put(self, report: Report) -> None:
        """Keep a report, in place of the client's last one. QuotaExceeded."""
        now_s, now_ms = self._clock.monotonic_s(), self._clock.wall_ms()
        reported = moment_of(now_ms).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        content = msgspec.json.encode({**report.content, "reported": reported})
        key = _key(report)
        before = self._kept.get(key)
        if before is None and len(self._kept) >= MAX_CLIENTS:
            raise QuotaExceeded(f"{MAX_CLIENTS:,} clients have reported, which is the limit: others are forgotten soon")
        size = self._size + len(content) - (len(before.content) if before is not None else 0)
        if size > MAX_BYTES:
            raise QuotaExceeded(f"all reports together would have {size:,} bytes; they can have {MAX_BYTES:,}")
        self._size = size
        self._kept[key] = kept = Kept(content, now_s + INTERVALS * report.report_interval_s)
        self._watch(kept.deadline_s)

    def leave(self, leave: Leave) -> None:
        """Forget the report of a client that has ended. Nothing happens where there is none."""
        kept = self._kept.pop(_key(leave), None)
        if kept is not None:
            self._size -= len(kept.content)

    def read(self, may_see: Callable[[str], bool], *, primary: str | None = None, skip: int = 0, top: int) -> Page:
        """Reports in the order of their primaries and clients: those of the primaries that one may see."""
        return self.read_of({one for one in self.primaries(primary) if may_see(one)}, skip=skip, top=top)

    def primaries(self, primary: str | None = None) -> set[str]:
        """Those that there are reports of, or the one that is asked for; in lower case."""
        return {key[0] for key in self._kept} if primary is None else {key_of(primary)}

    def read_of(self, seen: Collection[str], *, skip: int, top: int) -> Page:
        """Reports of these primaries."""
        self._forget_old()
        found = [self._kept[key] for key in sorted(self._kept) if key[0] in seen]
        reports: list[bytes] = []
        size = 0
        for kept in found[skip : skip + min(top, MAX_PAGE)]:
            size += len(kept.content)
            if reports and size > PAGE_BYTES:
                break
            reports.append(kept.content)
        reached = skip + len(reports)
        return Page(reports, reached if reached < len(found) else None)

    def _forget_old(self) -> None:
        now_s = self._clock.monotonic_s()
        for key in [key for key, kept in self._kept.items() if kept.deadline_s <= now_s]:
            self._size -= len(self._kept.pop(key).content)

    def _watch(self, when_s: float) -> None:
        """One timer, for the first that is to be forgotten: that is another one by then, as a rule."""
        if self._look is not None and self._look_s <= when_s:
            return
        if self._look is not None:
            self._look.cancel()
        self._look_s = when_s
        self._look = self._timers.call_at(when_s, self._look_after)

    def _look_after(self) -> None:
        self._look = None
        self._forget_old()
        if self._kept:
            self._watch(min(kept.deadline_s for kept in self._kept.values()))


class PairingDesk:
    """The reports of a namespace, as both ways in reach them."""

    def __init__(self, pairings: Pairings) -> None:
        """They are in this process."""
        self._pairings = pairings

    async def put(self, report: Report) -> None:
        """Keep a report. QuotaExceeded."""
        self._pairings.put(report)

    async def leave(self, leave: Leave) -> None:
        """Forget the report of a client that has ended."""
        self._pairings.leave(leave)

    async def read(
        self, may_see: Callable[[str], bool], *, primary: str | None = None, skip: int = 0, top: int
    ) -> Page:
        """Reports of the primaries that one may see."""
        return self._pairings.read(may_see, primary=primary, skip=skip, top=top)


def _key(of: Report | Leave) -> tuple[str, str, str]:
    return key_of(of.primary), of.client, of.instance


def may(grants: Iterable[Grant], right: Right, primary: str, address: str = NODE) -> bool:
    """Somebody has a right on this node, or on a backlog queue of a primary; any one of them will do."""
    owned = key_of(primary)
    for grant in grants:
        queue = BACKLOG_QUEUE.fullmatch(grant.scope)
        of_queue = grant.scope if queue is not None and queue[1] == owned else f"{owned}/{BACKLOG_QUEUES}/0"
        if grant.allows(right, of_queue) or grant.allows(right, address):
            return True
    return False


def check(grants: Iterable[Grant], right: Right, primary: str, address: str = NODE) -> None:
    """Unauthorized where nobody has it."""
    if not may(grants, right, primary, address):
        raise Unauthorized(
            f"Unauthorized access. '{right.value}' claim(s) on a queue of '{primary}/{BACKLOG_QUEUES}' are required "
            f"for the pairing of '{primary}'."
        )
