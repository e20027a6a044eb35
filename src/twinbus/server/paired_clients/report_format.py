"""The format of reports from paired clients: a JSON object, stored unchanged if it is valid.

Owns: the validation of a report. The server reads only `client`, `instance`, `primary`, `ping_interval_s` and
`report_interval_s`. Operators see all other fields on terminals and web pages, so strings with control characters are
rejected.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypedDict

import msgspec

from twinbus.amqp.types import Array, Timestamp
from twinbus.model.errors import InvalidArgument, MessageTooLarge
from twinbus.model.times import datetime_of

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_REPORT_BYTES: Final = 65_536
MAX_DEPTH: Final = 8
MAX_STRING_CHARACTERS: Final = 4_096
INTERVAL_RANGE_S: Final = (1, 1_800)
"""The range of ping intervals that clients can set, and of report intervals."""
_CLIENT_ID: Final = re.compile(r"[^\x00-\x20/\x7f-\xa0]{1,128}")
_PRIMARY_NAME: Final = re.compile(r"[A-Za-z](?:[A-Za-z0-9-]{0,48}[A-Za-z0-9])?")
_CONTROL_CHARACTER: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Control characters except tabs and line feeds, which error texts contain."""
_INT64_LIMIT: Final = 2**63


@dataclass(frozen=True, slots=True)
class Report:
    """A valid report."""

    client: str
    primary: str
    """The name of the primary namespace, as the client spells it."""
    report_interval_s: float
    """The longest time between two reports from the client."""
    content: dict[str, object]
    """The whole report."""
    instance: str = ""
    """An id that distinguishes factories with the same client id."""


@dataclass(frozen=True, slots=True)
class ClientDeparture:
    """The notice that a client has closed and will send no more reports."""

    client: str
    primary: str
    instance: str = ""


def parse_report(body: object) -> Report:
    """Parse a report: JSON as text or bytes, or an AMQP map. Raise InvalidArgument or MessageTooLarge."""
    if isinstance(body, str | bytes):
        body = _decode_json(body if isinstance(body, bytes) else str(body).encode())
    if not isinstance(body, dict):
        raise InvalidArgument(f"the report is {type(body).__name__}; send a map, or an object as JSON")
    content = _to_json_value(body, 1)
    assert isinstance(content, dict)
    if len(msgspec.json.encode(content)) > MAX_REPORT_BYTES:
        raise MessageTooLarge(f"the report has more than {MAX_REPORT_BYTES:,} bytes as JSON")
    ping_interval_s = _read_interval(content, "ping_interval_s")
    has_interval = content.get("report_interval_s") is not None
    return Report(
        **_read_identity(content),
        report_interval_s=_read_interval(content, "report_interval_s") if has_interval else ping_interval_s,
        content=content,
    )


def parse_departure(body: object) -> ClientDeparture:
    """Parse the notice from a client that has closed: `client`, `primary` and `instance` as in its reports."""
    if not isinstance(body, dict):
        raise InvalidArgument(f"the arguments are {type(body).__name__}; send a map")
    return ClientDeparture(**_read_identity(body))


class _Identity(TypedDict):
    client: str
    primary: str
    instance: str


def _read_identity(content: Mapping[str, object]) -> _Identity:
    id_rule = "1 to 128 printable characters without spaces and slashes"
    return {
        "client": _read_text(content, "client", _CLIENT_ID, id_rule),
        "primary": _read_text(
            content, "primary", _PRIMARY_NAME, "the name of a namespace: letters, digits and hyphens"
        ),
        "instance": "" if content.get("instance") is None else _read_text(content, "instance", _CLIENT_ID, id_rule),
    }


def _decode_json(text: bytes) -> object:
    if len(text) > MAX_REPORT_BYTES:
        raise MessageTooLarge(f"the report has {len(text):,} bytes (limit: {MAX_REPORT_BYTES:,})")
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidArgument(f"the report is not valid JSON: {error}") from None


def _to_json_value(value: object, depth: int) -> object:
    """Return the value as JSON types. Raise InvalidArgument if the value cannot be represented or exceeds a limit."""
    if depth > MAX_DEPTH:
        raise InvalidArgument(f"the report is more than {MAX_DEPTH} levels deep")
    if isinstance(value, dict):
        return {_check_string(key, "a name"): _to_json_value(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple | Array):
        return [_to_json_value(item, depth + 1) for item in (value.items if isinstance(value, Array) else value)]
    if isinstance(value, str):
        return _check_string(value, "a text")
    return _to_json_scalar(value)


def _to_json_scalar(value: object) -> object:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Timestamp):
        return _iso_time(value)
    if isinstance(value, int) and -_INT64_LIMIT <= value < 2 * _INT64_LIMIT:
        return int(value)
    if isinstance(value, float) and math.isfinite(value):
        return float(value)
    raise InvalidArgument(f"the report contains {value!r:.60}, which JSON cannot represent")


def _iso_time(milliseconds: int) -> str:
    try:
        return datetime_of(milliseconds).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except OverflowError:
        raise InvalidArgument(f"the report contains a time out of range: {milliseconds}") from None


def _check_string(value: object, description: str) -> str:
    if not isinstance(value, str):
        raise InvalidArgument(f"{description} in the report is {value!r:.60}; it must be a string")
    if len(value) > MAX_STRING_CHARACTERS:
        raise InvalidArgument(
            f"{description} in the report has {len(value):,} characters (limit: {MAX_STRING_CHARACTERS:,})"
        )
    if _CONTROL_CHARACTER.search(value):
        raise InvalidArgument(f"{description} in the report contains control characters: {value!r:.60}")
    return str(value)


def _read_text(content: Mapping[str, object], name: str, pattern: re.Pattern[str], description: str) -> str:
    value = content.get(name)
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise InvalidArgument(f"{name} is {value!r:.80}; it must be {description}")
    return str(value)


def _read_interval(content: Mapping[str, object], name: str) -> float:
    value, (lowest, highest) = content.get(name), INTERVAL_RANGE_S
    if not isinstance(value, int | float) or isinstance(value, bool) or not lowest <= value <= highest:
        raise InvalidArgument(f"{name} is {value!r:.60}; it must be a number of seconds, {lowest} to {highest}")
    return value
