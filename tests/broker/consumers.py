"""Receiving links without a connection, that count credit as the server's do."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

from twinbus.amqp.message import Message
from twinbus.broker.ports.consumer import Card
from twinbus.broker.ports.gathering import Gathering
from twinbus.model.partition_key import fragment_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinbus.broker.ports.consumer import Delivery
    from twinbus.broker.ports.fragment import FragmentPort, Hold
    from twinbus.model.errors import ServiceBusError

_links = count(1)


class Answers(list["ServiceBusError | None"]):
    """All results of an operation; tests pass it as `answer`."""

    def __call__(self, error: ServiceBusError | None) -> None:
        self.append(error)


class TestConsumer:
    """A receiving link over one fragment or several."""

    __test__ = False

    def __init__(self, *fragments: FragmentPort, deletes: bool = False, epoch: int | None = None) -> None:
        self.card = Card(client=1, epoch=epoch, link=next(_links))
        self.deletes = deletes
        self.is_gone = False
        self.credit = 0
        self.reserved = 0
        self.deliveries: list[Delivery] = []
        self.errors: list[ServiceBusError] = []
        self.drains = 0
        self.gathering = Gathering(fragments)
        self._begin()

    def _begin(self) -> None:
        self.gathering.add(self)

    # --- as fragments know it -----------------------------------------------------------------------------------------

    @property
    def room(self) -> int:
        return self.credit - self.reserved

    def reserve(self, count: int) -> None:
        self.reserved += count

    def deliver(self, deliveries: list[Delivery]) -> int:
        assert len(deliveries) <= self.credit
        self.credit -= len(deliveries)
        if self.deletes:
            self.reserved -= len(deliveries)
        self.deliveries += deliveries
        return len(deliveries)

    def entity_gone(self, error: ServiceBusError) -> None:
        self.is_gone = True
        self.errors.append(error)

    def session_lost(self, error: ServiceBusError) -> None:
        self.entity_gone(error)

    def feed(self) -> None:
        if self.credit and not self.is_gone:
            self.gathering.feed(self)

    def let_in(self) -> None:
        pass

    # --- as its client uses it ----------------------------------------------------------------------------------------

    def grant(self, credit: int) -> None:
        self.credit += credit
        self.gathering.feed(self)

    def drain(self, credit: int = 0) -> None:
        self.credit += credit
        self.gathering.drain(self, self._drained)

    def _drained(self) -> None:
        self.drains += 1
        self.credit = 0

    def leave(self) -> None:
        self.is_gone = True
        self.gathering.remove(self)

    @property
    def messages(self) -> list[Message]:
        return [Message(payload) for payload, _ in self.deliveries]

    @property
    def bodies(self) -> list[bytes]:
        return [message.data[0] for message in self.messages]

    def numbers(self) -> list[int]:
        """Return the numbers of all locks that it was given, of a consumer over one fragment."""
        (fragment,) = self.gathering.fragments
        return fragment.lock_numbers([tag for _, tag in self.deliveries])

    def complete(self, answers: Answers) -> None:
        """Complete all messages that it was given."""
        by_fragment: dict[FragmentPort, list[bytes]] = {}
        for _, tag in self.deliveries:
            by_fragment.setdefault(self.gathering.find(tag), []).append(tag)
        for fragment, tags in by_fragment.items():
            fragment.settlement.complete(fragment.lock_numbers(tags), answers)


class SessionConsumer(TestConsumer):
    """A receiving link that accepts a session: the one that it names, or any."""

    def __init__(self, *fragments: FragmentPort, session: bytes | None = None, deletes: bool = False) -> None:
        self.holds: list[Hold] = []
        self._wanted = session
        super().__init__(*_candidates(fragments, session), deletes=deletes)

    def _begin(self) -> None:
        for fragment in self.gathering.fragments:
            if self._wanted is not None:
                fragment.line.accept(self, self._wanted, self._granted)
            else:
                fragment.line.wait(self, self._granted)

    def _granted(self, hold: Hold) -> None:
        self.holds.append(hold)
        for fragment in self.gathering.fragments:
            if fragment.line.gave(hold):
                self.gathering = Gathering([fragment])
            else:
                fragment.line.give_up(self)
        self.feed()

    @property
    def hold(self) -> Hold | None:
        return self.holds[-1] if self.holds else None

    @property
    def session(self) -> bytes | None:
        return self.hold.session if self.hold is not None else None


def _candidates(fragments: Sequence[FragmentPort], session: bytes | None) -> Sequence[FragmentPort]:
    """Return the fragments that may hold a session."""
    return fragments if session is None or len(fragments) == 1 else [fragments[fragment_of(session)]]
