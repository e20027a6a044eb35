"""The owner of fragments: another process, as far as this one knows it.

Owns: whether it is there, who waits for which of its answers, and who hears of what happens in its fragments. An owner
that is not there is to senders and receivers what a store is that does not work: calls are refused, what waits for an
answer is told, and receivers come back when it is there again.

How a call gets there is not known here: `connected` is given what transmits it, and `receive` is told what comes back.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from twinbus.broker.journal import StoreState
from twinbus.broker.ports.fragment import OwnerPort
from twinbus.broker.ports.peer_protocol import (
    Browse,
    Call,
    Check,
    Failed,
    Given,
    Gone,
    Granted,
    Health,
    Hear,
    Manage,
    Open,
    Ready,
    Refusals,
    error_of,
)
from twinbus.broker.ports.peer_protocol import Drained as DrainedNotice
from twinbus.model.callbacks import ignore
from twinbus.model.errors import ServiceBusError, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.broker.clock import Clock, Timers
    from twinbus.broker.ports.fragment import RoomChecked
    from twinbus.broker.ports.peer_protocol import Answer

    Transmit: TypeAlias = Callable[[int, Call], None]
    Told: TypeAlias = Callable[[Answer | ServiceBusError], None]

LOOK_S: Final = 1.0
AWAY: Final = "its broker process is not there"


class Guest(Protocol):
    """Who receives from a fragment of the owner, or reads it."""

    def feed(self) -> None:
        """What kept it from asking for messages is over."""

    def given(self, deliveries: list[tuple[bytes, bytes]]) -> None:
        """Messages for it."""

    def drained(self) -> None:
        """What it claimed is over."""

    def ready(self) -> None:
        """There is something for it."""

    def granted(self, session: bytes, until_ms: int) -> None:
        """It has a session."""

    def gone(self, error: ServiceBusError) -> None:
        """It gets nothing any more."""

    def owner_lost(self) -> None:
        """The owner is not there any more."""

    def owner_found(self) -> None:
        """... and is there again."""


class _Waiting:
    """Who waits for an answer, since when; one who is patient does so for any time.

    One who comes is let in when the owner speaks again: what he receives from others does not end by its silence.
    """

    __slots__ = ("comes", "is_patient", "since_s", "told")

    def __init__(self, told: Told, since_s: float, call: Call) -> None:
        self.told = told
        self.since_s = since_s
        self.comes = isinstance(call, Open | Browse)
        self.is_patient = self.comes or isinstance(call, Manage)


class Owner(OwnerPort):
    """One other process."""

    def __init__(self, name: str, *, clock: Clock, timers: Timers, timeout_s: float) -> None:
        """Not there yet. Whoever does not get an answer in `timeout_s` is told that it is unavailable."""
        self.name = name
        self.guests: dict[int, Guest] = {}
        self.life = 0
        """Another one each time it is found: it knows nothing of what it was told before."""
        self.stores: dict[int, RemoteStore] = {}
        """By their numbers."""
        self._clock = clock
        self._timers = timers
        self._timeout_s = timeout_s
        self._transmit: Transmit | None = None
        self._waiting: dict[int, _Waiting] = {}
        self._numbers = count(1)
        self._is_watched = False
        self._is_silent = False
        self._was_heard = False
        """It said something since it was last looked at."""
        self._looked_s = 0.0
        self._heard_s = 0.0
        """It was heard then, or a little later: time is not asked for with every word."""
        self.is_doubted = False
        """Credit that was lent to it was written off: nothing more is lent to it before it says something."""

    @property
    def is_there(self) -> bool:
        """Calls get to it."""
        return self._transmit is not None

    @property
    def is_awaited(self) -> bool:
        """Whether it is connected and answers, as far as is known."""
        return self.is_there and not self.is_doubted

    @property
    def decides_room(self) -> bool:
        """Whether its fragments have room is known to it alone."""
        return True

    def confirm(self, told: Callable[[object], None]) -> None:
        """Call `told` when it has heard all that it was told before. StoreUnavailable."""
        self.ask(Hear(), told)

    def check_room(self, entity_id: int, sizes: dict[int, int], told: RoomChecked) -> None:
        """Ask whether fragments of an entity can store so many bytes each. StoreUnavailable."""

        def answered(answer: Answer | ServiceBusError) -> None:
            if isinstance(answer, ServiceBusError):
                told(dict.fromkeys(sizes, answer))
            else:
                assert isinstance(answer, Refusals)
                told({number: error_of(kind, text) for number, (kind, text) in answer.fragments.items()})

        self.ask(Check(entity_id, sizes), answered)

    def next_number(self) -> int:
        """A number that nothing else has had here."""
        return next(self._numbers)

    # --- calls --------------------------------------------------------------------------------------------------------

    def ask(self, call: Call, told: Told) -> None:
        """Make a call; `told` hears what comes of it. StoreUnavailable."""
        if self._transmit is None:
            raise StoreUnavailable(f"{self.name} is unavailable: {AWAY}")
        number = next(self._numbers)
        now_s = self._clock.monotonic_s()
        self._waiting[number] = _Waiting(told, now_s, call)
        self._transmit(number, call)
        if not self._is_watched:
            self._was_heard, self._looked_s, self._heard_s = False, now_s, now_s
            self._watch()

    def tell(self, call: Call) -> None:
        """Make a call that is not answered. To who is not there nothing has to be told: it knows nothing any more."""
        if self._transmit is not None:
            self._transmit(0, call)

    # --- whoever connects it calls these ------------------------------------------------------------------------------

    def connected(self, transmit: Transmit) -> None:
        """It is there."""
        self._transmit = transmit
        self.life += 1
        for store in self.stores.values():
            store.reported = None  # it was said of an earlier life; of this one it says so itself
        self._speaks()
        for guest in list(self.guests.values()):
            guest.owner_found()

    def disconnected(self) -> None:
        """It is not there any more: what was asked may have been done, or not."""
        self._transmit = None
        for store in self.stores.values():
            store.trouble, store.refusal = AWAY, None  # when the owner is back, it reports its disks again
        self._refuse(AWAY, self._waiting)
        for guest in list(self.guests.values()):
            guest.owner_lost()

    def receive(self, number: int, answer: Answer) -> None:
        """Something came from it: the answer to a call, or a notice."""
        self._was_heard = True
        if self._is_silent or self.is_doubted:
            self._speaks()
        if number:
            waiting = self._waiting.pop(number, None)
            if waiting is not None:
                waiting.told(error_of(answer.kind, answer.text) if isinstance(answer, Failed) else answer)
            return
        if isinstance(answer, Health):
            self._note_health(answer)
            return
        assert isinstance(answer, Given | DrainedNotice | Ready | Granted | Gone)
        guest = self.guests.get(answer.consumer)
        if guest is not None:  # else it has gone meanwhile, which the owner hears
            _tell_guest(guest, answer)

    def _note_health(self, health: Health) -> None:
        is_better = False
        for number, (trouble, refusal) in health.stores.items():
            store = self.stores.get(number)
            if store is not None:
                is_better = is_better or (store.trouble is not None and trouble is None)
                store.trouble = store.reported = trouble
                store.refusal = refusal
        if is_better:
            self._feed_all()

    # --- silence ------------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        if not self._is_watched and self._waiting:
            self._is_watched = True
            self._timers.call_at(self._clock.monotonic_s() + LOOK_S, self._look)

    def _look(self) -> None:
        """Where somebody has waited for half of the time, it is asked for a word; where for all of it, he is told.

        One that speaks is not silent, though it may owe an answer: a disk of it hangs, and its other stores work. Who
        is patient is told only if it does not say that word.
        """
        now_s = self._clock.monotonic_s()
        if self._was_heard:
            self._was_heard, self._heard_s = False, self._looked_s
        self._looked_s = now_s
        waiting = self._waiting.values()  # the oldest first
        longest = next(iter(waiting), None)
        oldest = next((one for one in waiting if not one.is_patient), None)
        if oldest is not None and oldest.since_s + self._timeout_s <= now_s:
            self._give_up(now_s)
        elif longest is not None and longest.since_s + self._timeout_s / 2 <= now_s and self._transmit is not None:
            self.ask(Hear(), ignore)
        self._is_watched = False
        self._watch()

    def _give_up(self, now_s: float) -> None:
        trouble = f"its broker process has not answered for {self._timeout_s:g} s"
        if now_s - self._heard_s < self._timeout_s:
            until_s = now_s - self._timeout_s
            late = {at: one for at, one in self._waiting.items() if not one.is_patient and one.since_s <= until_s}
            self._refuse(trouble, late)
            return
        self._is_silent = True
        for store in self.stores.values():
            store.trouble = trouble
        self._refuse(trouble, {number: one for number, one in self._waiting.items() if not one.comes})

    def doubt(self) -> None:
        """It has not answered what credit was lent for. It is asked for a word: without one it stays in doubt."""
        if not self.is_doubted and self._transmit is not None:
            self.is_doubted = True
            self.ask(Hear(), ignore)

    def _speaks(self) -> None:
        self._is_silent = self.is_doubted = False
        for store in self.stores.values():
            store.trouble = store.reported
        self._feed_all()

    def _feed_all(self) -> None:
        for guest in list(self.guests.values()):
            guest.feed()

    def _refuse(self, reason: str, refused: dict[int, _Waiting]) -> None:
        self._waiting = {number: one for number, one in self._waiting.items() if number not in refused}
        for one in refused.values():
            one.told(StoreUnavailable(f"{self.name} is unavailable: {reason}"))


def _tell_guest(guest: Guest, notice: Given | DrainedNotice | Ready | Granted | Gone) -> None:
    if isinstance(notice, Given):
        guest.given(notice.deliveries)
    elif isinstance(notice, DrainedNotice):
        guest.drained()
    elif isinstance(notice, Ready):
        guest.ready()
    elif isinstance(notice, Granted):
        guest.granted(notice.session, notice.until_ms)
    else:
        guest.gone(error_of(notice.kind, notice.text))


class RemoteStore(StoreState):
    """What one process knows of another one's store."""

    def __init__(self, name: str, number: int, owner: Owner, *, max_pending_bytes: int) -> None:
        """Unavailable until its owner is connected. `number` is the store's."""
        super().__init__(name, max_pending_bytes)
        self.owner = owner
        self.trouble = None if owner.is_there else AWAY
        self.reported: str | None = None
        """Why the store does not work, as its owner said last."""
        owner.stores[number] = self
