"""Deferred messages of one backlog queue: how a pump finds them, takes them back by their numbers, and settles them.

Owns: the requests to the queue's `$management`, with many messages in each. Answers are kept small: a request asks for
as many messages as fit, judged by the size of those before. Knows nothing of destinations.
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

PEEKED_AT_ONCE: Final = 1_000
FIRST_TAKEN: Final = 15
"""Messages of the first request: they come in one answer, and may be large."""
MOST_TAKEN: Final = 500
ANSWER_BYTES: Final = 262_144
"""What an answer should have, about."""

COMPLETED: Final = "completed"
DEFERRED: Final = "defered"
"""As the protocol spells it. Deferred once more is no delivery on the count."""
DEAD_LETTERED: Final = "suspended"


class DeferredMessages:
    """Those of one backlog queue."""

    def __init__(self, receiver: MessageReceiver) -> None:
        """`receiver` has the queue for itself."""
        self.at_once = FIRST_TAKEN
        """How many to take back in one request."""
        self._receiver = receiver

    async def find(self, start: int) -> list[bytes]:
        """Messages from a number on, without their bodies; none if there are no more.

        twinbus gives deferred messages only; another server gives all, of which most are none of them.
        """
        body: dict[str, object] = {
            "from-sequence-number": start,
            "message-count": Int(PEEKED_AT_ONCE),
            "twinbus:state": "deferred",
            "omit-message-body": True,
        }
        return [_payload(entry) for entry in _entries(await self._ask("com.microsoft:peek-message", body))]

    async def take(self, numbers: Sequence[int]) -> list[tuple[bytes, uuid.UUID]]:
        """Messages by their numbers, each with its lock: all, or MessageNotFound if one cannot be had."""
        if len(numbers) > self.at_once:  # fewer than were fit for one request when they were chosen
            count = self.at_once
            taken = await self.take(numbers[:count])
            try:
                return taken + await self.take(numbers[count:])
            except ServiceBusError:
                with suppress(ServiceBusError):  # their locks expire then
                    await self.settle(DEFERRED, [lock for _, lock in taken])
                raise
        body: dict[str, object] = {"sequence-numbers": Array(int, list(numbers)), "receiver-settle-mode": UInt(1)}
        is_too_large = False
        taken = []
        try:
            entries = _entries(await self._ask("com.microsoft:receive-by-sequence-number", body))
            taken = [(_payload(entry), _lock(entry)) for entry in entries]
        except MessageTooLarge:
            if len(numbers) == 1:
                raise
            is_too_large = True
        if is_too_large:
            self.at_once = max(1, len(numbers) // 2)
            return await self.take(numbers)
        if taken:
            size = max(1, sum([len(payload) for payload, _ in taken]) // len(taken))
            self.at_once = min(MOST_TAKEN, max(1, ANSWER_BYTES // size))
        return taken

    async def settle(self, status: str, locks: Sequence[uuid.UUID], more: Mapping[str, object] | None = None) -> None:
        """Settle messages that were taken back; where one lock is lost, the others are settled one by one."""
        is_lost = False
        try:
            await self._settle(status, locks, more or {})
        except MessageLockLost:
            if len(locks) == 1:
                raise
            is_lost = True
        if is_lost:
            await self._settle_apart(status, locks, more or {})

    async def _settle_apart(self, status: str, locks: Sequence[uuid.UUID], more: Mapping[str, object]) -> None:
        lost: MessageLockLost | None = None
        for lock in locks:
            try:
                await self._settle(status, [lock], more)
            except MessageLockLost as error:
                lost = error
        if lost is not None:
            raise lost

    async def _settle(self, status: str, locks: Sequence[uuid.UUID], more: Mapping[str, object]) -> None:
        body = {"disposition-status": status, "lock-tokens": Array(uuid.UUID, list(locks)), **more}
        await self._ask("com.microsoft:update-disposition", body)

    async def _ask(self, operation: str, body: Mapping[str, object]) -> Mapping[object, object]:
        factory = self._receiver.factory
        limit_s = factory.settings.operation_timeout_s
        return (await factory.ask(self._receiver.path, operation, body, timeout_s=limit_s)).body


def marking(*, is_marked: bool) -> dict[str, object]:
    """What a settlement says of a message that may have been sent; nothing of another."""
    return {"properties-to-modify": {POSSIBLE_DUPLICATE: True}} if is_marked else {}


def _entries(body: Mapping[object, object]) -> list[dict[object, object]]:
    """The messages of an answer, each a map."""
    found = body.get("messages")
    return [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []


def _payload(entry: Mapping[object, object]) -> bytes:
    payload = entry.get("message")
    if not isinstance(payload, bytes):
        raise UnknownAnswer("an answer has a message that is no binary")
    return payload


def _lock(entry: Mapping[object, object]) -> uuid.UUID:
    lock = entry.get("lock-token")
    if not isinstance(lock, uuid.UUID):
        raise UnknownAnswer("an answer has a deferred message without a lock token")
    return lock
