"""Endpoints for reports from paired clients, and for backlog queues: `/$pairing`.

    PUT /$pairing/<client>                      store a report from a client
    DELETE /$pairing/<client>?primary=contoso   remove the report of a client that has stopped
    GET /$pairing?primary=contoso               read the reports from clients
    GET /$pairing/$backlog?primary=contoso      describe the backlog queues and their parked messages

Owns: the handlers of these requests. A token for a backlog queue does not cover these paths, so the token's scope is
checked here.
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
    """A function that verifies a token."""

    def __call__(self, token: str | None, /) -> Grant:
        """Return what a token grants, whatever its scope. Raise Unauthorized if the token is invalid or None."""


class PairingEndpoints:
    """Endpoints for the reports from paired clients to a namespace, and for its backlog queues."""

    def __init__(
        self, pairing_reports: PairingReports, backlog_reader: BacklogReader, verify_token: VerifyToken
    ) -> None:
        """Create the endpoints. Handlers call `verify_token` before they read the body."""
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
            raise InvalidArgument(f"the report is of {report.client!r:.140}, but the path names another client")
        await self._pairing_reports.put(report)
        return Response(status_code=204)

    async def _remove(self, call: Call) -> Response:
        grant = self._grant_to_send(call)
        departure = report_format.parse_departure({**call.request.query_params, "client": call.names["client"]})
        report_store.check_allowed([grant], Right.SEND, departure.primary, call.address)
        await self._pairing_reports.remove(departure)
        return Response(status_code=204)

    def _grant_to_send(self, call: Call) -> Grant:
        """Return the grant from a token with the right to send. Raise Unauthorized if the token lacks this right."""
        grant = self._verify_token(call.token)
        if Right.SEND not in grant.key.rights:
            raise Unauthorized(f"the key {grant.key_name!r} has no right to {Right.SEND.value}")
        return grant

    async def _read(self, call: Call) -> Response:
        grant, primary = self._grant_to_listen(call)
        skip, top = call.page
        page = await self._pairing_reports.read(
            lambda name: report_store.is_allowed([grant], Right.LISTEN, name),
            primary=primary,
            skip=skip,
            top=max(1, top),
        )
        next_page = b"null" if page.next is None else str(page.next).encode()
        now = msgspec.json.encode(datetime_of(call.received_ms))
        content = b'{"now":' + now + b',"reports":[' + b",".join(page.reports) + b'],"next":' + next_page + b"}"
        return Response(content, media_type=JSON_MEDIA_TYPE)

    async def _read_backlog(self, call: Call) -> Response:
        grant, primary = self._grant_to_listen(call)
        queues = await self._backlog_reader.read(
            lambda name: report_store.is_allowed([grant], Right.LISTEN, name), primary
        )
        content = msgspec.json.encode({"now": datetime_of(call.received_ms), "queues": queues})
        return Response(content, media_type=JSON_MEDIA_TYPE)

    def _grant_to_listen(self, call: Call) -> tuple[Grant, str | None]:
        """Return the grant from the caller's token, and the requested primary; None requests all primaries."""
        grant = self._verify_token(call.token)
        primary = call.request.query_params.get("primary")
        if primary is not None:
            report_store.check_allowed([grant], Right.LISTEN, primary)
        return grant, primary
