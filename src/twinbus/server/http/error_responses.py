"""What is answered when a request fails.

Owns: the body that the SDKs read an error from, and the errors that only HTTP has. Every failure gets a tracking id, so
that a caller can name it to whoever reads the log.
"""

from __future__ import annotations

import uuid
from typing import Final
from xml.etree.ElementTree import Element

from starlette.responses import Response

from twinbus.model.atom import envelope
from twinbus.model.errors import ERROR_NAME_HEADER, CallerError, DiskFull, OperationTimeout, ServiceBusError

ERROR_MEDIA_TYPE: Final = "application/xml; charset=utf-8"


class ResourceNotFound(CallerError):
    """An address that is no entity's and none of the service's own."""

    condition = "amqp:not-found"
    status = 404


class MethodNotAllowed(CallerError):
    """A verb that the address does not have."""

    condition = "amqp:not-allowed"
    status = 405

    def __init__(self, method: str, allowed: tuple[str, ...]) -> None:
        """`allowed` are those that it has."""
        super().__init__(f"{method!r:.20} is not for this address; it takes {', '.join(allowed)}")
        self.allowed = allowed


class Forbidden(CallerError):
    """A request that no token can make good: it comes by a name, or from a page, that this server does not serve."""

    condition = "amqp:not-allowed"
    status = 403


class UpgradeRequired(CallerError):
    """An address that is a WebSocket, asked for as if it were none."""

    status = 426


class BodyTooLarge(CallerError):
    """More bytes than such a request has."""

    status = 413


class BodyTooSlow(OperationTimeout):
    """The rest of the body did not come in time: nothing was done."""


def new_tracking_id() -> str:
    """What names one failure."""
    return str(uuid.uuid4())


def error_response(error: ServiceBusError) -> Response:
    """The response that says what was wrong."""
    response = make_error_response(error.status, str(error), new_tracking_id())
    if isinstance(error, MethodNotAllowed):
        response.headers["allow"] = ", ".join(error.allowed)
    if isinstance(error, UpgradeRequired):
        response.headers.update({"upgrade": "websocket", "connection": "upgrade", "sec-websocket-version": "13"})
    if isinstance(error, BodyTooSlow):
        response.headers["connection"] = "close"  # what would come next is the rest of that body
    if isinstance(error, DiskFull):
        response.headers[ERROR_NAME_HEADER] = DiskFull.__name__
    return response


def make_error_response(status: int, text: str, tracking_id: str) -> Response:
    """An error body: no namespace, the status as its code."""
    root = Element("Error")
    envelope.add_element(root, "Code", str(status))
    envelope.add_element(root, "Detail", f"{text.rstrip('.')}. TrackingId:{tracking_id}")
    return Response(envelope.to_bytes(root), status_code=status, media_type=ERROR_MEDIA_TYPE)
