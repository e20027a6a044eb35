"""A fragment that another process owns.

Owns: nothing but the way to it: receivers, settlements and readers ask the owner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from twinbus.broker.ports.fragment import DispatchPort, FragmentPort
from twinbus.broker.ports.peer_protocol import Managed
from twinbus.broker.remote.browsing import RemoteBrowsing
from twinbus.broker.remote.loan import Loan
from twinbus.broker.remote.settlement import TAG_BYTES, RemoteSettlement
from twinbus.model.errors import ServiceBusError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from twinbus.broker.clock import Times
    from twinbus.broker.ports.consumer import Consumer, GatewayConsumer
    from twinbus.broker.ports.fragment import Hold, ManagementRequest
    from twinbus.broker.ports.peer_protocol import Answer, Place
    from twinbus.broker.remote.owner import Owner, RemoteStore


class RemoteDispatch(DispatchPort):
    """Who receives from one fragment, with or without sessions."""

    def __init__(self, fragment: RemoteFragment) -> None:
        """Nobody is there yet."""
        self.loans: dict[Consumer, Loan] = {}
        self._fragment = fragment

    @property
    def consumers(self) -> list[Consumer]:
        """All receivers of this process."""
        return list(self.loans)

    def add(self, consumer: Consumer) -> None:
        """Add a receiver; it says when it has room."""
        self._begin(consumer)

    def accept(self, consumer: Consumer, session: bytes, granted: Callable[[Hold], None]) -> None:
        """Have the owner give a receiver the session that it names; a refusal is reported by `entity_gone`."""
        self._fragment.check_works()
        self._begin(consumer, session, granted)

    def wait(self, consumer: Consumer, granted: Callable[[Hold], None]) -> None:
        """Have the owner give a receiver any session, as soon as there is one."""
        self._begin(consumer, None, granted)

    def _begin(
        self,
        consumer: Consumer,
        session: bytes | None = None,
        granted: Callable[[Hold], None] | None = None,
    ) -> None:
        def left() -> None:
            self.loans.pop(consumer, None)

        receiver = cast("GatewayConsumer", consumer)
        self.loans[consumer] = Loan(self._fragment, receiver, left, session=session, on_granted=granted)

    def give_up(self, consumer: Consumer) -> bool:
        """Stop waiting for a session. Return False if the receiver has one by now."""
        loan = self.loans.get(consumer)
        if loan is None or loan.hold is not None:
            return False
        self.remove(consumer)
        return True

    def gave(self, hold: Hold) -> bool:
        """Whether a session that a receiver has is of this fragment."""
        loan = self.loans.get(hold.consumer)
        return loan is not None and loan.hold is hold

    def remove(self, consumer: Consumer) -> None:
        """Remove a receiver: what it has lent is its own again, and its session is free."""
        loan = self.loans.pop(consumer, None)
        if loan is not None:
            loan.close()
            if loan.hold is not None:
                loan.hold.is_over = True

    def feed(self, consumer: Consumer) -> None:
        """Ask the owner for messages, if there may be some."""
        loan = self.loans.get(consumer)
        if loan is not None:
            loan.feed()

    def drain(self, consumer: Consumer, drained: Callable[[], None]) -> None:
        """Ask the owner for what there is now."""
        loan = self.loans.get(consumer)
        if loan is None:
            drained()
        else:
            loan.drain(drained)

    def has_reserved(self, consumer: Consumer) -> bool:
        """Whether the owner has been asked for messages and holds credit of the receiver."""
        loan = self.loans.get(consumer)
        return loan is not None and loan.is_claiming

    def close(self, error: ServiceBusError) -> None:
        """End all receivers."""
        loans, self.loans = self.loans, {}
        for consumer, loan in loans.items():
            loan.close()
            consumer.entity_gone(error)

    def dispatch(self) -> None:
        """Ask for messages again: a rehearsed outage is over."""
        for loan in list(self.loans.values()):
            loan.feed()


class RemoteFragment(FragmentPort):
    """One fragment, as another process than its owner sees it."""

    def __init__(self, place: Place, store: RemoteStore, *, times: Times, has_sessions: bool = False) -> None:
        """`place` is how its owner knows it."""
        super().__init__(place[1], times, has_sessions=has_sessions)
        self.store = store
        self.place = place
        self._line = RemoteDispatch(self)
        self._settlement = RemoteSettlement(self)
        self._browsing = RemoteBrowsing(self)

    @property
    def line(self) -> RemoteDispatch:
        """Who receives from it."""
        return self._line

    @property
    def settlement(self) -> RemoteSettlement:
        """The ends of its locks."""
        return self._settlement

    @property
    def browsing(self) -> RemoteBrowsing:
        """Looking at its messages."""
        return self._browsing

    @property
    def owner(self) -> Owner:
        """The process that owns it."""
        return self.store.owner

    @property
    def is_available(self) -> bool:
        """Whether its store works, as far as is known."""
        return self.store.trouble is None

    @property
    def takes_sends(self) -> bool:
        """Whether its store takes messages, as far as is known."""
        return self.store.takes_sends

    def check_works(self) -> None:
        """Raise StoreUnavailable if its store does not work, as far as is known."""
        self.store.check_works()

    def check_takes_sends(self) -> None:
        """Raise StoreUnavailable or ServerBusy if its store takes no messages, as far as is known."""
        self.store.check_takes_sends()

    def lock_numbers(self, tags: Iterable[bytes]) -> list[int]:
        """Return tags as numbers: only the owner knows which locks there are."""
        return [int.from_bytes(tag) if len(tag) == TAG_BYTES else 0 for tag in tags]

    @property
    def admits_later(self) -> bool:
        """Whether the owner is connected, and will admit a receiver."""
        return self.owner.is_there

    @property
    def reserves_credit(self) -> bool:
        """Credit that is lent to the owner cannot be offered to others."""
        return True

    def manage(self, request: ManagementRequest, act: Callable[[], None]) -> None:  # noqa: ARG002
        """Have a request carried out by the owner. StoreUnavailable."""
        reply = request.reply

        def told(answer: Answer | ServiceBusError) -> None:
            if isinstance(answer, Managed):
                reply(answer.response)
            else:
                assert isinstance(answer, ServiceBusError)
                reply(answer)

        call = request.kind(self.place, request.arguments(), request.client, request.transaction)
        self.owner.ask(call, told)
