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

NEWEST: Final = "2024-05"
PARTITIONING_SINCE: Final = "2013-10"
FILTER_COUNTS_SINCE: Final = "2024-05"

_BOOLEANS: Final = {"true": True, "1": True, "false": False, "0": False}
_WHOLE_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,18}")
_AVAILABLE: Final = "Available"


@dataclass(frozen=True, slots=True)
class View:
    """Who a description is written for."""

    host: str
    """The service, as the reader knows it."""
    version: str
    """The reader's api-version."""


@dataclass(frozen=True, slots=True)
class Kind:
    """How values of one kind are read and written."""

    read: Callable[[str], Any]
    write: Callable[[Any, View], str] = lambda value, _: str(value)
    is_text: bool = False
    """Blanks at its ends belong to it."""
    read_shown: Callable[[str], Any] | None = None
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


def _read_entity(text: str) -> str | None:
    # The SDKs send sb://host/name for a name, and show what comes back: inside, it is the name.
    return path.check_name(path.relative(text)) if text else None


def _read_shown_duration(text: str) -> int:
    # Zero is no duration to ask for, and no reason not to show a whole list.
    return durations.parse(text) if text.strip("PTDHMS0.") else 0


DURATION: Final = Kind(durations.parse, lambda value, _: durations.write(value), read_shown=_read_shown_duration)
BOOLEAN: Final = Kind(_read_boolean, lambda value, _: str(value).lower())
NUMBER: Final = Kind(_read_number)
STATUS: Final = Kind(_read_status, read_shown=lambda text: text)
ENTITY: Final = Kind(
    _read_entity, lambda value, view: f"sb://{view.host}/{value}", read_shown=lambda text: path.relative(text) or None
)
TEXT: Final = Kind(lambda text: text or None, is_text=True)
MOMENT: Final = Kind(envelope.moment_ms, lambda value, _: envelope.timestamp(value))
AVAILABILITY: Final = Kind(lambda text: text == _AVAILABLE, lambda value, _: _AVAILABLE if value else "Limited")
