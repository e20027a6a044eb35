"""`$pairing` over AMQP: where paired clients report how they are, and others read it.

Owns: these requests. What is kept of a report, and for how long, is in `pairing`; docs/management.md lists the
operations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twinbus.model.errors import NotImplementedHere
from twinbus.server.amqp.management.arguments import Arguments
from twinbus.server.amqp.management.responses import failure, run_and_reply
from twinbus.server.auth.keys import Right
from twinbus.server.paired_clients import report_format, report_store

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from twinbus.model.errors import ServiceBusError
    from twinbus.server.amqp.request_link import OnReply, Request, Response
    from twinbus.server.auth.grants import ConnectionGrants
    from twinbus.server.paired_clients.report_store import PairingReports

DEFAULT_PAGE_SIZE: Final = 100


class PairingNode:
    """The `$pairing` of one connection."""

    def __init__(self, pairing_reports: PairingReports, grants: ConnectionGrants) -> None:
        """For whoever has a right on a backlog queue; a report and what is read are of that primary then."""
        self._pairing_reports = pairing_reports
        self._grants = grants
        self._operations: dict[str, Callable[[object], Coroutine[None, None, dict[str, object]]]] = {
            "twinbus:report": self._report,
            "twinbus:leave": self._remove,
            "twinbus:read": self._read,
        }

    def handle(self, request: Request, on_reply: OnReply) -> None:
        """Do what is asked."""
        operation = request.required_text("operation")
        act = self._operations.get(operation)
        if act is None:
            known = ", ".join(self._operations)
            raise NotImplementedHere(f"{report_store.NODE_NAME} does not know {operation!r:.80}; it knows {known}")
        run_and_reply(act(request.body), on_reply)

    def error_response(self, error: ServiceBusError) -> Response:
        """Status, condition and text."""
        return failure(error)

    async def _report(self, body: object) -> dict[str, object]:
        report = report_format.parse_report(body)
        report_store.check_allowed(self._grants.current_grants(), Right.SEND, report.primary)
        await self._pairing_reports.put(report)
        return {}

    async def _remove(self, body: object) -> dict[str, object]:
        leave = report_format.parse_departure(body)
        report_store.check_allowed(self._grants.current_grants(), Right.SEND, leave.primary)
        await self._pairing_reports.remove(leave)
        return {}

    async def _read(self, body: object) -> dict[str, object]:
        arguments = Arguments(body if body is not None else {}, max_id_characters=0)
        primary = arguments.text_or_none("primary")
        grants = list(self._grants.current_grants())
        if primary is not None:
            report_store.check_allowed(grants, Right.LISTEN, primary)
        page = await self._pairing_reports.read(
            lambda one: report_store.is_allowed(grants, Right.LISTEN, one),
            primary=primary,
            skip=arguments.whole_number("skip", minimum=0, default=0),
            top=arguments.whole_number("top", minimum=1, default=DEFAULT_PAGE_SIZE),
        )
        return {"reports": [content.decode() for content in page.reports], "next": page.next}
