"""What there is once in a namespace, and is reached by way of every worker: outages on purpose, reports of clients.

Owns: what a worker asks the supervisor about them. An outage is switched on and off in every worker; reports are kept
by the supervisor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twinbus.model.errors import InvalidArgument
from twinbus.model.outage import OutageKind
from twinbus.model.path import canonical_key
from twinbus.server.outage_node import OutageSwitch
from twinbus.server.pairing import PairingReports, ReportPage
from twinbus.server.workers.entities import REQUEST_TIMEOUT_S
from twinbus.server.workers.words import (
    BeginOutage,
    EndOutage,
    ListPrimaries,
    OutageBegun,
    PutReport,
    ReadReports,
    RemoveReport,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.broker.ports.outage import Outages
    from twinbus.server.pairing_report import ClientDeparture, Report
    from twinbus.server.workers.control import ControlConnection
    from twinbus.server.workers.words import OutageEnded


class ClusterOutageSwitch(OutageSwitch):
    """The outages of all workers."""

    def __init__(self, outages: Outages, connection: ControlConnection) -> None:
        """Those of this worker are told from here."""
        super().__init__(outages)
        self._connection = connection

    async def begin(self, path: str, kind: str, seconds: float) -> dict[str, object]:
        """Switch one on everywhere."""
        if kind not in [one.value for one in OutageKind]:
            raise InvalidArgument(f"kind is {kind!r:.40}; it is {', '.join(one.value for one in OutageKind)}")
        return await self._connection.request(
            BeginOutage(path, OutageKind(kind), seconds), dict[str, Any], REQUEST_TIMEOUT_S
        )

    async def end(self, path: str | None) -> list[dict[str, object]]:
        """Switch one off everywhere, or all."""
        return await self._connection.request(EndOutage(path), list[dict[str, Any]], REQUEST_TIMEOUT_S)

    def apply(self, change: OutageBegun | OutageEnded) -> None:
        """Do here what was asked for somewhere."""
        if isinstance(change, OutageBegun):
            self.begin_local(change.path, change.kind, change.seconds, (change.since_ms, change.until_ms))
        else:
            self.end_local(change.path)


class ClusterReportService(PairingReports):
    """The reports to all workers."""

    def __init__(self, connection: ControlConnection) -> None:
        """None is kept here."""
        self._connection = connection

    async def put(self, report: Report) -> None:
        """Keep a report."""
        await self._connection.request(PutReport(report), type(None), REQUEST_TIMEOUT_S)

    async def remove(self, departure: ClientDeparture) -> None:
        """Forget the report of a client that has ended."""
        await self._connection.request(RemoveReport(departure), type(None), REQUEST_TIMEOUT_S)

    async def read(
        self, may_read: Callable[[str], bool], *, primary: str | None = None, skip: int = 0, top: int
    ) -> ReportPage:
        """Reports of the primaries that one may see."""
        primaries = (
            [canonical_key(primary)]
            if primary is not None
            else await self._connection.request(ListPrimaries(), list[str], REQUEST_TIMEOUT_S)
        )
        seen = [one for one in primaries if may_read(one)]
        return await self._connection.request(ReadReports(seen, skip, top), ReportPage, REQUEST_TIMEOUT_S)
