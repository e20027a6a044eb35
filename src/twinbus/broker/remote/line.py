"""Receivers of a fragment that another process owns: they lend it credit.

Owns: which receivers there are. What each has lent is its `Loan`; which messages there are is known to the owner alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from twinbus.broker.ports.fragment import DispatchPort
from twinbus.broker.remote.loan import Loan

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.broker.ports.consumer import Consumer, GatewayConsumer
    from twinbus.broker.ports.hold import Hold
    from twinbus.broker.remote.fragment import RemoteFragment
    from twinbus.model.errors import ServiceBusError


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
