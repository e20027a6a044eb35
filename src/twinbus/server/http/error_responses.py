"""Responses to failed requests.

Owns: the error body that the SDKs read, and the errors that only HTTP has. Every failure gets a tracking id, with which
an administrator finds the failure in the log.
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
    """The path is neither an entity nor a resource of the service."""

    condition = "amqp:not-found"
    status = 404


class MethodNotAllowed(CallerError):
    """The path does not support the request's method."""

    condition = "amqp:not-allowed"
    status = 405

    def __init__(self, method: str, allowed: tuple[str, ...]) -> None:
        """Create the error; `allowed` are the methods that the path supports."""
        super().__init__(f"{method!r:.20} is not allowed for this path: use {', '.join(allowed)}")
        self.allowed = allowed


class Forbidden(CallerError):
    """The request's Host or Origin is not allowed, whatever its token."""

    condition = "amqp:not-allowed"
    status = 403


class UpgradeRequired(CallerError):
    """The path accepts WebSocket handshakes only."""

    status = 426


class BodyTooLarge(CallerError):
    """The body exceeds the limit for this kind of request."""

    status = 413


class BodyTooSlow(OperationTimeout):
    """The body did not arrive in time; nothing was changed."""


def new_tracking_id() -> str:
    """Return a new id for one failure."""
    return str(uuid.uuid4())


def error_response(error: ServiceBusError) -> Response:
    """Return the response for an error."""
    response = make_error_response(error.status, str(error), new_tracking_id())
    if isinstance(error, MethodNotAllowed):
        response.headers["allow"] = ", ".join(error.allowed)
    if isinstance(error, UpgradeRequired):
        response.headers.update({"upgrade": "websocket", "connection": "upgrade", "sec-websocket-version": "13"})
    if isinstance(error, BodyTooSlow):
        response.headers["connection"] = "close"  # the rest of the body would be read as the next request
    if isinstance(error, DiskFull):
        response.headers[ERROR_NAME_HEADER] = DiskFull.__name__
    return response


def make_error_response(status: int, text: str, tracking_id: str) -> Response:
    """Return a response whose XML body has the status as its code, as the SDKs expect."""
    root = Element("Error")
    envelope.add_element(root, "Code", str(status))
    envelope.add_element(root, "Detail", f"{text.rstrip('.')}. TrackingId:{tracking_id}")
    return Response(envelope.to_bytes(root), status_code=status, media_type=ERROR_MEDIA_TYPE)
