"""Requests that find, receive and settle the deferred messages in one backlog queue.

Owns: the requests to the queue's `$management`, each with many messages. To keep responses small, a request asks for as
many messages as should fit, estimated from the size of earlier messages. Knows nothing of destinations.
"""

from __future__ import annotations

import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from twinbus.amqp.types import Array, Int, UInt
from twinbus.client.errors import UnknownAnswer
from twinbus.model.errors import MessageLockLost, MessageTooLarge, ServiceBusError
from twinbus.model.message import POSSIBLE_DUPLICATE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from twinbus.client.receiver import MessageReceiver

PEEK_BATCH_SIZE: Final = 1_000
FIRST_RECEIVE_COUNT: Final = 15
"""The number of messages in the first request. The number is small because the messages come in one response."""
MAX_RECEIVE_COUNT: Final = 500
TARGET_RESPONSE_BYTES: Final = 262_144
"""The approximate size of a response."""

STATUS_COMPLETED: Final = "completed"
STATUS_DEFERRED: Final = "defered"
"""The protocol's spelling. Deferring a message again does not increase its delivery count."""
STATUS_DEAD_LETTERED: Final = "suspended"


class DeferredRequests:
    """The requests to one backlog queue."""

    def __init__(self, receiver: MessageReceiver) -> None:
        """Create requests for an exclusive receiver."""
        self.max_per_request = FIRST_RECEIVE_COUNT
        """The number of messages to receive in one request."""
        self._receiver = receiver

    async def peek(self, from_sequence_number: int) -> list[bytes]:
        """Peek at messages from `from_sequence_number` on, without bodies. Return an empty list after the last message.

        twinbus returns only deferred messages; other servers return all messages.
        """
        body: dict[str, object] = {
            "from-sequence-number": from_sequence_number,
            "message-count": Int(PEEK_BATCH_SIZE),
            "twinbus:state": "deferred",
            "omit-message-body": True,
        }
        return [
            _payload_of(entry) for entry in _message_entries(await self._request("com.microsoft:peek-message", body))
        ]

    async def receive(self, sequence_numbers: Sequence[int]) -> list[tuple[bytes, uuid.UUID]]:
        """Receive messages by their numbers, with their lock tokens. Raise MessageNotFound if a message is missing."""
        if len(sequence_numbers) > self.max_per_request:  # the limit became smaller after these numbers were chosen
            count = self.max_per_request
            received = await self.receive(sequence_numbers[:count])
            try:
                return received + await self.receive(sequence_numbers[count:])
            except ServiceBusError:
                with suppress(ServiceBusError):  # if this fails, the queue unlocks the messages when their locks expire
                    await self.settle(STATUS_DEFERRED, [lock for _, lock in received])
                raise
        body: dict[str, object] = {
            "sequence-numbers": Array(int, list(sequence_numbers)),
            "receiver-settle-mode": UInt(1),
        }
        is_too_large = False
        received = []
        try:
            entries = _message_entries(await self._request("com.microsoft:receive-by-sequence-number", body))
            received = [(_payload_of(entry), _lock_token_of(entry)) for entry in entries]
        except MessageTooLarge:
            if len(sequence_numbers) == 1:
                raise
            is_too_large = True
        if is_too_large:
            self.max_per_request = max(1, len(sequence_numbers) // 2)
            return await self.receive(sequence_numbers)
        if received:
            size = max(1, sum([len(payload) for payload, _ in received]) // len(received))
            self.max_per_request = min(MAX_RECEIVE_COUNT, max(1, TARGET_RESPONSE_BYTES // size))
        return received

    async def settle(
        self, status: str, lock_tokens: Sequence[uuid.UUID], extra_fields: Mapping[str, object] | None = None
    ) -> None:
        """Settle received messages; if a lock is lost, settle the messages one by one."""
        is_lost = False
        try:
            await self._settle(status, lock_tokens, extra_fields or {})
        except MessageLockLost:
            if len(lock_tokens) == 1:
                raise
            is_lost = True
        if is_lost:
            await self._settle_one_by_one(status, lock_tokens, extra_fields or {})

    async def _settle_one_by_one(
        self, status: str, lock_tokens: Sequence[uuid.UUID], extra_fields: Mapping[str, object]
    ) -> None:
        lost: MessageLockLost | None = None
        for lock in lock_tokens:
            try:
                await self._settle(status, [lock], extra_fields)
            except MessageLockLost as error:
                lost = error
        if lost is not None:
            raise lost

    async def _settle(self, status: str, lock_tokens: Sequence[uuid.UUID], extra_fields: Mapping[str, object]) -> None:
        body = {"disposition-status": status, "lock-tokens": Array(uuid.UUID, list(lock_tokens)), **extra_fields}
        await self._request("com.microsoft:update-disposition", body)

    async def _request(self, operation: str, body: Mapping[str, object]) -> Mapping[object, object]:
        factory = self._receiver.factory
        limit_s = factory.settings.operation_timeout_s
        return (await factory.request(self._receiver.path, operation, body, timeout_s=limit_s)).body


def possible_duplicate_change(*, is_marked: bool) -> dict[str, object]:
    """Return the settlement field that marks a message that may have been sent; empty for other messages."""
    return {"properties-to-modify": {POSSIBLE_DUPLICATE: True}} if is_marked else {}


def _message_entries(body: Mapping[object, object]) -> list[dict[object, object]]:
    """Return the message maps in a response."""
    messages = body.get("messages")
    return [entry for entry in messages if isinstance(entry, dict)] if isinstance(messages, list) else []


def _payload_of(entry: Mapping[object, object]) -> bytes:
    payload = entry.get("message")
    if not isinstance(payload, bytes):
        raise UnknownAnswer("a response has a message that is not binary")
    return payload


def _lock_token_of(entry: Mapping[object, object]) -> uuid.UUID:
    lock = entry.get("lock-token")
    if not isinstance(lock, uuid.UUID):
        raise UnknownAnswer("a response has a deferred message without a lock token")
    return lock
