"""`$pairing` over AMQP: where paired clients report how they are, and others read it.

Owns: these requests. What is kept of a report, and for how long, is in `pairing`; docs/management.md lists the
operations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twinbus.model.errors import NotImplementedHere
from twinbus.server import pairing, pairing_report
from twinbus.server.keys import Right
from twinbus.server.operations.arguments import Arguments
from twinbus.server.operations.outcomes import failure, run_and_reply

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from twinbus.model.errors import ServiceBusError
    from twinbus.server.access import ConnectionGrants
    from twinbus.server.pairing import PairingReports
    from twinbus.server.requests import OnReply, Request, Response

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
            raise NotImplementedHere(f"{pairing.NODE_NAME} does not know {operation!r:.80}; it knows {known}")
        run_and_reply(act(request.body), on_reply)

    def error_response(self, error: ServiceBusError) -> Response:
        """Status, condition and text."""
        return failure(error)

    async def _report(self, body: object) -> dict[str, object]:
        report = pairing_report.parse_report(body)
        pairing.check_allowed(self._grants.current_grants(), Right.SEND, report.primary)
        await self._pairing_reports.put(report)
        return {}

    async def _remove(self, body: object) -> dict[str, object]:
        leave = pairing_report.parse_departure(body)
        pairing.check_allowed(self._grants.current_grants(), Right.SEND, leave.primary)
        await self._pairing_reports.remove(leave)
        return {}

    async def _read(self, body: object) -> dict[str, object]:
        arguments = Arguments(body if body is not None else {}, max_id_characters=0)
        primary = arguments.text_or_none("primary")
        grants = list(self._grants.current_grants())
        if primary is not None:
            pairing.check_allowed(grants, Right.LISTEN, primary)
        page = await self._pairing_reports.read(
            lambda one: pairing.is_allowed(grants, Right.LISTEN, one),
            primary=primary,
            skip=arguments.whole_number("skip", minimum=0, default=0),
            top=arguments.whole_number("top", minimum=1, default=DEFAULT_PAGE_SIZE),
        )
        return {"reports": [content.decode() for content in page.reports], "next": page.next}
