"""What a paired client reports of itself: a JSON object that is kept as it came, as long as it is no burden to anybody.

Owns: what is valid in a report. The server itself reads `client`, `instance`, `primary`, `ping_interval_s` and
`report_interval_s`; the rest is for people who read it, on terminals and web pages: no string has control characters.
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
"""Between pings, as clients can set it; and between reports."""
_CLIENT_ID: Final = re.compile(r"[^\x00-\x20/\x7f-\xa0]{1,128}")
_PRIMARY_NAME: Final = re.compile(r"[A-Za-z](?:[A-Za-z0-9-]{0,48}[A-Za-z0-9])?")
_CONTROL_CHARACTER: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""But for tabs and ends of lines, which errors have in them."""
_INT64_LIMIT: Final = 2**63


@dataclass(frozen=True, slots=True)
class Report:
    """A report that can be kept."""

    client: str
    primary: str
    """The name of the primary namespace, as the client spells it."""
    report_interval_s: float
    """How often the client reports at least."""
    content: dict[str, object]
    """All of it."""
    instance: str = ""
    """Tells factories with the same client id apart."""


@dataclass(frozen=True, slots=True)
class ClientDeparture:
    """The last word of a client: it has ended."""

    client: str
    primary: str
    instance: str = ""


def parse_report(body: object) -> Report:
    """A report as JSON (text, or its bytes) or as an AMQP map. InvalidArgument, MessageTooLarge."""
    if isinstance(body, str | bytes):
        body = _decode_json(body if isinstance(body, bytes) else str(body).encode())
    if not isinstance(body, dict):
        raise InvalidArgument(f"a report is {type(body).__name__}; it is a map, or a JSON text with an object")
    content = _to_json_value(body, 1)
    assert isinstance(content, dict)
    if len(msgspec.json.encode(content)) > MAX_REPORT_BYTES:
        raise MessageTooLarge(f"a report of more than {MAX_REPORT_BYTES:,} bytes, as JSON")
    ping_interval_s = _read_interval(content, "ping_interval_s")
    is_timed = content.get("report_interval_s") is not None
    return Report(
        **_read_identity(content),
        report_interval_s=_read_interval(content, "report_interval_s") if is_timed else ping_interval_s,
        content=content,
    )


def parse_departure(body: object) -> ClientDeparture:
    """What a client says that reports no more: `client`, `primary` and `instance` as in its reports."""
    if not isinstance(body, dict):
        raise InvalidArgument(f"the arguments are {type(body).__name__}; they are a map")
    return ClientDeparture(**_read_identity(body))


class _Identity(TypedDict):
    client: str
    primary: str
    instance: str


def _read_identity(content: Mapping[str, object]) -> _Identity:
    words = "1 to 128 printable characters without spaces and slashes"
    return {
        "client": _read_text(content, "client", _CLIENT_ID, words),
        "primary": _read_text(
            content, "primary", _PRIMARY_NAME, "the name of a namespace: letters, digits and hyphens"
        ),
        "instance": "" if content.get("instance") is None else _read_text(content, "instance", _CLIENT_ID, words),
    }


def _decode_json(text: bytes) -> object:
    if len(text) > MAX_REPORT_BYTES:
        raise MessageTooLarge(f"a report of {len(text):,} bytes; it can have {MAX_REPORT_BYTES:,}")
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidArgument(f"the report is no JSON: {error}") from None


def _to_json_value(value: object, depth: int) -> object:
    """The same as JSON has it."""
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
    raise InvalidArgument(f"the report has {value!r:.60} in it, which is not for JSON")


def _iso_time(milliseconds: int) -> str:
    try:
        return datetime_of(milliseconds).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except OverflowError:
        raise InvalidArgument(f"the report has a time in it that no calendar has: {milliseconds}") from None


def _check_string(value: object, description: str) -> str:
    if not isinstance(value, str):
        raise InvalidArgument(f"{description} in the report is {value!r:.60}; it is a string")
    if len(value) > MAX_STRING_CHARACTERS:
        raise InvalidArgument(
            f"{description} in the report has {len(value):,} characters; it can have {MAX_STRING_CHARACTERS:,}"
        )
    if _CONTROL_CHARACTER.search(value):
        raise InvalidArgument(f"{description} in the report has control characters in it: {value!r:.60}")
    return str(value)


def _read_text(content: Mapping[str, object], name: str, pattern: re.Pattern[str], description: str) -> str:
    found = content.get(name)
    if not isinstance(found, str) or not pattern.fullmatch(found):
        raise InvalidArgument(f"{name} is {found!r:.80}; it is {description}")
    return str(found)


def _read_interval(content: Mapping[str, object], name: str) -> float:
    found, (lowest, highest) = content.get(name), INTERVAL_RANGE_S
    if not isinstance(found, int | float) or isinstance(found, bool) or not lowest <= found <= highest:
        raise InvalidArgument(f"{name} is {found!r:.60}; it is a number of seconds, {lowest} to {highest}")
    return found
