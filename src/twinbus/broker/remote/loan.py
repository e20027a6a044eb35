"""A loan: the credit that a receiver lends to one fragment of another process.

A receiver never lends more than it has: what it lends is reserved until messages come for it, or the owner says that
there were no more (`Drained`). Then the owner says when there is something (`Ready`), and the receiver claims again. So
no fragment locks messages for which there is no room, however many fragments the receiver takes from.

Owns: what one receiver has lent to one fragment, and whether there may be something for it. An owner that is silent
does not keep what it was lent: that is written off, and what comes for it later is given back, uncounted. One that was
late, because its disk is slow, or it has much to do, is given more time for the next: else nothing would ever come in
time.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from twinbus.broker.ports.fragment import PATIENCE_S, Hold
from twinbus.broker.ports.gathering import DRAIN_PATIENCE_S
from twinbus.broker.ports.peer_protocol import Claim, Close, Open, Untaken
from twinbus.broker.ports.settlement import session_lock_lost
from twinbus.model.errors import ServiceBusError, SessionLockLost, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.broker.ports.consumer import Delivery, GatewayConsumer
    from twinbus.broker.ports.peer_protocol import Answer, Call
    from twinbus.broker.remote.fragment import RemoteFragment

PATIENCE_MAX_S: Final = 4.0
"""How long credit is lent to an owner that was late before, at most: else twice as long as it took then. An owner that
was in time is lent credit for `PATIENCE_S`."""


class Loan:
    """One receiver at one fragment of another process. To the owner's side it is a guest."""

    def __init__(
        self,
        fragment: RemoteFragment,
        consumer: GatewayConsumer,
        left: Callable[[], None],
        *,
        session: bytes | None = None,
        on_granted: Callable[[Hold], None] | None = None,
    ) -> None:
        """`left` is called when the owner ends it. Where there are sessions `on_granted` hears of the one it has."""
        self.consumer = consumer
        self.hold: Hold | None = None
        self.is_claiming = False
        self._fragment = fragment
        self._owner = fragment.owner
        self._left = left
        self._session = session
        self._on_granted = on_granted
        self._number = self._owner.next_number()
        self._is_open = False
        self._is_ready = False
        self._lent = 0
        self._claims = 0
        self._claimed_s = 0.0
        self._patience_s = PATIENCE_S
        self._seen = 0
        """Messages that came for the last claim."""
        self._returns = 0
        """What was given back and may not be free yet: what follows it must not be given before."""
        self._is_written_off = False
        self._on_drained: Callable[[], None] | None = None
        self._is_last_claim = False
        """Of a drain: what was there when it began is asked for."""
        self._owner.guests[self._number] = self
        self._open()

    # --- the way to the owner -----------------------------------------------------------------------------------------

    def _open(self) -> None:
        if self._owner.is_there:
            self._owner.ask(self._opening(), self._opened)

    def _opening(self) -> Call:
        card = self.consumer.card
        link = card.link or self._number
        return Open(
            self._number,
            self._fragment.place,
            link,
            card.client,
            self.consumer.deletes,
            self._session,
            card.epoch,
            card.if_free,
        )

    def _opened(self, answer: Answer | ServiceBusError) -> None:
        if self._number not in self._owner.guests:
            return
        if not isinstance(answer, ServiceBusError):
            self.consumer.let_in()
            if self._on_granted is None:
                self._go_on()
        elif self._owner.is_there:
            self.gone(answer)  # else it is opened when the owner is there again

    def _go_on(self) -> None:
        self._is_open = self._is_ready = True
        if self._on_drained is not None:
            self._claim_last()
        else:
            self.consumer.feed()

    def close(self) -> None:
        """The receiver has gone, or does not want anything of this fragment any more."""
        self._is_open = False
        if self._owner.guests.pop(self._number, None) is not None:
            self._owner.tell(Close(self._number, self._seen))
            self._take_back()

    def begin_again(self) -> None:
        """As if it had just come."""
        self.close()
        self.is_claiming = self._is_written_off = False
        self._number = self._owner.next_number()
        self._owner.guests[self._number] = self
        self._open()

    # --- the receiver -------------------------------------------------------------------------------------------------

    def feed(self) -> None:
        """The receiver has room."""
        is_wanted = self._is_ready and self._may_claim and not self._owner.is_doubted
        if is_wanted and self._fragment.may_hand_out:
            self._claim()

    @property
    def _may_claim(self) -> bool:
        return self._is_open and not self.is_claiming and not self._returns

    def drain(self, drained: Callable[[], None]) -> None:
        """Ask for what there is now; `drained` is called when that was all, or after a tenth of a second."""
        if not self._owner.is_there or self._owner.is_doubted:
            drained()
            return
        self._on_drained, self._is_last_claim = drained, False
        when_s = self._fragment.clock.monotonic_s() + DRAIN_PATIENCE_S
        self._fragment.timers.call_at(when_s, lambda: self._end_drain(drained))
        if self._may_claim:
            self._claim_last()

    def _claim_last(self) -> None:
        self._is_last_claim = True
        if not self._claim() and self._on_drained is not None:
            self._end_drain(self._on_drained)

    def _end_drain(self, drained: Callable[[], None]) -> None:
        if self._on_drained is drained:
            self._on_drained = None
            drained()

    def _claim(self) -> bool:
        room = self.consumer.room
        if room <= 0:
            return False
        self.consumer.reserve(room)
        self._lent, self.is_claiming, self._is_ready = room, True, False
        self._claims += 1
        self._seen = 0
        claim = self._claims
        self._claimed_s = self._fragment.clock.monotonic_s()
        self._owner.tell(Claim(self._number, room))
        self._fragment.timers.call_at(self._claimed_s + self._patience_s, lambda: self._write_off(claim))
        return True

    def _write_off(self, claim: int) -> None:
        is_guest = self._number in self._owner.guests  # else it has gone, and nothing is lent any more
        if is_guest and self.is_claiming and claim == self._claims and not self._is_written_off:
            self._is_written_off = True
            self._owner.doubt()
            self._take_back()
            self.consumer.feed()

    def _take_back(self) -> None:
        lent, self._lent = self._lent, 0
        if lent:
            self.consumer.reserve(-lent)
        if self._on_drained is not None:
            self._end_drain(self._on_drained)

    # --- the owner says these -----------------------------------------------------------------------------------------

    def given(self, deliveries: list[Delivery]) -> None:
        """Messages for what was lent."""
        count, consumer = len(deliveries), self.consumer
        self._seen += count
        if self._is_written_off or consumer.is_gone:
            self._return(deliveries)
            return
        self._lent -= count
        if not consumer.deletes:  # else it frees what it had reserved itself
            consumer.reserve(-count)
        taken = consumer.deliver(deliveries)
        if taken < count:
            self._is_written_off = True  # all that comes for this claim later is given back as well
            self._take_back()
            self._return(deliveries[taken:])

    def _return(self, deliveries: list[Delivery]) -> None:
        """They have no receiver: they are free as they were."""
        tags = [tag for _, tag in deliveries]
        with suppress(ServiceBusError):  # its owner has gone, and the locks with it
            if self.consumer.deletes:
                self._owner.ask(Untaken(self._number, [int.from_bytes(tag) for tag in tags]), self._returned)
            else:
                self._fragment.settlement.release(self._fragment.lock_numbers(tags), self._returned)
            self._returns += 1

    def _returned(self, _outcome: object) -> None:
        self._returns -= 1
        if not self._may_claim:
            return
        if self._on_drained is None or self._is_last_claim:
            self.consumer.feed()
        else:
            self._claim_last()

    def drained(self) -> None:
        """There is no more for what was lent."""
        self.is_claiming = self._is_written_off = False
        took_s = self._fragment.clock.monotonic_s() - self._claimed_s
        self._patience_s = min(max(PATIENCE_S, 2 * took_s), PATIENCE_MAX_S)
        left, self._lent = self._lent, 0
        if left:
            self.consumer.reserve(-left)
        if self._on_drained is None:
            self.consumer.feed()  # other fragments may have what this one has not
        elif self._is_last_claim:
            self._end_drain(self._on_drained)
        elif self._may_claim:
            self._claim_last()

    def ready(self) -> None:
        """There is something."""
        self._is_ready = True
        self.feed()

    def granted(self, session: bytes, until_ms: int) -> None:
        """The receiver has a session."""
        assert self._on_granted is not None
        self.hold = hold = Hold(session, self.consumer, until_ms)
        self._is_open = self._is_ready = True
        self._on_granted(hold)

    def gone(self, error: ServiceBusError) -> None:
        """The receiver gets nothing any more."""
        self._forget()
        if isinstance(error, SessionLockLost):
            self.consumer.session_lost(error)
        else:
            self.consumer.entity_gone(error)

    def _forget(self) -> None:
        self._owner.guests.pop(self._number, None)
        self._owner.tell(Close(self._number, self._seen))
        self._is_open = False
        if self.hold is not None:
            self.hold.is_over = True
        self._left()
        self._take_back()

    def owner_lost(self) -> None:
        """What was lent to it is not any more; a session that it gave is lost."""
        self._is_open = self.is_claiming = self._is_written_off = False
        if self.hold is not None:
            self.gone(session_lock_lost(self.hold.session))
            return
        if self.consumer.card.withholds:
            self.gone(
                StoreUnavailable("the process that withheld messages is gone: attach again, and say which to withhold")
            )
            return
        self._take_back()
        self.consumer.feed()

    def owner_found(self) -> None:
        """It knows nothing of the receiver."""
        self._open()
