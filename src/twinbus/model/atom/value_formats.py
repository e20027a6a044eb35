"""Kinds of values in descriptions: how each is written as text, and read.

Owns: the texts, and since which api-version there is what. What is a valid value is the model's to say. What a client
asks for is read strictly; what a service shows is as it is, also where nobody could ask for it here.
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
    """Who a description is written for."""

    host: str
    """The service, as the reader knows it."""
    api_version: str
    """The reader's api-version."""


@dataclass(frozen=True, slots=True)
class ValueFormat:
    """How values of one kind are read and written."""

    read: Callable[[str], Any]
    write: Callable[[Any, WriteContext], str] = lambda value, _: str(value)
    keeps_whitespace: bool = False
    """Blanks at its ends belong to it."""
    read_response: Callable[[str], Any] | None = None
    """How it is read where a service shows it, if that is another way."""


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
    # The SDKs send sb://host/name for a name, and show what comes back: inside, it is the name.
    return path.check_entity_path(path.relative_path(text)) if text else None


def _read_response_duration(text: str) -> int:
    # Zero is no duration to ask for, and no reason not to show a whole list.
    return durations.parse_duration(text) if text.strip("PTDHMS0.") else 0


DURATION: Final = ValueFormat(
    durations.parse_duration, lambda value, _: durations.format_duration(value), read_response=_read_response_duration
)
BOOLEAN: Final = ValueFormat(_read_boolean, lambda value, _: str(value).lower())
NUMBER: Final = ValueFormat(_read_number)
STATUS: Final = ValueFormat(_read_status, read_response=lambda text: text)
ENTITY_PATH: Final = ValueFormat(
    _read_entity_path,
    lambda value, view: f"sb://{view.host}/{value}",
    read_response=lambda text: path.relative_path(text) or None,
)
TEXT: Final = ValueFormat(lambda text: text or None, keeps_whitespace=True)
TIMESTAMP: Final = ValueFormat(envelope.parse_timestamp, lambda value, _: envelope.format_timestamp(value))
AVAILABILITY: Final = ValueFormat(
    lambda text: text == _AVAILABLE_TEXT, lambda value, _: _AVAILABLE_TEXT if value else "Limited"
)
