"""Pairings over HTTP: `/$pairing`.

    PUT /$pairing/<client>                 a client reports how it is
    GET /$pairing?primary=contoso          what clients have reported

Owns: these requests. A token for a backlog queue is not one for this address, so it is looked here what it is for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from starlette.responses import Response

from twinbus.model.errors import InvalidArgument, Unauthorized
from twinbus.server import pairing, pairing_report
from twinbus.server.http.namespace_requests import JSON
from twinbus.server.http.routes import Route, route
from twinbus.server.keys import Right

if TYPE_CHECKING:
    from twinbus.server.http.call import Call
    from twinbus.server.pairing import PairingDesk
    from twinbus.server.sas import Grant


class Show(Protocol):
    """Reads a token."""

    def __call__(self, token: str | None, /) -> Grant:
        """What a token, or None, grants on whatever it is for. Unauthorized."""


class PairingRequests:
    """The reports of one namespace, over HTTP."""

    def __init__(self, pairings: PairingDesk, show: Show) -> None:
        """`show` is asked before anything else is: also before a report is read."""
        self._pairings = pairings
        self._show = show
        self.routes: tuple[Route, ...] = (
            route(r"\$pairing", None, GET=self._read),
            route(r"\$pairing/(?P<client>[^/]{1,128})", None, PUT=self._report),
        )

    async def _report(self, call: Call) -> Response:
        grant = self._show(call.token)
        if Right.SEND not in grant.key.rights:
            raise Unauthorized(f"the key {grant.key_name!r} has no right to {Right.SEND.value}")
        report = pairing_report.read(await call.body())
        pairing.check([grant], Right.SEND, report.primary, call.address)
        if report.client != call.names["client"]:
            raise InvalidArgument(f"the report is of {report.client!r:.140}, and the address of another client")
        await self._pairings.put(report)
        return Response(status_code=204)

    async def _read(self, call: Call) -> Response:
        grant = self._show(call.token)
        primary = call.request.query_params.get("primary")
        if primary is not None:
            pairing.check([grant], Right.LISTEN, primary)
        skip, top = call.page
        page = await self._pairings.read(
            lambda one: pairing.may([grant], Right.LISTEN, one), primary=primary, skip=skip, top=max(1, top)
        )
        following = b"null" if page.next is None else str(page.next).encode()
        content = b'{"reports":[' + b",".join(page.reports) + b'],"next":' + following + b"}"
        return Response(content, media_type=JSON)
