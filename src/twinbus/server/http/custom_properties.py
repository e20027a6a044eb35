"""Application properties of messages as HTTP headers with JSON values.

    Priority: "High"
    Weight: 12.5

Owns: which headers are properties, and the conversion between a header and an AMQP value. HTTP's own headers are never
properties, in either direction, because a property named Content-Length would break the connection.
"""

from __future__ import annotations

import base64
import json
import math
import re
import uuid
from typing import TYPE_CHECKING, Final

import msgspec

from twinbus.amqp.codec.decode import decode
from twinbus.amqp.errors import DecodeError
from twinbus.amqp.message import Section
from twinbus.amqp.types import Decimal32, Decimal64, Decimal128, Timestamp
from twinbus.model.errors import InvalidArgument
from twinbus.server.http.broker_properties import format_time

if TYPE_CHECKING:
    from collections.abc import Iterable

    from twinbus.amqp.message import Message

_HTTP_HEADER: Final = re.compile(
    r"""
    accept | accept-(charset|encoding|language|ranges) | access-control-.* | age | allow | alt-svc | authorization
    | brokerproperties | cache-control | connection
    | content-(disposition|encoding|language|length|location|md5|range|security-policy|type)
    | cookie | date | dnt | early-data | etag | expect | expires | forwarded | from | host | http2-settings
    | if-(match|modified-since|none-match|range|unmodified-since) | keep-alive | last-modified | link | location
    | max-forwards | origin | pragma | prefer | proxy-.* | range | referer | retry-after | sec-.* | server
    | servicebus(dlq)?supplementaryauthorization | set-cookie | strict-transport-security | te | trailer
    | transfer-encoding | upgrade | upgrade-insecure-requests | user-agent | vary | via | warning | www-authenticate
    | x-forwarded-.* | x-ms-.* | x-real-ip | x-request-id
    """,
    re.IGNORECASE | re.VERBOSE,
)
"""Headers that are not properties: headers defined by HTTP, by this service, and by proxies."""
_PROPERTY_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}")
_INT64_RANGE: Final = range(-(2**63), 2**63)


def from_headers(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, object]:
    """Return the properties among the headers of a request; names keep their letter case."""
    pairs = [(name.decode("ascii"), value) for name, value in headers]
    return {name: _parse_value(name, value) for name, value in pairs if not _HTTP_HEADER.fullmatch(name)}


def check_json_values(values: dict[str, str | int | float | bool | None]) -> dict[str, object]:
    """Return JSON properties as AMQP values.

    Integers beyond 64 bits become floats. Raise InvalidArgument if an integer does not fit in a float.
    """
    return {name: _fit_number(name, value) for name, value in values.items()}


def to_headers(message: Message) -> list[tuple[bytes, bytes]]:
    """Return headers for the properties of a message, except properties that a header cannot name or represent."""
    headers = []
    for name, raw in message.pairs(Section.APPLICATION_PROPERTIES):
        if isinstance(name, str) and _PROPERTY_NAME.fullmatch(name) and not _HTTP_HEADER.fullmatch(name):
            text = _to_json(_decode_value(raw))
            if text is not None:
                headers.append((name.encode("ascii"), text.encode("ascii")))
    return headers


def _parse_value(name: str, value: bytes) -> object:
    """Return the value of a header; a value that is not a JSON scalar is text, because proxies add such headers."""
    try:
        parsed: object = msgspec.json.decode(value)
    except msgspec.ValidationError:
        raise _out_of_range_error(name) from None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        parsed = []
    return _decode_text(value) if isinstance(parsed, dict | list) else _fit_number(name, parsed)


def _fit_number(name: str, value: object) -> object:
    try:
        return float(value) if type(value) is int and value not in _INT64_RANGE else value
    except OverflowError:
        raise _out_of_range_error(name) from None


def _out_of_range_error(name: str) -> InvalidArgument:
    return InvalidArgument(
        f"the property {name!r:.80} is a number that does not fit in 64 bits: send it as a quoted string"
    )


def _decode_text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def _decode_value(pair: bytes) -> object:
    """Return the value of an encoded pair of name and value; an empty tuple if it cannot be decoded."""
    try:
        _, value_at = decode(pair, 0)
        return decode(pair, value_at)[0]
    except DecodeError:
        return ()


def _to_json(value: object) -> str | None:
    """Return a value as JSON, or None if the value has no text form.

    A value of a type that JSON lacks becomes a string.
    """
    if isinstance(value, bool | int | str | None) and not isinstance(value, Timestamp):
        return json.dumps(value)
    if isinstance(value, float) and math.isfinite(value):
        return json.dumps(value)
    text = _to_text(value)
    return json.dumps(text) if text is not None else None


def _to_text(value: object) -> str | None:
    if isinstance(value, Timestamp):
        return format_time(value)
    if isinstance(value, Decimal32 | Decimal64 | Decimal128):
        return str(value.to_decimal())
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return str(value) if isinstance(value, uuid.UUID | float) else None
