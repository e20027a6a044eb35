"""A visitor: a receiver of another process, at a fragment of this one.

Owns: what it has claimed, and that it hears when there is something for it while it has claimed nothing. To the
fragment it is a consumer like any other.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from twinbus.broker.ports.peer_protocol import Drained, Given, Gone, Granted, Ready, kind_of
from twinbus.model.callbacks import ignore
from twinbus.model.errors import ServiceBusError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twinbus.broker.fragment import Fragment
    from twinbus.broker.ports.callbacks import Answered
    from twinbus.broker.ports.claim import Claim
    from twinbus.broker.ports.consumer import Delivery
    from twinbus.broker.ports.fragment import Hold
    from twinbus.broker.ports.peer_protocol import Answer


class Visitor:
    """One receiver at one fragment."""

    def __init__(
        self, number: int, fragment: Fragment, *, client: int, deletes: bool, notify: Callable[[Answer], None]
    ) -> None:
        """`number` is its own, and `client` that of who it is of, in its process, which hears of it by `notify`."""
        self.number = number
        self.fragment = fragment
        self.client = client
        self.deletes = deletes
        self.is_gone = False
        self.hold: Hold | None = None
        self._notify = notify
        self._claimed = 0
        self._handing = 0
        """Of that, what is being deleted, to be delivered then."""
        self._is_claiming = False
        self._is_drained = False
        self._is_told = False
        """That there is something for it."""
        self._given: list[bytes] = []
        """The tags of what it was given since it claimed."""
        if deletes:
            fragment.returnable[self] = {}

    # --- its process calls these --------------------------------------------------------------------------------------

    def claim(self, count: int) -> None:
        """It takes so many now. What it was given before it has, or it was brought back."""
        self._given.clear()
        self._returnable().clear()
        if self.is_gone:
            return
        self._claimed, self._is_claiming, self._is_drained = count, True, False
        self.fragment.line.drain(self, self._drained)

    def bring_back(self, sequences: list[int], answer: Answered) -> None:
        """Messages that were deleted for it were not taken."""
        returnable = self._returnable()
        items = [(number, returnable.pop(number)) for number in sequences if number in returnable]
        if items:
            self.fragment.store_again(items, answer)
        else:
            answer(None)

    def _returnable(self) -> dict[int, bytes]:
        """Messages that were deleted for it since it claimed, and may come back."""
        return self.fragment.returnable.get(self, {})

    def granted(self, hold: Hold) -> None:
        """It has a session."""
        self.hold = hold
        self._notify(Granted(self.number, hold.session, hold.until_ms))

    def leave(self, seen: int | None = None) -> None:
        """It has gone, and has seen so many messages of what it was given: the others are there as they were."""
        self.is_gone, self._claimed, fragment = True, 0, self.fragment
        tags = self._given[seen:] if seen is not None else []
        if self.deletes:  # its session is free when they are back: who has that next gets them first
            self.bring_back([int.from_bytes(tag) for tag in tags], lambda _error: fragment.line.remove(self))
            fragment.returnable.pop(self, None)
            return
        fragment.line.remove(self)
        with suppress(ServiceBusError):  # its store does not work, and the locks are void, or will be over
            fragment.settlement.release(fragment.lock_numbers(tags), ignore)

    def _drained(self) -> None:
        self._is_drained = True
        self._finish()

    def _finish(self) -> None:
        """The claim is over, once all that is being deleted for it was given."""
        if not self._is_claiming or not self._is_drained or self._handing > 0:
            return
        self._claimed, self._is_claiming, self._is_told = 0, False, False
        self._notify(Drained(self.number))
        if not self.is_gone:
            self.fragment.line.feed(self)  # it is asked for its room when there is something

    # --- the fragment calls these -------------------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """How many messages it takes now. Who asks has some: if it claims nothing, it is told."""
        if not self._is_claiming and not self._is_told and not self.is_gone:
            self._is_told = True
            self._notify(Ready(self.number))
        return self._claimed

    def reserve(self, count: int) -> None:
        """So many are being deleted, to be delivered then."""
        self._claimed -= count
        self._handing += count
        self._finish()

    def deliver(self, deliveries: list[Delivery]) -> int:
        """Messages for it."""
        if self.deletes:
            self._handing -= len(deliveries)
        else:
            self._claimed -= len(deliveries)
        self._given += [tag for _, tag in deliveries]
        self._notify(Given(self.number, deliveries))
        self._finish()
        return len(deliveries)

    def feed(self) -> None:
        """Its room is for this fragment alone, which knows of it."""

    def entity_gone(self, error: ServiceBusError) -> None:
        """The entity was deleted or disabled, or another receiver has claimed it."""
        if not self.is_gone:
            self.is_gone = True
            self._notify(Gone(self.number, kind_of(error), str(error)))

    def session_lost(self, error: ServiceBusError) -> None:
        """The time for which it had its session is over."""
        self.entity_gone(error)


class VisitingReader:
    """Somebody of another process who reads a fragment of this one. To its `Browser` it is a reader."""

    def __init__(self, number: int, notify: Callable[[Answer], None]) -> None:
        """As a visitor."""
        self.number = number
        self._notify = notify
        self._claimed = 0
        self._is_claiming = False
        self._is_told = False

    def claim(self, count: int) -> None:
        """It sees so many now."""
        self._claimed, self._is_claiming = count, True

    def drained(self) -> None:
        """It has seen all that there is."""
        self._claimed, self._is_claiming, self._is_told = 0, False, False
        self._notify(Drained(self.number))

    @property
    def is_hungry(self) -> bool:
        """It wants messages. Who asks has some: if it claims nothing, it is told."""
        if not self._is_claiming and not self._is_told:
            self._is_told = True
            self._notify(Ready(self.number))
        return self._claimed > 0

    @property
    def room(self) -> int:
        """How many it sees now."""
        return self._claimed

    def show(self, deliveries: list[Delivery]) -> int:
        """Messages to be seen."""
        if deliveries:
            self._claimed -= len(deliveries)
            self._notify(Given(self.number, deliveries))
        return len(deliveries)

    def entity_gone(self, error: ServiceBusError) -> None:
        """The entity was deleted or disabled."""
        self._notify(Gone(self.number, kind_of(error), str(error)))


class Party:
    """One receiver. To the claim it is the consumer that has it."""

    deletes = False

    def __init__(self, link: int, client: int, claim: Claim) -> None:
        """`link` is its number, and `client` that of who it is of, in its process."""
        self.link = link
        self.client = client
        self.visitors: set[Visitor] = set()
        self._claim = claim

    def enter(self, where: str, epoch: int | None, fragments: Sequence[Fragment], *, if_free: bool = False) -> None:
        """It comes, and claims the entity if it has an epoch. EntityClaimed if it cannot."""
        if epoch is None:
            self._claim.check_open(where)
            return
        others = any(fragment.line.consumers for fragment in fragments)
        self._claim.check(where, epoch, others=others, if_free=if_free)
        self._claim.displace(where, epoch, fragments)
        self._claim.take(self, epoch, fragments)

    def leave(self) -> None:
        """It has gone."""
        self._claim.give_up(self)

    def entity_gone(self, error: ServiceBusError) -> None:
        """Another receiver has claimed the entity."""
        for visitor in list(self.visitors):
            visitor.fragment.line.remove(visitor)
            visitor.entity_gone(error)

    @property
    def is_gone(self) -> bool:
        """It is there as long as one of its visitors is."""
        return not self.visitors

    @property
    def room(self) -> int:
        """Its visitors take messages, not it."""
        return 0

    def reserve(self, count: int) -> None:
        """As for `room`."""

    def deliver(self, deliveries: list[Delivery]) -> int:
        """As for `room`."""
        raise AssertionError(deliveries)

    def feed(self) -> None:
        """As for `room`."""

    def session_lost(self, error: ServiceBusError) -> None:
        """As for `room`."""
