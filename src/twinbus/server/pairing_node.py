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
from twinbus.server.operations.outcomes import carry_out, failure

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from twinbus.model.errors import ServiceBusError
    from twinbus.server.access import Access
    from twinbus.server.pairing import PairingDesk
    from twinbus.server.requests import Reply, Request, Response

DEFAULT_TOP: Final = 100


class PairingNode:
    """The `$pairing` of one connection."""

    def __init__(self, pairings: PairingDesk, access: Access) -> None:
        """For whoever has a right on a backlog queue; a report and what is read are of that primary then."""
        self._pairings = pairings
        self._access = access
        self._operations: dict[str, Callable[[object], Coroutine[None, None, dict[str, object]]]] = {
            "twinbus:report": self._report,
            "twinbus:leave": self._leave,
            "twinbus:read": self._read,
        }

    def handle(self, request: Request, reply: Reply) -> None:
        """Do what is asked."""
        operation = request.text("operation")
        act = self._operations.get(operation)
        if act is None:
            known = ", ".join(self._operations)
            raise NotImplementedHere(f"{pairing.NODE} does not know {operation!r:.80}; it knows {known}")
        carry_out(act(request.body), reply)

    def refuse(self, error: ServiceBusError) -> Response:
        """Status, condition and text."""
        return failure(error)

    async def _report(self, body: object) -> dict[str, object]:
        report = pairing_report.read(body)
        pairing.check(self._access.grants(), Right.SEND, report.primary)
        await self._pairings.put(report)
        return {}

    async def _leave(self, body: object) -> dict[str, object]:
        leave = pairing_report.read_leave(body)
        pairing.check(self._access.grants(), Right.SEND, leave.primary)
        await self._pairings.leave(leave)
        return {}

    async def _read(self, body: object) -> dict[str, object]:
        arguments = Arguments(body if body is not None else {}, max_id_characters=0)
        primary = arguments.text_or_none("primary")
        grants = list(self._access.grants())
        if primary is not None:
            pairing.check(grants, Right.LISTEN, primary)
        page = await self._pairings.read(
            lambda one: pairing.may(grants, Right.LISTEN, one),
            primary=primary,
            skip=arguments.number("skip", lowest=0, default=0),
            top=arguments.number("top", lowest=1, default=DEFAULT_TOP),
        )
        return {"reports": [content.decode() for content in page.reports], "next": page.next}
