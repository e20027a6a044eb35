"""Settlement of messages in another process, which carries out the settlement.

Owns the requests to the owner and the reports of their results. Only the owner knows which locks are lost, so lost
locks are reported to the callback (`SomeLocksLost`), not returned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.amqp.codec.encode import encode
from twinbus.broker.ports.fragment import SettlementPort
from twinbus.broker.ports.peer_protocol import FindLockedMessage, LockedMessage, LocksLost, Numbers, RenewLock, Settle
from twinbus.broker.ports.settlement import Disposition, SomeLocksLost, dead_letter_properties
from twinbus.model.callbacks import ignore
from twinbus.model.errors import ServiceBusError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from twinbus.broker.ports.callbacks import OnDone
    from twinbus.broker.ports.consumer import Consumer
    from twinbus.broker.ports.peer_protocol import Reply
    from twinbus.broker.remote.fragment import RemoteFragment

LOCK_TOKEN_BYTES = 16


def lock_tokens(lock_numbers: Iterable[int]) -> list[bytes]:
    """Return the lock tokens for the owner; a remote lock's number is its token as an integer."""
    return [number.to_bytes(LOCK_TOKEN_BYTES) for number in lock_numbers]


def encode_properties(properties: Mapping[str, object] | None) -> bytes:
    """Return properties as an AMQP-encoded map, or empty bytes if there are none."""
    return encode(dict(properties)) if properties else b""


class RemoteSettlement(SettlementPort):
    """Settlement of locked messages in one fragment in another process."""

    def __init__(self, fragment: RemoteFragment) -> None:
        """Create the settlement for a remote fragment."""
        self._fragment = fragment

    def complete(self, lock_numbers: Iterable[int], on_done: OnDone) -> list[int]:
        """Ask the owner to delete messages."""
        return self._settle(Disposition.COMPLETE, lock_numbers, on_done, None)

    def release(self, lock_numbers: Iterable[int], on_done: OnDone) -> list[int]:
        """Ask the owner to requeue messages without changing their delivery count."""
        return self._settle(Disposition.RELEASE, lock_numbers, on_done, None)

    def reclaim(self, lock_numbers: Iterable[int]) -> None:
        """Ask the owner to requeue messages locked by a receiver that will not return."""
        self._settle(Disposition.RECLAIM, lock_numbers, ignore, None)

    def abandon(
        self, lock_numbers: Iterable[int], on_done: OnDone, properties: Mapping[str, object] | None = None
    ) -> list[int]:
        """Ask the owner to requeue messages with an incremented delivery count."""
        return self._settle(Disposition.ABANDON, lock_numbers, on_done, properties)

    def defer(
        self, lock_numbers: Iterable[int], on_done: OnDone, properties: Mapping[str, object] | None = None
    ) -> list[int]:
        """Ask the owner to defer messages."""
        return self._settle(Disposition.DEFER, lock_numbers, on_done, properties)

    def dead_letter(
        self,
        lock_numbers: Iterable[int],
        on_done: OnDone,
        *,
        reason: str | None = None,
        description: str | None = None,
        properties: Mapping[str, object] | None = None,
    ) -> list[int]:
        """Ask the owner to move messages to the dead-letter queue."""
        return self._settle(
            Disposition.DEAD_LETTER,
            lock_numbers,
            on_done,
            dict(properties or {}) | dead_letter_properties(reason, description),
        )

    def is_lock_valid(
        self,
        lock_number: int,  # noqa: ARG002
        session_holder_of: Callable[[bytes], Consumer | None] | None = None,  # noqa: ARG002
    ) -> bool:
        """Return True, because only the owner can check a lock; the owner reports a lost lock when it settles."""
        return True

    def renew_lock(self, lock_number: int, on_result: Callable[[int | ServiceBusError], None]) -> None:
        """Ask the owner to renew a lock."""

        def handle_reply(reply: Reply | ServiceBusError) -> None:
            if isinstance(reply, Numbers):
                on_result(reply.numbers[0])
            else:
                assert isinstance(reply, ServiceBusError)
                on_result(reply)

        self._fragment.owner.send_request(RenewLock(self._fragment.address, *lock_tokens([lock_number])), handle_reply)

    def find_locked_message(
        self, lock_number: int, on_result: Callable[[tuple[int, str | None] | ServiceBusError], None]
    ) -> None:
        """Ask the owner for the sequence number and id of a locked message."""

        def handle_reply(reply: Reply | ServiceBusError) -> None:
            if isinstance(reply, LockedMessage):
                on_result((reply.sequence_number, reply.message_id))
            else:
                assert isinstance(reply, ServiceBusError)
                on_result(reply)

        self._fragment.owner.send_request(
            FindLockedMessage(self._fragment.address, *lock_tokens([lock_number])), handle_reply
        )

    def _settle(
        self,
        disposition: Disposition,
        lock_numbers: Iterable[int],
        on_done: OnDone,
        properties: Mapping[str, object] | None,
    ) -> list[int]:
        numbers = list(lock_numbers)

        def handle_reply(outcome: Reply | ServiceBusError) -> None:
            if isinstance(outcome, ServiceBusError):
                on_done(outcome)
                return
            assert isinstance(outcome, LocksLost)
            on_done(SomeLocksLost([numbers[index] for index in outcome.indexes]) if outcome.indexes else None)

        request = Settle(self._fragment.address, disposition.value, lock_tokens(numbers), encode_properties(properties))
        self._fragment.owner.send_request(request, handle_reply)
        return []
