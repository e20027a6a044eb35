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
from twinbus.model.times import moment_of

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_BYTES: Final = 65_536
MAX_DEPTH: Final = 8
MAX_STRING: Final = 4_096
INTERVAL_S: Final = (1, 1_800)
"""Between pings, as clients can set it; and between reports."""
_CLIENT: Final = re.compile(r"[^\x00-\x20/\x7f-\xa0]{1,128}")
_PRIMARY: Final = re.compile(r"[A-Za-z](?:[A-Za-z0-9-]{0,48}[A-Za-z0-9])?")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""But for tabs and ends of lines, which errors have in them."""
_WIDEST: Final = 2**63


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
class Leave:
    """The last word of a client: it has ended."""

    client: str
    primary: str
    instance: str = ""


def read(body: object) -> Report:
    """A report as JSON (text, or its bytes) or as an AMQP map. InvalidArgument, MessageTooLarge."""
    if isinstance(body, str | bytes):
        body = _decode(body if isinstance(body, bytes) else str(body).encode())
    if not isinstance(body, dict):
        raise InvalidArgument(f"a report is {type(body).__name__}; it is a map, or a JSON text with an object")
    content = _plain(body, 1)
    assert isinstance(content, dict)
    if len(msgspec.json.encode(content)) > MAX_BYTES:
        raise MessageTooLarge(f"a report of more than {MAX_BYTES:,} bytes, as JSON")
    ping_interval_s = _interval(content, "ping_interval_s")
    is_timed = content.get("report_interval_s") is not None
    return Report(
        **_identity(content),
        report_interval_s=_interval(content, "report_interval_s") if is_timed else ping_interval_s,
        content=content,
    )


def read_leave(body: object) -> Leave:
    """What a client says that reports no more: `client`, `primary` and `instance` as in its reports."""
    if not isinstance(body, dict):
        raise InvalidArgument(f"the arguments are {type(body).__name__}; they are a map")
    return Leave(**_identity(body))


class _Identity(TypedDict):
    client: str
    primary: str
    instance: str


def _identity(content: Mapping[str, object]) -> _Identity:
    words = "1 to 128 printable characters without spaces and slashes"
    return {
        "client": _text(content, "client", _CLIENT, words),
        "primary": _text(content, "primary", _PRIMARY, "the name of a namespace: letters, digits and hyphens"),
        "instance": "" if content.get("instance") is None else _text(content, "instance", _CLIENT, words),
    }


def _decode(text: bytes) -> object:
    if len(text) > MAX_BYTES:
        raise MessageTooLarge(f"a report of {len(text):,} bytes; it can have {MAX_BYTES:,}")
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidArgument(f"the report is no JSON: {error}") from None


def _plain(value: object, depth: int) -> object:
    """The same as JSON has it."""
    if depth > MAX_DEPTH:
        raise InvalidArgument(f"the report is more than {MAX_DEPTH} levels deep")
    if isinstance(value, dict):
        return {_string(key, "a name"): _plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple | Array):
        return [_plain(item, depth + 1) for item in (value.items if isinstance(value, Array) else value)]
    if isinstance(value, str):
        return _string(value, "a text")
    return _scalar(value)


def _scalar(value: object) -> object:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Timestamp):
        return _moment(value)
    if isinstance(value, int) and -_WIDEST <= value < 2 * _WIDEST:
        return int(value)
    if isinstance(value, float) and math.isfinite(value):
        return float(value)
    raise InvalidArgument(f"the report has {value!r:.60} in it, which is not for JSON")


def _moment(milliseconds: int) -> str:
    try:
        return moment_of(milliseconds).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except OverflowError:
        raise InvalidArgument(f"the report has a time in it that no calendar has: {milliseconds}") from None


def _string(found: object, what: str) -> str:
    if not isinstance(found, str):
        raise InvalidArgument(f"{what} in the report is {found!r:.60}; it is a string")
    if len(found) > MAX_STRING:
        raise InvalidArgument(f"{what} in the report has {len(found):,} characters; it can have {MAX_STRING:,}")
    if _CONTROL.search(found):
        raise InvalidArgument(f"{what} in the report has control characters in it: {found!r:.60}")
    return str(found)


def _text(content: Mapping[str, object], name: str, form: re.Pattern[str], what: str) -> str:
    found = content.get(name)
    if not isinstance(found, str) or not form.fullmatch(found):
        raise InvalidArgument(f"{name} is {found!r:.80}; it is {what}")
    return str(found)


def _interval(content: Mapping[str, object], name: str) -> float:
    found, (lowest, highest) = content.get(name), INTERVAL_S
    if not isinstance(found, int | float) or isinstance(found, bool) or not lowest <= found <= highest:
        raise InvalidArgument(f"{name} is {found!r:.60}; it is a number of seconds, {lowest} to {highest}")
    return found
