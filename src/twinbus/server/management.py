"""`<entity>/$management`: what a client asks of an entity beside sending and receiving.

Owns: reading the requests and writing the answers of each operation. A table says which there are; what they do is the
fragment's affair.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Final

from twinbus.amqp.types import Array, Int, Symbol, Timestamp
from twinbus.broker.fragment import lock_lost
from twinbus.model.errors import InvalidArgument, NotImplementedHere
from twinbus.server.keys import Right
from twinbus.server.outgoing import properties_of, text_or_none
from twinbus.server.requests import Response

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from twinbus.broker.fragment import Fragment
    from twinbus.broker.journal import Answered
    from twinbus.model.errors import ServiceBusError
    from twinbus.server.access import Access
    from twinbus.server.requests import Reply, Request

    Arguments: TypeAlias = dict[object, object]

_OK: Final = 200
_NO_CONTENT: Final = 204
PEEK_MAX_COUNT: Final = 1_000
PEEK_MAX_BYTES: Final = 524_288
MAX_TOKENS: Final = 10_000


class Management:
    """The `$management` of one queue or dead-letter queue, for one connection."""

    def __init__(self, path: str, fragment: Fragment, access: Access) -> None:
        """For whoever has the rights that each operation needs."""
        self._path = path
        self._fragment = fragment
        self._access = access

    def handle(self, request: Request, reply: Reply) -> None:
        """Do what is asked."""
        operation = request.text("operation")
        found = OPERATIONS.get(operation)
        if found is None:
            known = ", ".join(name.removeprefix("com.microsoft:") for name in OPERATIONS)
            raise NotImplementedHere(f"$management does not know {operation!r:.80}; it knows {known}")
        right, act = found
        self._access.check(right, self._path)
        if not isinstance(request.body, dict):
            raise InvalidArgument(f"the body of {operation} is a map")
        act(self, request.body, reply)

    def refuse(self, error: ServiceBusError) -> Response:
        """Status, condition and text."""
        return Response(
            {
                "statusCode": Int(error.status),
                "statusDescription": str(error),
                "errorCondition": Symbol(error.condition),
            },
            {},
        )

    def renew_lock(self, arguments: Arguments, reply: Reply) -> None:
        """Renew locks: all of them, or none where one is lost."""
        numbers = self._lock_numbers(arguments)
        if not all(self._fragment.holds(number) for number in numbers):
            raise lock_lost()
        expirations: list[object] = [Timestamp(self._fragment.renew(number)) for number in numbers]
        reply(_success({"expirations": Array(Timestamp, expirations)}))

    def peek(self, arguments: Arguments, reply: Reply) -> None:
        """Messages from a sequence number on."""
        start = _number(arguments, "from-sequence-number", lowest=-(2**63))
        count = _number(arguments, "message-count", lowest=1)

        def peeked(found: list[bytes] | ServiceBusError) -> None:
            if not isinstance(found, list):
                reply(self.refuse(found))
            elif found:
                reply(_success({"messages": [{"message": message} for message in found]}))
            else:
                reply(Response({"statusCode": Int(_NO_CONTENT), "statusDescription": "No Content"}, {}))

        self._fragment.peek(start, min(count, PEEK_MAX_COUNT), PEEK_MAX_BYTES, peeked)

    def update_disposition(self, arguments: Arguments, reply: Reply) -> None:
        """Settle messages by their lock tokens: all of them, or none where one lock is lost."""
        status = arguments.get("disposition-status")
        numbers = self._lock_numbers(arguments)
        if not all(self._fragment.holds(number) for number in numbers):
            raise lock_lost()

        def settled(error: ServiceBusError | None) -> None:
            reply(_success({}) if error is None else self.refuse(error))

        if len(self._settlement(status, arguments)(numbers, settled)) == len(numbers):
            raise lock_lost()  # they expired a moment ago, so nobody else answers

    def _settlement(self, status: object, arguments: Arguments) -> Callable[[list[int], Answered], list[int]]:
        changes = arguments.get("properties-to-modify")
        properties = properties_of(changes if isinstance(changes, dict) else None)
        fragment = self._fragment
        if status == "completed":
            return fragment.complete
        if status == "abandoned":
            return lambda numbers, answer: fragment.abandon(numbers, answer, properties)
        if status == "suspended":
            return lambda numbers, answer: fragment.dead_letter(
                numbers,
                answer,
                reason=text_or_none(arguments.get("deadletter-reason")),
                description=text_or_none(arguments.get("deadletter-description")),
                properties=properties,
            )
        if status == "defered":
            raise NotImplementedHere("messages cannot be deferred in this version")
        raise InvalidArgument(
            f"disposition-status is {status!r:.60}; it can be completed, abandoned, suspended or defered"
        )

    def _lock_numbers(self, arguments: Arguments) -> list[int]:
        tokens = arguments.get("lock-tokens")
        items = tokens.items if isinstance(tokens, Array) else tokens
        if not isinstance(items, list | tuple) or not all(isinstance(token, uuid.UUID) for token in items):
            raise InvalidArgument("lock-tokens is an array of uuids")
        if not 0 < len(items) <= MAX_TOKENS:
            raise InvalidArgument(f"lock-tokens has {len(items)} tokens; it can have 1 to {MAX_TOKENS}")
        if len(set(items)) != len(items):
            raise InvalidArgument("lock-tokens has a token twice")
        return self._fragment.lock_numbers([token.bytes for token in items])


OPERATIONS: Final = {
    "com.microsoft:renew-lock": (Right.LISTEN, Management.renew_lock),
    "com.microsoft:peek-message": (Right.LISTEN, Management.peek),
    "com.microsoft:update-disposition": (Right.LISTEN, Management.update_disposition),
}
"""Each with the right it needs."""


def _success(body: dict[str, object]) -> Response:
    return Response({"statusCode": Int(_OK), "statusDescription": "OK"}, body)


def _number(arguments: Arguments, name: str, *, lowest: int) -> int:
    found = arguments.get(name)
    if not isinstance(found, int) or isinstance(found, bool) or found < lowest:
        raise InvalidArgument(f"{name} is {found!r:.60}; it is a whole number from {lowest} on")
    return int(found)
