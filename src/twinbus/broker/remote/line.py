"""The line, and the sessions, of a fragment that another process has: its receivers lend it credit.

Owns: which receivers there are. What each has lent is its `Loan`; what messages there are is known to the owner alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from twinbus.broker.line import Line
from twinbus.broker.remote.loan import Loan
from twinbus.broker.sessions import Sessions
from twinbus.broker.window import Window

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.broker.consumer import Consumer
    from twinbus.broker.hold import Hold
    from twinbus.broker.remote.fragment import RemoteFragment
    from twinbus.broker.remote.loan import Borrowed
    from twinbus.model.errors import ServiceBusError


class Lending:
    """The loans of all receivers to one fragment."""

    def __init__(self, fragment: RemoteFragment) -> None:
        """None yet."""
        self.loans: dict[Consumer, Loan] = {}
        self._fragment = fragment

    def begin(
        self,
        consumer: Consumer,
        session: bytes | None = None,
        on_granted: Callable[[Hold], None] | None = None,
    ) -> None:
        """A receiver has come."""
        borrowed = cast("Borrowed", consumer)

        def left() -> None:
            self.loans.pop(consumer, None)

        loan = Loan(self._fragment, borrowed, left, session=session, on_granted=on_granted)
        self.loans[consumer] = loan

    def end(self, consumer: Consumer) -> Loan | None:
        """A receiver has gone."""
        loan = self.loans.pop(consumer, None)
        if loan is not None:
            loan.close()
        return loan

    def feed(self, consumer: Consumer) -> None:
        """A receiver has room."""
        loan = self.loans.get(consumer)
        if loan is not None:
            loan.feed()

    def drain(self, consumer: Consumer, drained: Callable[[], None]) -> None:
        """Give a receiver what there is now."""
        loan = self.loans.get(consumer)
        if loan is None:
            drained()
        else:
            loan.drain(drained)

    def close(self, error: ServiceBusError) -> None:
        """Nobody gets anything any more."""
        loans, self.loans = self.loans, {}
        for consumer, loan in loans.items():
            loan.close()
            consumer.entity_gone(error)

    def dispatch(self) -> None:
        """There may be something for everyone."""
        for loan in list(self.loans.values()):
            loan.feed()


class RemoteLine(Line):
    """Who receives from a fragment without sessions."""

    def __init__(self, fragment: RemoteFragment) -> None:
        """Nobody is there yet."""
        super().__init__(fragment)
        self.lending = Lending(fragment)

    def add(self, consumer: Consumer) -> None:
        """A receiver has come; it says when it is hungry."""
        self.consumers.add(consumer)
        self.lending.begin(consumer)

    def remove(self, consumer: Consumer) -> None:
        """A receiver has gone."""
        self.consumers.discard(consumer)
        self.lending.end(consumer)

    def feed(self, consumer: Consumer) -> None:
        """A receiver has room."""
        self.lending.feed(consumer)

    def drain(self, consumer: Consumer, drained: Callable[[], None]) -> None:
        """Give a receiver what there is now; `drained` is called when that was all, or after a tenth of a second."""
        self.lending.drain(consumer, drained)

    def close(self, error: ServiceBusError) -> None:
        """Nobody gets anything any more."""
        self.consumers.clear()
        self.lending.close(error)

    def restart(self, low: int) -> None:
        """Nothing is known of messages here."""
        self.window = Window(low)

    def dispatch(self) -> None:
        """An outage that was rehearsed is over."""
        self.lending.dispatch()


class RemoteSessions(Sessions):
    """Who receives from a fragment with sessions."""

    def __init__(self, fragment: RemoteFragment) -> None:
        """Nobody is there yet."""
        super().__init__(fragment)
        self.lending = Lending(fragment)

    @property
    def consumers(self) -> list[Consumer]:
        """Who has a session, or waits for one."""
        return list(self.lending.loans)

    def accept(self, consumer: Consumer, session: bytes, granted: Callable[[Hold], None]) -> None:
        """Give a receiver the session it names; what keeps it from having it, it hears by `entity_gone`."""
        self._fragment.journal.check_works()
        self.lending.begin(consumer, session, granted)

    def wait(self, consumer: Consumer, granted: Callable[[Hold], None]) -> None:
        """Give a receiver any session, as soon as there is one."""
        self.lending.begin(consumer, None, granted)

    def give_up(self, consumer: Consumer) -> bool:
        """A receiver waits no longer. False if it has a session by now."""
        loan = self.lending.loans.get(consumer)
        if loan is None or loan.hold is not None:
            return False
        self.lending.end(consumer)
        return True

    def remove(self, consumer: Consumer) -> None:
        """A receiver has gone: its session is free, and what it had is as it was."""
        loan = self.lending.end(consumer)
        if loan is not None and loan.hold is not None:
            loan.hold.is_over = True
            self.holds.pop(loan.hold.session, None)

    def feed(self, consumer: Consumer) -> None:
        """A receiver has room."""
        self.lending.feed(consumer)

    def drain(self, consumer: Consumer, drained: Callable[[], None]) -> None:
        """Give a receiver what there is now; `drained` is called when that was all, or after a tenth of a second."""
        self.lending.drain(consumer, drained)

    def close(self, error: ServiceBusError) -> None:
        """Nobody gets anything any more."""
        self.holds.clear()
        self.lending.close(error)

    def restart(self, _low: int) -> None:
        """Nothing is known of messages here."""

    def dispatch(self) -> None:
        """An outage that was rehearsed is over."""
        self.lending.dispatch()
