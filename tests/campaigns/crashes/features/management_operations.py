"""Operations of `$management`: each one is recorded in the checker before the request and after the response.

Owns: the arguments on the wire, and what each response means for the checker.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from tests.campaigns.clients import ClientDisconnected
from tests.campaigns.crashes.features.messages import ReceivedMessage
from twinbus.amqp.message import Message
from twinbus.amqp.types import Array, Int, UInt

if TYPE_CHECKING:
    import uuid
    from collections.abc import Callable, Iterator

    from tests.campaigns.crashes.features.checker import FeatureChecker
    from tests.campaigns.crashes.features.clients import ManagementLinks

NOT_FOUND: Final = 404


async def cancel(
    checker: FeatureChecker, management: ManagementLinks, numbers: list[int], sequence_numbers: list[int]
) -> None:
    """Cancel scheduled messages; the caller has recorded the request."""
    with _on_missing_response(lambda: checker.cancel_unanswered(numbers)):
        response = await management.request(
            "com.microsoft:cancel-scheduled-message", _sequence_number_arguments(sequence_numbers)
        )
        if response.status == 200:
            checker.cancel_confirmed(numbers)
        elif response.status == NOT_FOUND:
            checker.cancel_refused(numbers)
        else:
            raise ClientDisconnected(response.description)


async def receive_deferred(
    checker: FeatureChecker,
    management: ManagementLinks,
    queue: str,
    numbers: list[int],
    sequence_numbers: list[int],
    session: str | None = None,
) -> list[uuid.UUID]:
    """Receive deferred messages with locks; return the lock tokens, or none if another client has one of them."""
    arguments = (
        _sequence_number_arguments(sequence_numbers) | _session_arguments(session) | {"receiver-settle-mode": UInt(1)}
    )
    response = await management.request("com.microsoft:receive-by-sequence-number", arguments)
    if response.status != 200:
        if response.status == NOT_FOUND and "locked" not in response.description:
            checker.deferred_missing(queue, numbers, response.description)
        return []
    for message in response.body["messages"]:
        checker.receive_deferred(queue, ReceivedMessage.read(Message(message["message"])))
    return [message["lock-token"] for message in response.body["messages"]]


async def receive_and_delete_deferred(
    checker: FeatureChecker,
    management: ManagementLinks,
    queue: str,
    numbers: list[int],
    sequence_numbers: list[int],
    session: str | None = None,
) -> None:
    """Receive and delete deferred messages."""
    for number in numbers:
        checker.completion_requested(number)
    arguments = (
        _sequence_number_arguments(sequence_numbers) | _session_arguments(session) | {"receiver-settle-mode": UInt(0)}
    )
    response = await management.request("com.microsoft:receive-by-sequence-number", arguments)
    if response.status == 200:
        for message in response.body["messages"]:
            checker.receive_deferred(queue, ReceivedMessage.read(Message(message["message"])))
        for number in numbers:
            checker.completion_confirmed(number)


async def settle(
    checker: FeatureChecker,
    management: ManagementLinks,
    numbers: list[int],
    tokens: list[uuid.UUID],
    status: str,
    session: str | None = None,
) -> bool:
    """Settle deferred messages by their lock tokens; return False if the outcome is uncertain."""
    if status == "completed":
        for number in numbers:
            checker.completion_requested(number)
    arguments: dict[str, object] = {"disposition-status": status, "lock-tokens": Array(type(tokens[0]), [*tokens])}
    response = await management.request("com.microsoft:update-disposition", arguments | _session_arguments(session))
    if response.status == 200 and status == "completed":
        for number in numbers:
            checker.completion_confirmed(number)
    return response.status == 200


async def peek_all(management: ManagementLinks, session: str | None = None) -> list[ReceivedMessage]:
    """Peek all messages of a queue, of one of its sessions, or of its dead-letter queue."""
    peeked: list[ReceivedMessage] = []
    while True:
        start = peeked[-1].sequence_number + 1 if peeked else 1
        arguments = {"from-sequence-number": start, "message-count": Int(250)} | _session_arguments(session)
        response = await management.request("com.microsoft:peek-message", arguments)
        if response.status == 204:
            return peeked
        if response.status != 200:
            raise ClientDisconnected(f"peek-message: {response.status} {response.description}")
        peeked += [ReceivedMessage.read(Message(message["message"])) for message in response.body["messages"]]


def _sequence_number_arguments(sequence_numbers: list[int]) -> dict[str, object]:
    return {"sequence-numbers": Array(int, [*sequence_numbers])}


def _session_arguments(session: str | None) -> dict[str, object]:
    return {"session-id": session} if session is not None else {}


@contextmanager
def _on_missing_response(record: Callable[[], None]) -> Iterator[None]:
    """Call `record` if there is no response."""
    try:
        yield
    except BaseException:
        record()
        raise
