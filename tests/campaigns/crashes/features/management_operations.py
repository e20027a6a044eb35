"""What clients ask of `$management`: each operation once, from what the book is told before to what it is told after.

Owns: the arguments on the wire, and what each answer means for the ledger.
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
    """Cancel scheduled messages; that it is asked for is written down already."""
    with _on_missing_response(lambda: checker.cancel_unanswered(numbers)):
        answer = await management.request(
            "com.microsoft:cancel-scheduled-message", _sequence_number_arguments(sequence_numbers)
        )
        if answer.status == 200:
            checker.cancel_confirmed(numbers)
        elif answer.status == NOT_FOUND:
            checker.cancel_refused(numbers)
        else:
            raise ClientDisconnected(answer.description)


async def receive_deferred(
    checker: FeatureChecker,
    management: ManagementLinks,
    queue: str,
    numbers: list[int],
    sequence_numbers: list[int],
    session: str | None = None,
) -> list[uuid.UUID]:
    """Receive deferred messages under locks: the tokens of these; none if somebody else has one of them."""
    arguments = (
        _sequence_number_arguments(sequence_numbers) | _session_arguments(session) | {"receiver-settle-mode": UInt(1)}
    )
    answer = await management.request("com.microsoft:receive-by-sequence-number", arguments)
    if answer.status != 200:
        if answer.status == NOT_FOUND and "locked" not in answer.description:
            checker.deferred_missing(queue, numbers, answer.description)
        return []
    for message in answer.body["messages"]:
        checker.receive_deferred(queue, ReceivedMessage.read(Message(message["message"])))
    return [message["lock-token"] for message in answer.body["messages"]]


async def receive_and_delete_deferred(
    checker: FeatureChecker,
    management: ManagementLinks,
    queue: str,
    numbers: list[int],
    sequence_numbers: list[int],
    session: str | None = None,
) -> None:
    """Receive deferred messages without locks: then they are gone."""
    for number in numbers:
        checker.completion_requested(number)
    arguments = (
        _sequence_number_arguments(sequence_numbers) | _session_arguments(session) | {"receiver-settle-mode": UInt(0)}
    )
    answer = await management.request("com.microsoft:receive-by-sequence-number", arguments)
    if answer.status == 200:
        for message in answer.body["messages"]:
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
    """Settle deferred messages by their tokens; False if that is not certain."""
    if status == "completed":
        for number in numbers:
            checker.completion_requested(number)
    arguments: dict[str, object] = {"disposition-status": status, "lock-tokens": Array(type(tokens[0]), [*tokens])}
    answer = await management.request("com.microsoft:update-disposition", arguments | _session_arguments(session))
    if answer.status == 200 and status == "completed":
        for number in numbers:
            checker.completion_confirmed(number)
    return answer.status == 200


async def peek_all(management: ManagementLinks, session: str | None = None) -> list[ReceivedMessage]:
    """All that lies in a queue, in one of its sessions, or among its dead letters."""
    found: list[ReceivedMessage] = []
    while True:
        start = found[-1].sequence_number + 1 if found else 1
        arguments = {"from-sequence-number": start, "message-count": Int(250)} | _session_arguments(session)
        answer = await management.request("com.microsoft:peek-message", arguments)
        if answer.status == 204:
            return found
        if answer.status != 200:
            raise ClientDisconnected(f"peek-message: {answer.status} {answer.description}")
        found += [ReceivedMessage.read(Message(message["message"])) for message in answer.body["messages"]]


def _sequence_number_arguments(sequence_numbers: list[int]) -> dict[str, object]:
    return {"sequence-numbers": Array(int, [*sequence_numbers])}


def _session_arguments(session: str | None) -> dict[str, object]:
    return {"session-id": session} if session is not None else {}


@contextmanager
def _on_missing_response(record: Callable[[], None]) -> Iterator[None]:
    """Make a note if no answer comes."""
    try:
        yield
    except BaseException:
        record()
        raise
