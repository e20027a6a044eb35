"""The arguments of a request to `$management`: a map whose values may be of any AMQP type.

Owns: the conversion of arguments to the expected types, and the errors for invalid arguments.
"""

from __future__ import annotations

import uuid
from typing import Final

from twinbus.amqp.types import Array
from twinbus.model.errors import ArgumentOutOfRange, InvalidArgument

MAX_ITEMS: Final = 10_000
"""The maximum number of lock tokens or sequence numbers in one request."""
MAX_SEQUENCE_NUMBER: Final = 2**63 - 1


class Arguments:
    """The arguments of one request."""

    def __init__(self, body: object, *, max_id_characters: int, name: str = "the body of a request") -> None:
        """Take the arguments from the body of a request. Raise InvalidArgument if the body is not a map."""
        if not isinstance(body, dict):
            raise InvalidArgument(f"{name} is {body!r:.60}; it must be a map")
        self._values: dict[object, object] = body
        self._max_id_characters = max_id_characters

    @property
    def body(self) -> dict[object, object]:
        """All arguments."""
        return self._values

    def with_changes(self, **changes: object) -> Arguments:
        """Return a copy with some arguments replaced."""
        values: dict[object, object] = self._values | dict[object, object](changes)
        return Arguments(values, max_id_characters=self._max_id_characters)

    def has(self, name: str) -> bool:
        """Return whether an argument is present and not null."""
        return self._values.get(name) is not None

    def whole_number(self, name: str, *, minimum: int, default: int | None = None) -> int:
        """Return an integer of at least `minimum`; `default` if the argument is missing."""
        value = self._values.get(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
            raise InvalidArgument(f"{name} is {value!r:.60}; it must be an integer, {minimum} or more")
        return int(value)

    def boolean(self, name: str) -> bool:
        """Return a boolean; False if the argument is missing."""
        value = self._values.get(name)
        if value is not None and not isinstance(value, bool):
            raise InvalidArgument(f"{name} is {value!r:.60}; it must be true or false")
        return bool(value)

    def text(self, name: str) -> str:
        """Return a string."""
        value = self._values.get(name)
        if not isinstance(value, str):
            raise InvalidArgument(f"{name} is {value!r:.60}; it must be a string")
        return str(value)

    def text_or_none(self, name: str) -> str | None:
        """Return a string; None if the argument is missing."""
        return self.text(name) if self.has(name) else None

    def session(self, name: str = "session-id") -> bytes | None:
        """Return the id of a session; None if the argument is missing."""
        session_id = self.text_or_none(name)
        if session_id is not None and len(session_id) > self._max_id_characters:
            raise ArgumentOutOfRange(f"{name} has {len(session_id)} characters (limit: {self._max_id_characters})")
        return session_id.encode() if session_id is not None else None

    def binary(self, name: str) -> bytes:
        """Return bytes."""
        value = self._values.get(name)
        if not isinstance(value, bytes):
            raise InvalidArgument(f"{name} is {value!r:.60}; it must be binary")
        return value

    def mapping(self, name: str) -> dict[object, object] | None:
        """Return a map; None if the argument is missing."""
        value = self._values.get(name)
        if value is not None and not isinstance(value, dict):
            raise InvalidArgument(f"{name} is {value!r:.60}; it must be a map")
        return value

    def nested(self, name: str) -> Arguments:
        """Return a required map as `Arguments`."""
        return Arguments(self._values.get(name), max_id_characters=self._max_id_characters, name=name)

    def text_list(self, name: str, *, max_items: int) -> list[str]:
        """Return a list of strings, which may be empty."""
        value = self._values.get(name)
        items = value.items if isinstance(value, Array) else value
        if not isinstance(items, list | tuple) or len(items) > max_items:
            raise InvalidArgument(f"{name} is {value!r:.60}; it must be a list of at most {max_items} strings")
        texts = [item for item in items if isinstance(item, str)]
        if len(texts) < len(items):
            raise InvalidArgument(f"{name} has an item that is not a string")
        return texts

    def nested_list(self, name: str) -> list[Arguments]:
        """Return the maps in a list as `Arguments`."""
        limit, item_name = self._max_id_characters, f"an item of {name}"
        return [Arguments(item, max_id_characters=limit, name=item_name) for item in self._items(name)]

    def lock_tokens(self) -> list[uuid.UUID]:
        """Return the lock tokens. Raise InvalidArgument if a token occurs twice."""
        items = self._items("lock-tokens")
        tokens = [token for token in items if isinstance(token, uuid.UUID)]
        if len(tokens) < len(items):
            raise InvalidArgument("lock-tokens must be an array of uuids")
        if len(set(tokens)) < len(tokens):
            raise InvalidArgument("lock-tokens has a token twice")
        return tokens

    def sequence_numbers(self) -> list[int]:
        """Return the sequence numbers. Raise InvalidArgument if a number occurs twice."""
        items = self._items("sequence-numbers")
        numbers = [int(number) for number in items if isinstance(number, int) and not isinstance(number, bool)]
        if len(numbers) < len(items):
            raise InvalidArgument("sequence-numbers must be an array of integers")
        if len(set(numbers)) < len(numbers):
            raise InvalidArgument("sequence-numbers has a number twice")
        if min(numbers) < 1 or max(numbers) > MAX_SEQUENCE_NUMBER:
            raise InvalidArgument("sequence-numbers must be at least 1 and below 2^63")
        return numbers

    def _items(self, name: str) -> list[object]:
        value = self._values.get(name)
        items = value.items if isinstance(value, Array) else value
        if not isinstance(items, list | tuple):
            raise InvalidArgument(f"{name} is {value!r:.60}; it must be an array or a list")
        if not 0 < len(items) <= MAX_ITEMS:
            raise InvalidArgument(f"{name} has {len(items)} items; it must have 1 to {MAX_ITEMS}")
        return list(items)
