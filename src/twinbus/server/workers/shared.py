"""What there is once in a namespace, and is reached by way of every worker: outages on purpose, reports of clients.

Owns: what a worker asks the supervisor about them. An outage is switched on and off in every worker; reports are kept
by the supervisor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twinbus.model.errors import InvalidArgument
from twinbus.model.outage import OutageKind
from twinbus.model.path import key_of
from twinbus.server.outage_node import OutageSwitch
from twinbus.server.pairing import Page, PairingDesk
from twinbus.server.workers.entities import ANSWER_S
from twinbus.server.workers.words import (
    BeginOutage,
    DropReport,
    EndOutage,
    ListPrimaries,
    OutageBegun,
    PutReport,
    ReadReports,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.broker.ports.outage import Outages
    from twinbus.server.pairing_report import Leave, Report
    from twinbus.server.workers.control import Control
    from twinbus.server.workers.words import OutageEnded


class SharedOutageSwitch(OutageSwitch):
    """The outages of all workers."""

    def __init__(self, outages: Outages, control: Control) -> None:
        """Those of this worker are told from here."""
        super().__init__(outages)
        self._control = control

    async def begin(self, path: str, kind: str, seconds: float) -> dict[str, object]:
        """Switch one on everywhere."""
        if kind not in [one.value for one in OutageKind]:
            raise InvalidArgument(f"kind is {kind!r:.40}; it is {', '.join(one.value for one in OutageKind)}")
        return await self._control.ask(BeginOutage(path, OutageKind(kind), seconds), dict[str, Any], ANSWER_S)

    async def end(self, path: str | None) -> list[dict[str, object]]:
        """Switch one off everywhere, or all."""
        return await self._control.ask(EndOutage(path), list[dict[str, Any]], ANSWER_S)

    def apply(self, change: OutageBegun | OutageEnded) -> None:
        """Do here what was asked for somewhere."""
        if isinstance(change, OutageBegun):
            self.begin_here(change.path, change.kind, change.seconds, (change.since_ms, change.until_ms))
        else:
            self.end_here(change.path)


class SharedPairingDesk(PairingDesk):
    """The reports to all workers."""

    def __init__(self, control: Control) -> None:
        """None is kept here."""
        self._control = control

    async def put(self, report: Report) -> None:
        """Keep a report."""
        await self._control.ask(PutReport(report), type(None), ANSWER_S)

    async def leave(self, leave: Leave) -> None:
        """Forget the report of a client that has ended."""
        await self._control.ask(DropReport(leave), type(None), ANSWER_S)

    async def read(
        self, may_see: Callable[[str], bool], *, primary: str | None = None, skip: int = 0, top: int
    ) -> Page:
        """Reports of the primaries that one may see."""
        primaries = (
            [key_of(primary)] if primary is not None else await self._control.ask(ListPrimaries(), list[str], ANSWER_S)
        )
        seen = [one for one in primaries if may_see(one)]
        return await self._control.ask(ReadReports(seen, skip, top), Page, ANSWER_S)
