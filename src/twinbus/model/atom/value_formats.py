"""Text formats of values in descriptions.

Owns the formats, and the api-versions that introduced elements. The model validates values. Values in a client's
request are parsed strictly; values in a service's response are accepted even if a request could not set them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from twinbus.model import path
from twinbus.model.atom import durations, envelope
from twinbus.model.description import STATUSES
from twinbus.model.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable

NEWEST_API_VERSION: Final = "2024-05"
PARTITIONING_SINCE: Final = "2013-10"
FILTER_COUNTS_SINCE: Final = "2024-05"

_BOOLEANS: Final = {"true": True, "1": True, "false": False, "0": False}
_WHOLE_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,18}")
_AVAILABLE_TEXT: Final = "Available"


@dataclass(frozen=True, slots=True)
class WriteContext:
    """Host name and api-version that the text of a description depends on."""

    host: str
    """Host name of the service, as the client that reads the description knows it."""
    api_version: str
    """Api-version of the client that reads the description."""


@dataclass(frozen=True, slots=True)
class ValueFormat:
    """Functions that read and write values of one kind."""

    read: Callable[[str], Any]
    write: Callable[[Any, WriteContext], str] = lambda value, _: str(value)
    keeps_whitespace: bool = False
    """True if leading and trailing whitespace belongs to the value."""
    read_response: Callable[[str], Any] | None = None
    """Function that reads a value from a service's response, if it differs from `read`."""


def _read_boolean(text: str) -> bool:
    if text.lower() not in _BOOLEANS:
        raise InvalidArgument("it has to be true or false")
    return _BOOLEANS[text.lower()]


def _read_number(text: str) -> int:
    if not _WHOLE_NUMBER.fullmatch(text):
        raise InvalidArgument("it has to be a whole number")
    return int(text)


def _read_status(text: str) -> str:
    for status in STATUSES:
        if status.lower() == text.lower():
            return status
    raise InvalidArgument(f"it has to be {', '.join(STATUSES)}")


def _read_entity_path(text: str) -> str | None:
    # The SDKs send sb://host/path and show what the service returns; the model holds the plain path.
    return path.check_entity_path(path.relative_path(text)) if text else None


def _read_response_duration(text: str) -> int:
    # A request cannot set a zero duration, but a zero duration in a response must not make a whole list unreadable.
    return durations.parse_duration(text) if text.strip("PTDHMS0.") else 0


DURATION: Final = ValueFormat(
    durations.parse_duration, lambda value, _: durations.format_duration(value), read_response=_read_response_duration
)
BOOLEAN: Final = ValueFormat(_read_boolean, lambda value, _: str(value).lower())
NUMBER: Final = ValueFormat(_read_number)
STATUS: Final = ValueFormat(_read_status, read_response=lambda text: text)
ENTITY_PATH: Final = ValueFormat(
    _read_entity_path,
    lambda value, context: f"sb://{context.host}/{value}",
    read_response=lambda text: path.relative_path(text) or None,
)
TEXT: Final = ValueFormat(lambda text: text or None, keeps_whitespace=True)
TIMESTAMP: Final = ValueFormat(envelope.parse_timestamp, lambda value, _: envelope.format_timestamp(value))
AVAILABILITY: Final = ValueFormat(
    lambda text: text == _AVAILABLE_TEXT, lambda value, _: _AVAILABLE_TEXT if value else "Limited"
)
