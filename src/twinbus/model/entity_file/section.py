"""One table of a configuration file, read key by key.

    queue = Section(location, value, ("Name", "Properties"))   # any other key is refused
    name = queue.require("Name", text)

Owns: the types of values and their names in errors; no value is converted to another type. Knows nothing of the meaning
of keys. A null value counts as a missing key.
"""

from __future__ import annotations

import difflib
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from twinbus.model.atom import durations
from twinbus.model.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

_PLAIN_KEY: Final = re.compile(r"[A-Za-z0-9_$-]+")


class InvalidConfig(Exception):
    """A file has an invalid value. The message names the file, the key and the reason."""


@dataclass(frozen=True, slots=True)
class Location:
    """A key in a file, or the whole file if the key is empty."""

    file: Path
    key: str = ""

    def child(self, key: str) -> Location:
        """Return the location of a key in the table at this location."""
        if not _PLAIN_KEY.fullmatch(key):
            return Location(self.file, f"{self.key}[{json.dumps(key)}]")
        return Location(self.file, f"{self.key}.{key}" if self.key else key)

    def item(self, number: int) -> Location:
        """Return the location of item `number` in the list at this location."""
        return Location(self.file, f"{self.key}[{number}]")

    def error(self, reason: str) -> InvalidConfig:
        """Return an error that names this location and the reason."""
        return InvalidConfig(f"{self}: {reason}")

    def __str__(self) -> str:
        return f"{self.file}: {self.key}" if self.key else str(self.file)


T = TypeVar("T")


class Section:
    """One table of a configuration file."""

    def __init__(self, location: Location, value: object, keys: Collection[str]) -> None:
        """Create a section from a table. Raise InvalidConfig if `value` is not a table or has a key not in `keys`."""
        if not isinstance(value, dict):
            raise unexpected_type(location, "a table of keys and values", value)
        for key in value:
            if key not in keys:
                raise location.child(key).error(f"unknown key: {_suggestion(key, keys)}")
        self.location = location
        self._values: dict[str, object] = value

    def has(self, key: str) -> bool:
        """Return whether the table has a value for `key`."""
        return self._values.get(key) is not None

    def get(self, key: str, read: Callable[[Location, object], T]) -> T | None:
        """Return the value of `key`, converted by `read`, or None if the key is missing."""
        value = self._values.get(key)
        return None if value is None else read(self.location.child(key), value)

    def require(self, key: str, read: Callable[[Location, object], T]) -> T:
        """Return the value of `key`, converted by `read`. Raise InvalidConfig if the key is missing."""
        value = self.get(key, read)
        if value is None:
            raise self.location.child(key).error("is missing")
        return value

    def each(self, key: str, read: Callable[[Location, object], T]) -> list[T]:
        """Return the items of the list at `key`, each converted by `read`; an empty list if the key is missing."""
        return self.get(key, list_of(read)) or []


def list_of(read: Callable[[Location, object], T]) -> Callable[[Location, object], list[T]]:
    """Return a reader for a list whose items `read` converts."""

    def read_all(location: Location, value: object) -> list[T]:
        if not isinstance(value, list):
            raise unexpected_type(location, "a list", value)
        return [read(location.item(number), item) for number, item in enumerate(value)]

    return read_all


def text(location: Location, value: object) -> str:
    """Read a string."""
    if not isinstance(value, str):
        raise unexpected_type(location, "a string", value)
    return value


def whole_number(location: Location, value: object) -> int:
    """Read a whole number."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise unexpected_type(location, "a whole number", value)
    return value


def number(location: Location, value: object) -> float:
    """Read a number."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise unexpected_type(location, "a number", value)
    return float(value)


def boolean(location: Location, value: object) -> bool:
    """Read true or false."""
    if not isinstance(value, bool):
        raise unexpected_type(location, "true or false", value)
    return value


def path(location: Location, value: object) -> Path:
    """Read a path; a relative path is resolved from the folder of the configuration file."""
    return location.file.parent / text(location, value)


def duration_ms(location: Location, value: object) -> int:
    """Read an ISO 8601 duration, and return it in milliseconds."""
    if not isinstance(value, str):
        raise unexpected_type(location, "a duration such as PT1M", value)
    try:
        return durations.parse_duration(value)
    except InvalidArgument as error:
        raise location.error(f"{value!r:.60}: {error}") from None


def choice(*choices: str) -> Callable[[Location, object], str]:
    """Return a reader for a string that must be one of `choices`."""

    def read(location: Location, value: object) -> str:
        if text(location, value) not in choices:
            raise location.error(f"{value!r:.60}: it can be {', '.join(choices)}")
        return str(value)

    return read


def unexpected_type(location: Location, expected_type: str, value: object) -> InvalidConfig:
    """Return the error for a value of an unexpected type."""
    return location.error(f"expected {expected_type}, found {_describe_value(value)}")


def _describe_value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return f"the number {value:g}" if isinstance(value, float) else f"the number {value}"
    if isinstance(value, str):
        return f"the string {value!r:.60}"
    if isinstance(value, list):
        return "a list"
    return "a table" if isinstance(value, dict) else f"{value}"


def _suggestion(key: str, keys: Collection[str]) -> str:
    by_lower_case = {valid.lower(): valid for valid in keys}
    close = difflib.get_close_matches(key.lower(), by_lower_case, n=1)
    return f"did you mean {by_lower_case[close[0]]}?" if close else f"use one of {', '.join(keys)}"
