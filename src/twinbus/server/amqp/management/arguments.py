"""The arguments of a request to `$management`: a map whose values may be anything that AMQP can write.

Owns: reading them as what they should be, or saying what is wrong with which.
"""

from __future__ import annotations

import uuid
from typing import Final

from twinbus.amqp.types import Array
from twinbus.model.errors import ArgumentOutOfRange, InvalidArgument

MAX_ITEMS: Final = 10_000
"""Tokens or sequence numbers in one request."""
MAX_SEQUENCE_NUMBER: Final = 2**63 - 1


class Arguments:
    """What one request says."""

    def __init__(self, body: object, *, max_id_characters: int, name: str = "the body of a request") -> None:
        """InvalidArgument if it is no map."""
        if not isinstance(body, dict):
            raise InvalidArgument(f"{name} is {body!r:.60}; it is a map")
        self._values: dict[object, object] = body
        self._max_id_characters = max_id_characters

    @property
    def body(self) -> dict[object, object]:
        """All that it says."""
        return self._values

    def with_changes(self, **changes: object) -> Arguments:
        """The same, but for these, which are there instead."""
        values: dict[object, object] = self._values | dict[object, object](changes)
        return Arguments(values, max_id_characters=self._max_id_characters)

    def has(self, name: str) -> bool:
        """It is there, and is not null."""
        return self._values.get(name) is not None

    def whole_number(self, name: str, *, minimum: int, default: int | None = None) -> int:
        """A whole number."""
        found = self._values.get(name)
        if found is None and default is not None:
            return default
        if not isinstance(found, int) or isinstance(found, bool) or found < minimum:
            raise InvalidArgument(f"{name} is {found!r:.60}; it is a whole number from {minimum} on")
        return int(found)

    def boolean(self, name: str) -> bool:
        """True or false; false if it is not there."""
        found = self._values.get(name)
        if found is not None and not isinstance(found, bool):
            raise InvalidArgument(f"{name} is {found!r:.60}; it is true or false")
        return bool(found)

    def text(self, name: str) -> str:
        """A string."""
        found = self._values.get(name)
        if not isinstance(found, str):
            raise InvalidArgument(f"{name} is {found!r:.60}; it is a string")
        return str(found)

    def text_or_none(self, name: str) -> str | None:
        """A string, if it is there."""
        return self.text(name) if self.has(name) else None

    def session(self, name: str = "session-id") -> bytes | None:
        """The id of a session, if one is named."""
        found = self.text_or_none(name)
        if found is not None and len(found) > self._max_id_characters:
            raise ArgumentOutOfRange(f"{name} has {len(found)} characters; it can have {self._max_id_characters}")
        return found.encode() if found is not None else None

    def binary(self, name: str) -> bytes:
        """Bytes."""
        found = self._values.get(name)
        if not isinstance(found, bytes):
            raise InvalidArgument(f"{name} is {found!r:.60}; it is binary")
        return found

    def mapping(self, name: str) -> dict[object, object] | None:
        """A map, if it is there."""
        found = self._values.get(name)
        if found is not None and not isinstance(found, dict):
            raise InvalidArgument(f"{name} is {found!r:.60}; it is a map")
        return found

    def nested(self, name: str) -> Arguments:
        """A map that has to be there."""
        return Arguments(self._values.get(name), max_id_characters=self._max_id_characters, name=name)

    def text_list(self, name: str, *, max_items: int) -> list[str]:
        """A list of strings, which may be empty."""
        found = self._values.get(name)
        items = found.items if isinstance(found, Array) else found
        if not isinstance(items, list | tuple) or len(items) > max_items:
            raise InvalidArgument(f"{name} is {found!r:.60}; it is a list of at most {max_items} strings")
        texts = [item for item in items if isinstance(item, str)]
        if len(texts) < len(items):
            raise InvalidArgument(f"{name} has an item that is no string")
        return texts

    def nested_list(self, name: str) -> list[Arguments]:
        """A list of maps."""
        most, item_name = self._max_id_characters, f"an item of {name}"
        return [Arguments(item, max_id_characters=most, name=item_name) for item in self._items(name)]

    def lock_tokens(self) -> list[uuid.UUID]:
        """Lock tokens, each once."""
        found = self._items("lock-tokens")
        tokens = [token for token in found if isinstance(token, uuid.UUID)]
        if len(tokens) < len(found):
            raise InvalidArgument("lock-tokens is an array of uuids")
        if len(set(tokens)) < len(tokens):
            raise InvalidArgument("lock-tokens has a token twice")
        return tokens

    def sequence_numbers(self) -> list[int]:
        """Sequence numbers, each once."""
        found = self._items("sequence-numbers")
        numbers = [int(number) for number in found if isinstance(number, int) and not isinstance(number, bool)]
        if len(numbers) < len(found):
            raise InvalidArgument("sequence-numbers is an array of whole numbers")
        if len(set(numbers)) < len(numbers):
            raise InvalidArgument("sequence-numbers has a number twice")
        if min(numbers) < 1 or max(numbers) > MAX_SEQUENCE_NUMBER:
            raise InvalidArgument("sequence-numbers are from 1 on, below 2^63")
        return numbers

    def _items(self, name: str) -> list[object]:
        found = self._values.get(name)
        items = found.items if isinstance(found, Array) else found
        if not isinstance(items, list | tuple):
            raise InvalidArgument(f"{name} is {found!r:.60}; it is an array or a list")
        if not 0 < len(items) <= MAX_ITEMS:
            raise InvalidArgument(f"{name} has {len(items)} items; it can have 1 to {MAX_ITEMS}")
        return list(items)
