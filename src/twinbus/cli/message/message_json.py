"""Messages as JSON: what `receive --json` and `peek --json` print, `send --json-lines` and `resubmit --edit` read.

    {"message_id": "order-17", "properties": {"price": 30}, "body": "two pounds of apples"}

Owns the format. A message that is printed and sent again has the same ids, properties and body. The fields that the
broker sets (`sequence_number`, `enqueued_time`, ...) are ignored when a message is read. A body is `body` (text),
`body_base64` (bytes that are not text), or `body_value` (an AMQP value).
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import uuid
from typing import TYPE_CHECKING, Any, Final

import msgspec

from twinbus.cli.output import CommandFailed
from twinbus.model.message import BrokeredMessage

if TYPE_CHECKING:
    from collections.abc import Callable

_TEXT_FIELDS: Final = {
    "session_id": "session_id",
    "partition_key": "partition_key",
    "via_partition_key": "via_partition_key",
    "content_type": "content_type",
    "subject": "label",
    "to": "to",
    "reply_to": "reply_to",
    "reply_to_session_id": "reply_to_session_id",
}
"""JSON names of text fields, and their names in BrokeredMessage."""
_ID_FIELDS: Final = ("message_id", "correlation_id")
_BODY_FIELDS: Final = ("body", "body_base64", "body_value")
_BROKER_FIELDS: Final = frozenset(
    {"sequence_number", "enqueued_sequence_number", "enqueued_time", "state", "delivery_count", "expires_at", "size"}
    | {"locked_until", "dead_letter_reason", "dead_letter_description", "dead_letter_source"}
)
_FIELDS: Final = frozenset(
    {*_TEXT_FIELDS, *_ID_FIELDS, *_BODY_FIELDS, *_BROKER_FIELDS, "time_to_live_s", "scheduled_time", "properties"}
)


def _time(value: str) -> dt.datetime:
    moment = dt.datetime.fromisoformat(value)
    return moment.replace(tzinfo=dt.UTC) if moment.tzinfo is None else moment


_READERS: Final[dict[str, Callable[[Any], object]]] = {
    "time": _time,
    "duration": lambda value: dt.timedelta(seconds=value),
    "bytes": lambda value: base64.b64decode(value, validate=True),
    "uuid": uuid.UUID,
}
"""Types that JSON does not have: {"type": "time", "value": "2030-12-31T08:00:00+00:00"}."""

_WRITERS: Final[tuple[tuple[type, Callable[[Any], object]], ...]] = (
    (bool, bool),
    (int, int),  # AMQP has several types of numbers and texts
    (float, float),
    (str, str),
    (dt.datetime, lambda value: {"type": "time", "value": value.isoformat()}),
    (dt.timedelta, lambda value: {"type": "duration", "value": value.total_seconds()}),
    (bytes, lambda value: {"type": "bytes", "value": base64.b64encode(value).decode()}),
    (uuid.UUID, lambda value: {"type": "uuid", "value": str(value)}),
)


class InvalidMessage(CommandFailed):
    """A JSON text is not a message."""


# --- writing ----------------------------------------------------------------------------------------------------------


def to_json(message: BrokeredMessage, *, include_body: bool = True) -> dict[str, object]:
    """Return a received or peeked message as a JSON object; fields without a value are left out."""
    time_to_live, scheduled = message.time_to_live, message.scheduled_enqueue_time_utc
    fields: dict[str, object] = {
        "sequence_number": message.sequence_number,
        "enqueued_time": message.enqueued_time_utc.isoformat(),
        "state": message.state,
        "delivery_count": message.delivery_count,
        **{name: _to_json_value(getattr(message, name)) for name in _ID_FIELDS},
        **{name: getattr(message, attribute) for name, attribute in _TEXT_FIELDS.items()},
        "time_to_live_s": None if time_to_live is None else time_to_live.total_seconds(),
        "scheduled_time": None if scheduled is None else scheduled.isoformat(),
        "dead_letter_reason": message.dead_letter_reason,
        "dead_letter_description": message.dead_letter_error_description,
        "dead_letter_source": message.dead_letter_source,
        "properties": {name: _to_json_value(value) for name, value in message.properties.items()} or None,
    }
    if include_body:
        name, body = _body_to_json(message)
        fields[name] = body
    return {name: value for name, value in fields.items() if value is not None}


def _body_to_json(message: BrokeredMessage) -> tuple[str, object]:
    body = message.body
    if not isinstance(body, bytes):
        return "body_value", _to_json_value(body)
    try:
        return "body", body.decode()
    except UnicodeDecodeError:
        return "body_base64", base64.b64encode(body).decode()


def _to_json_value(value: object) -> object:
    """Return a value as JSON, with a type where JSON lacks one."""
    if isinstance(value, list | tuple):
        return [_to_json_value(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _to_json_value(item) for key, item in value.items()}
    for kind, write in _WRITERS:
        if isinstance(value, kind):
            return write(value)
    return None if value is None else str(value)


# --- reading ----------------------------------------------------------------------------------------------------------


def from_json(text: bytes | str) -> BrokeredMessage:
    """Return the message to send that a JSON object describes. Raise InvalidMessage if it is not a message."""
    try:
        fields = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidMessage(f"this is not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise InvalidMessage('a message is a JSON object, such as {"body": "two pounds of apples"}')
    unknown = next((name for name in fields if name not in _FIELDS), None)
    if unknown is not None:
        raise InvalidMessage(f"a message has no field {unknown!r:.60}: use properties for your own values")
    message = BrokeredMessage(_body_from_json(fields))
    for name, attribute in _TEXT_FIELDS.items():
        value = fields.get(name)
        if not isinstance(value, str | None):
            raise InvalidMessage(f"{name} is {value!r:.60}; it must be a text")
        setattr(message, attribute, value)
    for name in _ID_FIELDS:
        value = _from_json_value(name, fields.get(name))
        if not isinstance(value, str | int | bytes | uuid.UUID | None) or isinstance(value, bool):
            raise InvalidMessage(f"{name} is {value!r:.60}; it must be a text or a number")
        if value is not None:
            setattr(message, name, value)
    message.properties = _properties_from_json(fields.get("properties"))
    message.time_to_live = _duration_from_json(fields.get("time_to_live_s"))
    scheduled = fields.get("scheduled_time")
    message.scheduled_enqueue_time_utc = None if scheduled is None else _convert("scheduled_time", _time, scheduled)
    return message


def without_dead_letter_properties(message: BrokeredMessage) -> BrokeredMessage:
    """Remove the reason and the description of a dead letter from a message to send; return the message."""
    for name in ("DeadLetterReason", "DeadLetterErrorDescription"):
        message.properties.pop(name, None)
    return message


def _body_from_json(fields: dict[str, Any]) -> object:
    given = [name for name in _BODY_FIELDS if name in fields]
    if len(given) > 1:
        raise InvalidMessage(f"a message has both {' and '.join(given)}: give only one")
    if not given:
        return b""
    value = fields[given[0]]
    if given[0] == "body_value":
        return _from_json_value("body_value", value)
    if not isinstance(value, str):
        raise InvalidMessage(f"{given[0]} is {value!r:.60}; it must be a text")
    return value.encode() if given[0] == "body" else _convert(given[0], _READERS["bytes"], value)


def _properties_from_json(value: object) -> dict[str, object]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidMessage(f"properties is {value!r:.60}; it must be an object")
    return {name: _from_json_value(f"property {name!r:.60}", item) for name, item in value.items()}


def _duration_from_json(seconds: object) -> dt.timedelta | None:
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or seconds <= 0:
        raise InvalidMessage(f"time_to_live_s is {seconds!r:.60}; it must be a number of seconds above 0")
    try:
        return dt.timedelta(seconds=seconds)
    except OverflowError:
        return None  # longer than Python can represent: the message never expires


def _from_json_value(name: str, value: object) -> object:
    if isinstance(value, list):
        return [_from_json_value(name, item) for item in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"type", "value"} and value["type"] in _READERS:
        return _convert(name, _READERS[value["type"]], value["value"])
    return {key: _from_json_value(name, item) for key, item in value.items()}


def _convert(name: str, reader: Callable[[Any], Any], value: object) -> Any:  # noqa: ANN401  # a time, bytes, ...
    try:
        return reader(value)
    except (ValueError, TypeError, AttributeError, OverflowError, binascii.Error):
        raise InvalidMessage(f"{name} has the invalid value {value!r:.60}") from None
