"""One table of a configuration file, read key by key.

    queue = Section(place, value, ("Name", "Properties"))   # any other key is refused
    name = queue.need("Name", text)

Owns: what the types of values are called, and that nothing is taken for something else. Knows nothing of what the keys
mean. Null is the same as nothing.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, TypeVar

from twinbus.model.atom import durations
from twinbus.model.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    from twinbus.server.config.place import InvalidConfig, Place

T = TypeVar("T")


class Section:
    """What one table says."""

    def __init__(self, place: Place, value: object, keys: Collection[str]) -> None:
        """Refuse what is no table, and keys that none of these is."""
        if not isinstance(value, dict):
            raise expected(place, "a table of keys and values", value)
        for key in value:
            if key not in keys:
                raise place.below(key).refusal(f"is no key here; {_suggestion(key, keys)}")
        self.place = place
        self._values: dict[str, object] = value

    def has(self, key: str) -> bool:
        """It says something about this."""
        return self._values.get(key) is not None

    def get(self, key: str, read: Callable[[Place, object], T]) -> T | None:
        """What it says, or None."""
        value = self._values.get(key)
        return None if value is None else read(self.place.below(key), value)

    def need(self, key: str, read: Callable[[Place, object], T]) -> T:
        """What it says, which has to be something."""
        found = self.get(key, read)
        if found is None:
            raise self.place.below(key).refusal("is missing")
        return found

    def each(self, key: str, read: Callable[[Place, object], T]) -> list[T]:
        """All that it lists."""
        return self.get(key, list_of(read)) or []


def list_of(read: Callable[[Place, object], T]) -> Callable[[Place, object], list[T]]:
    """A list of these."""

    def read_all(place: Place, value: object) -> list[T]:
        if not isinstance(value, list):
            raise expected(place, "a list", value)
        return [read(place.item(number), one) for number, one in enumerate(value)]

    return read_all


def text(place: Place, value: object) -> str:
    """A text."""
    if not isinstance(value, str):
        raise expected(place, "a text", value)
    return value


def whole(place: Place, value: object) -> int:
    """A whole number."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise expected(place, "a whole number", value)
    return value


def number(place: Place, value: object) -> float:
    """A number."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise expected(place, "a number", value)
    return float(value)


def flag(place: Place, value: object) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise expected(place, "true or false", value)
    return value


def path(place: Place, value: object) -> Path:
    """A path; one that is not absolute starts where the file lies."""
    return place.file.parent / text(place, value)


def duration_ms(place: Place, value: object) -> int:
    """A duration as ISO 8601 writes it, in milliseconds."""
    if not isinstance(value, str):
        raise expected(place, "a duration such as PT1M", value)
    try:
        return durations.parse(value)
    except InvalidArgument as error:
        raise place.refusal(f"{value!r:.60}: {error}") from None


def choice(*choices: str) -> Callable[[Place, object], str]:
    """One of these texts."""

    def read(place: Place, value: object) -> str:
        if text(place, value) not in choices:
            raise place.refusal(f"{value!r:.60}: it can be {', '.join(choices)}")
        return str(value)

    return read


def expected(place: Place, what: str, found: object) -> InvalidConfig:
    """Something else is there."""
    return place.refusal(f"expected {what}, found {_described(found)}")


def _described(value: object) -> str:
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
