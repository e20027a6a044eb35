"""`$pairing` over AMQP: the node to which paired clients send reports, and from which operators read them.

Owns: the requests to this node. `paired_clients.report_store` stores the reports; docs/management.md lists the
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
    """The node `$pairing`, for one connection."""

    def __init__(self, pairing_reports: PairingReports, grants: ConnectionGrants) -> None:
        """Create the node. Rights on a primary's backlog queues are also rights on the reports for that primary."""
        self._pairing_reports = pairing_reports
        self._grants = grants
        self._operations: dict[str, Callable[[object], Coroutine[None, None, dict[str, object]]]] = {
            "twinbus:report": self._report,
            "twinbus:leave": self._remove,
            "twinbus:read": self._read,
        }

    def handle(self, request: Request, on_reply: OnReply) -> None:
        """Execute a request."""
        operation = request.required_text("operation")
        operation_handler = self._operations.get(operation)
        if operation_handler is None:
            names = ", ".join(self._operations)
            raise NotImplementedHere(f"{report_store.NODE_NAME} does not support {operation!r:.80}, only {names}")
        run_and_reply(operation_handler(request.body), on_reply)

    def error_response(self, error: ServiceBusError) -> Response:
        """Return the response to a request that failed: status, condition and text."""
        return failure(error)

    async def _report(self, body: object) -> dict[str, object]:
        report = report_format.parse_report(body)
        report_store.check_allowed(self._grants.current_grants(), Right.SEND, report.primary)
        await self._pairing_reports.put(report)
        return {}

    async def _remove(self, body: object) -> dict[str, object]:
        departure = report_format.parse_departure(body)
        report_store.check_allowed(self._grants.current_grants(), Right.SEND, departure.primary)
        await self._pairing_reports.remove(departure)
        return {}

    async def _read(self, body: object) -> dict[str, object]:
        arguments = Arguments(body if body is not None else {}, max_id_characters=0)
        primary = arguments.text_or_none("primary")
        grants = list(self._grants.current_grants())
        if primary is not None:
            report_store.check_allowed(grants, Right.LISTEN, primary)
        page = await self._pairing_reports.read(
            lambda name: report_store.is_allowed(grants, Right.LISTEN, name),
            primary=primary,
            skip=arguments.whole_number("skip", minimum=0, default=0),
            top=arguments.whole_number("top", minimum=1, default=DEFAULT_PAGE_SIZE),
        )
        return {"reports": [content.decode() for content in page.reports], "next": page.next}
