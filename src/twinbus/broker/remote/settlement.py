"""Settlement of messages that another process gave: it is done there.

Owns: that whoever settles hears what became of it. Which locks are lost is known only by then, so it is told by an
error (`SomeLocksLost`), not at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.amqp.encode import encode
from twinbus.broker.ports.fragment import SettlementPort
from twinbus.broker.ports.peer_protocol import FindLock, FoundLock, Lost, Numbers, Renew, Settle
from twinbus.broker.ports.settlement import How, SomeLocksLost, reasons
from twinbus.model.callbacks import ignore
from twinbus.model.errors import ServiceBusError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from twinbus.broker.ports.callbacks import Answered
    from twinbus.broker.ports.consumer import Consumer
    from twinbus.broker.ports.peer_protocol import Answer
    from twinbus.broker.remote.fragment import RemoteFragment

TAG_BYTES = 16


def tags_of(numbers: Iterable[int]) -> list[bytes]:
    """The tags by which the owner knows locks: their numbers are those tags."""
    return [number.to_bytes(TAG_BYTES) for number in numbers]


def encoded(properties: Mapping[str, object] | None) -> bytes:
    """Properties, as they are carried; nothing if there are none."""
    return encode(dict(properties)) if properties else b""


class RemoteSettlement(SettlementPort):
    """The ends of locks, of one fragment that another process has."""

    def __init__(self, fragment: RemoteFragment) -> None:
        """Made by its fragment."""
        self._remote = fragment

    def complete(self, numbers: Iterable[int], answer: Answered) -> list[int]:
        """As of any fragment; but what is lost is told by `answer`."""
        return self._ask(How.COMPLETE, numbers, answer, None)

    def release(self, numbers: Iterable[int], answer: Answered) -> list[int]:
        """Give messages back as they are."""
        return self._ask(How.RELEASE, numbers, answer, None)

    def free(self, numbers: Iterable[int]) -> None:
        """Give messages back when their receiver is gone for good."""
        self._ask(How.FREE, numbers, ignore, None)

    def abandon(
        self, numbers: Iterable[int], answer: Answered, properties: Mapping[str, object] | None = None
    ) -> list[int]:
        """Give messages back with a delivery more on their count."""
        return self._ask(How.ABANDON, numbers, answer, properties)

    def defer(
        self, numbers: Iterable[int], answer: Answered, properties: Mapping[str, object] | None = None
    ) -> list[int]:
        """Set messages aside."""
        return self._ask(How.DEFER, numbers, answer, properties)

    def dead_letter(
        self,
        numbers: Iterable[int],
        answer: Answered,
        *,
        reason: str | None = None,
        description: str | None = None,
        properties: Mapping[str, object] | None = None,
    ) -> list[int]:
        """Move messages to the dead-letter queue."""
        return self._ask(How.DEAD_LETTER, numbers, answer, dict(properties or {}) | reasons(reason, description))

    def holds(self, number: int, holder_of: Callable[[bytes], Consumer | None] | None = None) -> bool:  # noqa: ARG002
        """That is for the owner to say, when it is asked for something."""
        return True

    def renew_lock(self, number: int, done: Callable[[int | ServiceBusError], None]) -> None:
        """Have the owner renew a lock."""

        def told(answer: Answer | ServiceBusError) -> None:
            if isinstance(answer, Numbers):
                done(answer.numbers[0])
            else:
                assert isinstance(answer, ServiceBusError)
                done(answer)

        self._remote.owner.ask(Renew(self._remote.place, *tags_of([number])), told)

    def find_locked(self, number: int, done: Callable[[tuple[int, str | None] | ServiceBusError], None]) -> None:
        """Ask the owner which message a lock is on."""

        def told(answer: Answer | ServiceBusError) -> None:
            if isinstance(answer, FoundLock):
                done((answer.sequence, answer.message_id))
            else:
                assert isinstance(answer, ServiceBusError)
                done(answer)

        self._remote.owner.ask(FindLock(self._remote.place, *tags_of([number])), told)

    def _ask(
        self, how: How, numbers: Iterable[int], answer: Answered, properties: Mapping[str, object] | None
    ) -> list[int]:
        known = list(numbers)

        def told(outcome: Answer | ServiceBusError) -> None:
            if isinstance(outcome, ServiceBusError):
                answer(outcome)
                return
            assert isinstance(outcome, Lost)
            answer(SomeLocksLost([known[place] for place in outcome.places]) if outcome.places else None)

        call = Settle(self._remote.place, how.value, tags_of(known), encoded(properties))
        self._remote.owner.ask(call, told)
        return []
