"""The OpenAPI document of the JSON API, generated from the resources in `model.status`.

    python -m twinbus.server.api.openapi > docs/openapi.json

Owns the description of every operation: its address, parameters, right and responses. `docs/openapi.json` is a copy of
this document; a test compares the two, and checks responses against the document.
"""

from __future__ import annotations

import sys
from typing import Any, Final, NamedTuple

import msgspec

import twinbus
from twinbus.model import status
from twinbus.server.api.parameters import DEFAULT_TOP, MAX_TEXT_CHARACTERS, MAX_TOP

_REFERENCE: Final = "#/components/schemas/{name}"


class _Operation(NamedTuple):
    path: str
    summary: str
    result: type | None
    parameters: tuple[str, ...] = ()
    right: str = "Listen"
    method: str = "get"


_PARAMETERS: Final[dict[str, dict[str, Any]]] = {
    "prefix": {
        "in": "query",
        "description": "Only entities whose path starts with this text, ignoring case.",
        "schema": {"type": "string", "maxLength": MAX_TEXT_CHARACTERS},
    },
    "kind": {
        "in": "query",
        "description": "Only entities of this kind.",
        "schema": {"type": "string", "enum": ["queue", "topic", "subscription"]},
    },
    "top": {
        "in": "query",
        "description": "Items per page.",
        "schema": {"type": "integer", "minimum": 1, "maximum": MAX_TOP, "default": DEFAULT_TOP},
    },
    "after": {
        "in": "query",
        "description": "The value of `next` in the previous page.",
        "schema": {"type": "string", "maxLength": MAX_TEXT_CHARACTERS},
    },
    "path": {
        "in": "path",
        "required": True,
        "description": "Path of the entity, with its slashes: `orders`, or `prices/Subscriptions/shop`.",
        "schema": {"type": "string"},
    },
    "id": {
        "in": "path",
        "required": True,
        "description": "Id of the connection.",
        "schema": {"type": "string", "pattern": "^[0-9]+-[0-9]+$"},
    },
}
_PAGED: Final = ("top", "after")
_OPERATIONS: Final = (
    _Operation("overview", "The namespace as a whole, with alerts", status.Overview),
    _Operation("entities", "Entities, in order of path", status.EntityPage, ("prefix", "kind", *_PAGED)),
    _Operation("entities/{path}", "An entity with its fragments", status.EntityDetails, ("path",)),
    _Operation("locks/{path}", "Locks of a queue, subscription or sub-queue", status.LockPage, ("path", *_PAGED)),
    _Operation("sessions/{path}", "Locked sessions", status.SessionPage, ("path", *_PAGED)),
    _Operation("connections", "AMQP connections", status.ConnectionPage, _PAGED),
    _Operation("connections/{id}", "A connection with its links", status.ConnectionDetails, ("id",)),
    _Operation("connections/{id}", "Close a connection", None, ("id",), right="Manage", method="delete"),
    _Operation("stores", "Stores", status.Stores),
    _Operation("workers", "Processes of the server", status.Workers),
    _Operation("disk", "Free space on the disks of the stores", status.Disks),
    _Operation("pairing", "Summary of the reports from paired clients", status.Pairings),
    _Operation("outages", "Rehearsed outages", status.RehearsedOutages),
    _Operation("failed-logins", "The last failed logins", status.FailedLogins, right="Manage"),
)
_ERRORS: Final = {
    "400": "a parameter is not valid",
    "401": "the token or key is missing, wrong or expired, or has not the required right",
    "404": "there is no such resource",
}


def make_document() -> dict[str, Any]:
    """Return the document."""
    types = [operation.result for operation in _OPERATIONS if operation.result is not None]
    _, components = msgspec.json.schema_components([*types, status.ErrorBody], ref_template=_REFERENCE)
    paths: dict[str, dict[str, Any]] = {}
    for operation in _OPERATIONS:
        paths.setdefault(f"/$api/v1/{operation.path}", {})[operation.method] = _describe(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "twinbus status of a namespace",
            "version": twinbus.__version__,
            "description": "Figures, connections, locks and sessions of a namespace. docs/api.md has examples.",
        },
        "security": [{"sharedAccessSignature": []}, {"key": []}],
        "paths": paths,
        "components": {
            "schemas": dict(sorted(components.items())),
            "securitySchemes": {
                "sharedAccessSignature": {
                    "type": "apiKey",
                    "in": "header",
                    "name": "Authorization",
                    "description": "A shared access signature for the namespace: `SharedAccessSignature sr=...`",
                },
                "key": {
                    "type": "http",
                    "scheme": "basic",
                    "description": "Name and secret of a key; with TLS or from the same machine only.",
                },
            },
        },
    }


def _describe(operation: _Operation) -> dict[str, Any]:
    responses: dict[str, Any] = {
        code: {"description": text, "content": _content_of(status.ErrorBody)} for code, text in _ERRORS.items()
    }
    if operation.result is None:
        responses["204"] = {"description": "done"}
    else:
        responses["200"] = {"description": operation.summary, "content": _content_of(operation.result)}
    return {
        "operationId": f"{operation.method}-{operation.path.replace('/', '-').replace('{', '').replace('}', '')}",
        "summary": f"{operation.summary}. Requires the right {operation.right}.",
        "parameters": [{"name": name, **_PARAMETERS[name]} for name in operation.parameters],
        "responses": dict(sorted(responses.items())),
    }


def _content_of(kind: type) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": _REFERENCE.format(name=kind.__name__)}}}


OPENAPI_DOCUMENT: Final = msgspec.json.format(msgspec.json.encode(make_document()), indent=1) + b"\n"
"""The document as JSON."""


if __name__ == "__main__":
    sys.stdout.write(OPENAPI_DOCUMENT.decode())
