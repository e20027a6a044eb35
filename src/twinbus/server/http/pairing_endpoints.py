"""Pairings over HTTP: `/$pairing`.

    PUT /$pairing/<client>                      a client reports how it is
    DELETE /$pairing/<client>?primary=contoso   a client has ended
    GET /$pairing?primary=contoso               what clients have reported
    GET /$pairing/$backlog?primary=contoso      what is parked, read from the backlog queues

Owns: these requests. A token for a backlog queue is not one for these addresses, so its scope is checked here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec
from starlette.responses import Response

from twinbus.model.errors import InvalidArgument, Unauthorized
from twinbus.model.times import datetime_of
from twinbus.server.auth.keys import Right
from twinbus.server.http.namespace_endpoints import JSON_MEDIA_TYPE
from twinbus.server.http.routes import Route, route
from twinbus.server.paired_clients import report_format, report_store

if TYPE_CHECKING:
    from twinbus.server.auth.sas import Grant
    from twinbus.server.http.call import Call
    from twinbus.server.paired_clients.backlog_reader import BacklogReader
    from twinbus.server.paired_clients.report_store import PairingReports


class VerifyToken(Protocol):
    """Reads a token."""

    def __call__(self, token: str | None, /) -> Grant:
        """What a token, or None, grants on whatever it is for. Unauthorized."""


class PairingEndpoints:
    """The reports of one namespace, over HTTP."""

    def __init__(
        self, pairing_reports: PairingReports, backlog_reader: BacklogReader, verify_token: VerifyToken
    ) -> None:
        """`show` is asked before anything else is: also before a report is read."""
        self._pairing_reports = pairing_reports
        self._backlog_reader = backlog_reader
        self._verify_token = verify_token
        self.routes: tuple[Route, ...] = (
            route(r"\$pairing", None, GET=self._read),
            route(r"\$pairing/\$backlog", None, GET=self._read_backlog),
            route(r"\$pairing/(?P<client>[^/]{1,128})", None, PUT=self._report, DELETE=self._remove),
        )

    async def _report(self, call: Call) -> Response:
        grant = self._grant_to_send(call)
        report = report_format.parse_report(await call.body())
        report_store.check_allowed([grant], Right.SEND, report.primary, call.address)
        if report.client != call.names["client"]:
            raise InvalidArgument(f"the report is of {report.client!r:.140}, and the address of another client")
        await self._pairing_reports.put(report)
        return Response(status_code=204)

    async def _remove(self, call: Call) -> Response:
        grant = self._grant_to_send(call)
        leave = report_format.parse_departure({**call.request.query_params, "client": call.names["client"]})
        report_store.check_allowed([grant], Right.SEND, leave.primary, call.address)
        await self._pairing_reports.remove(leave)
        return Response(status_code=204)

    def _grant_to_send(self, call: Call) -> Grant:
        """What the token of a client grants that reports or leaves."""
        grant = self._verify_token(call.token)
        if Right.SEND not in grant.key.rights:
            raise Unauthorized(f"the key {grant.key_name!r} has no right to {Right.SEND.value}")
        return grant

    async def _read(self, call: Call) -> Response:
        grant, primary = self._grant_to_listen(call)
        skip, top = call.page
        page = await self._pairing_reports.read(
            lambda one: report_store.is_allowed([grant], Right.LISTEN, one), primary=primary, skip=skip, top=max(1, top)
        )
        following = b"null" if page.next is None else str(page.next).encode()
        now = msgspec.json.encode(datetime_of(call.received_ms))
        content = b'{"now":' + now + b',"reports":[' + b",".join(page.reports) + b'],"next":' + following + b"}"
        return Response(content, media_type=JSON_MEDIA_TYPE)

    async def _read_backlog(self, call: Call) -> Response:
        grant, primary = self._grant_to_listen(call)
        queues = await self._backlog_reader.read(
            lambda one: report_store.is_allowed([grant], Right.LISTEN, one), primary
        )
        content = msgspec.json.encode({"now": datetime_of(call.received_ms), "queues": queues})
        return Response(content, media_type=JSON_MEDIA_TYPE)

    def _grant_to_listen(self, call: Call) -> tuple[Grant, str | None]:
        """What the token of a reader grants, and the primary that it asks for; None: all that it may see."""
        grant = self._verify_token(call.token)
        primary = call.request.query_params.get("primary")
        if primary is not None:
            report_store.check_allowed([grant], Right.LISTEN, primary)
        return grant, primary
