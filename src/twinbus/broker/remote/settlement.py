"""Settlement of messages that another process gave: it is done there.

Owns: that whoever settles hears what became of it. Which locks are lost is known only by then, so it is told by an
error (`SomeLocksLost`), not at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.amqp.encode import encode
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
    """The tags by which the owner knows locks: their numbers are those tags."""
    return [number.to_bytes(LOCK_TOKEN_BYTES) for number in lock_numbers]


def encode_properties(properties: Mapping[str, object] | None) -> bytes:
    """Properties, as they are carried; nothing if there are none."""
    return encode(dict(properties)) if properties else b""


class RemoteSettlement(SettlementPort):
    """The ends of locks, of one fragment that another process has."""

    def __init__(self, fragment: RemoteFragment) -> None:
        """Made by its fragment."""
        self._fragment = fragment

    def complete(self, lock_numbers: Iterable[int], on_done: OnDone) -> list[int]:
        """As of any fragment; but what is lost is told by `answer`."""
        return self._settle(Disposition.COMPLETE, lock_numbers, on_done, None)

    def release(self, lock_numbers: Iterable[int], on_done: OnDone) -> list[int]:
        """Give messages back as they are."""
        return self._settle(Disposition.RELEASE, lock_numbers, on_done, None)

    def reclaim(self, lock_numbers: Iterable[int]) -> None:
        """Give messages back when their receiver is gone for good."""
        self._settle(Disposition.RECLAIM, lock_numbers, ignore, None)

    def abandon(
        self, lock_numbers: Iterable[int], on_done: OnDone, properties: Mapping[str, object] | None = None
    ) -> list[int]:
        """Give messages back with a delivery more on their count."""
        return self._settle(Disposition.ABANDON, lock_numbers, on_done, properties)

    def defer(
        self, lock_numbers: Iterable[int], on_done: OnDone, properties: Mapping[str, object] | None = None
    ) -> list[int]:
        """Set messages aside."""
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
        """Move messages to the dead-letter queue."""
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
        """That is for the owner to say, when it is asked for something."""
        return True

    def renew_lock(self, lock_number: int, on_result: Callable[[int | ServiceBusError], None]) -> None:
        """Have the owner renew a lock."""

        def told(answer: Reply | ServiceBusError) -> None:
            if isinstance(answer, Numbers):
                on_result(answer.numbers[0])
            else:
                assert isinstance(answer, ServiceBusError)
                on_result(answer)

        self._fragment.owner.send_request(RenewLock(self._fragment.address, *lock_tokens([lock_number])), told)

    def find_locked_message(
        self, lock_number: int, on_result: Callable[[tuple[int, str | None] | ServiceBusError], None]
    ) -> None:
        """Ask the owner which message a lock is on."""

        def told(answer: Reply | ServiceBusError) -> None:
            if isinstance(answer, LockedMessage):
                on_result((answer.sequence_number, answer.message_id))
            else:
                assert isinstance(answer, ServiceBusError)
                on_result(answer)

        self._fragment.owner.send_request(FindLockedMessage(self._fragment.address, *lock_tokens([lock_number])), told)

    def _settle(
        self,
        disposition: Disposition,
        lock_numbers: Iterable[int],
        on_done: OnDone,
        properties: Mapping[str, object] | None,
    ) -> list[int]:
        known = list(lock_numbers)

        def told(outcome: Reply | ServiceBusError) -> None:
            if isinstance(outcome, ServiceBusError):
                on_done(outcome)
                return
            assert isinstance(outcome, LocksLost)
            on_done(SomeLocksLost([known[place] for place in outcome.indexes]) if outcome.indexes else None)

        call = Settle(self._fragment.address, disposition.value, lock_tokens(known), encode_properties(properties))
        self._fragment.owner.send_request(call, told)
        return []
