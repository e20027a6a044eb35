"""One table of a configuration file, read key by key.

    queue = Section(place, value, ("Name", "Properties"))   # any other key is refused
    name = queue.need("Name", text)

Owns: what the types of values are called, and that nothing is taken for something else. Knows nothing of what the keys
mean. Null is the same as nothing.
"""

from __future__ import annotations

import difflib
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from twinbus.model.atom import durations
from twinbus.model.errors import InvalidArgument
from twinbus.server.config.settings import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    # REMOVEPASS

_PLAIN_KEY: Final = re.compile(r"[A-Za-z0-9_$-]+")


class InvalidConfig(ConfigurationError):
    """A file says what cannot be."""


@dataclass(frozen=True, slots=True)
class Location:
    """A file, and a key in it; without a key, all of the file."""

    file: Path
    key: str = ""

    def child(self, key: str) -> Location:
        """A key of the table that is here."""
        if not _PLAIN_KEY.fullmatch(key):
            return Location(self.file, f"{self.key}[{json.dumps(key)}]")
        return Location(self.file, f"{self.key}.{key}" if self.key else key)

    def item(self, number: int) -> Location:
        """One of the list that is here."""
        return Location(self.file, f"{self.key}[{number}]")

    def error(self, reason: str) -> InvalidConfig:
        """What is wrong here."""
        return InvalidConfig(f"{self}: {reason}")

    def __str__(self) -> str:
        return f"{self.file}: {self.key}" if self.key else str(self.file)


T = TypeVar("T")


class Section:
    """What one table says."""

    def __init__(self, location: Location, value: object, keys: Collection[str]) -> None:
        """Refuse what is no table, and keys that none of these is."""
        if not isinstance(value, dict):
            raise unexpected_type(location, "a table of keys and values", value)
        for key in value:
            if key not in keys:
                raise location.child(key).error(f"is no key here; {_suggestion(key, keys)}")
        self.location = location
        self._values: dict[str, object] = value

    def has(self, key: str) -> bool:
        """It says something about this."""
        return self._values.get(key) is not None

    def get(self, key: str, read: Callable[[Location, object], T]) -> T | None:
        """What it says, or None."""
        value = self._values.get(key)
        return None if value is None else read(self.location.child(key), value)

    def require(self, key: str, read: Callable[[Location, object], T]) -> T:
        """What it says, which has to be something."""
        found = self.get(key, read)
        if found is None:
            raise self.location.child(key).error("is missing")
        return found

    def each(self, key: str, read: Callable[[Location, object], T]) -> list[T]:
        """All that it lists."""
        return self.get(key, list_of(read)) or []


def list_of(read: Callable[[Location, object], T]) -> Callable[[Location, object], list[T]]:
    """A list of these."""

    def read_all(place: Location, value: object) -> list[T]:
        if not isinstance(value, list):
            raise unexpected_type(place, "a list", value)
        return [read(place.item(number), one) for number, one in enumerate(value)]

    return read_all


def text(location: Location, value: object) -> str:
    """A text."""
    if not isinstance(value, str):
        raise unexpected_type(location, "a text", value)
    return value


def whole_number(location: Location, value: object) -> int:
    """A whole number."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise unexpected_type(location, "a whole number", value)
    return value


def number(location: Location, value: object) -> float:
    """A number."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise unexpected_type(location, "a number", value)
    return float(value)


def boolean(location: Location, value: object) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise unexpected_type(location, "true or false", value)
    return value


def path(location: Location, value: object) -> Path:
    """A path; one that is not absolute starts where the file lies."""
    return location.file.parent / text(location, value)


def duration_ms(location: Location, value: object) -> int:
    """A duration as ISO 8601 writes it, in milliseconds."""
    if not isinstance(value, str):
        raise unexpected_type(location, "a duration such as PT1M", value)
    try:
        return durations.parse_duration(value)
    except InvalidArgument as error:
        raise location.error(f"{value!r:.60}: {error}") from None


def choice(*choices: str) -> Callable[[Location, object], str]:
    """One of these texts."""

    def read(place: Location, value: object) -> str:
        if text(place, value) not in choices:
            raise place.error(f"{value!r:.60}: it can be {', '.join(choices)}")
        return str(value)

    return read


def unexpected_type(location: Location, expected_type: str, value: object) -> InvalidConfig:
    """Something else is there."""
    return location.error(f"expected {expected_type}, found {_describe_value(value)}")


def _describe_value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return f"the number {value:g}" if isinstance(value, float) else f"the number {value}"
    if isinstance(value, str):
        return f"the text {value!r:.60}"
    if isinstance(value, list):
        return "a list"
    return "a table" if isinstance(value, dict) else f"{value}"


def _suggestion(key: str, keys: Collection[str]) -> str:
    by_lower_case = {known.lower(): known for known in keys}
    close = difflib.get_close_matches(key.lower(), by_lower_case, n=1)
    return f"is {by_lower_case[close[0]]} meant?" if close else f"there can be {', '.join(keys)}"
