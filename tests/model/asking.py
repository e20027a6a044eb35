"""What all actions have in common: chance, and that whoever asks is answered."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from tests.model.things import DEAD, MAIN, Deed, Message
from tests.model.violation import Violation
from twinbus.model.errors import MessageNotFound, ServiceBusError, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

    from tests.model.people import Receiver
    from tests.model.world import World
    from twinbus.broker.fragment import Fragment

T = TypeVar("T")
SESSIONS = ("a", "b", "bb", "", "c")
EVERYTHING = 10_000_000


class Asking:
    def __init__(self, world: World) -> None:
        self._world = world
        self._model = world.model
        self._next_identity = 1
        self._next_receiver = 1
        self._random = world.random

    def do(self, name: str, random: Random | None = None) -> None:
        self._random = random or self._world.random
        if name != "work":
            self._model.moment += 1
            self._world.say(name)
        getattr(self, name)()

    def _say(self, line: str) -> None:
        self._world.say(f"  {line}")

    def _pick(self, items: Sequence[T]) -> T | None:
        return items[int(self._random.random() * len(items))] if items else None

    def _some(self, items: Sequence[T], most: int = 3) -> list[T]:
        return self._random.sample(list(items), min(len(items), self._random.randint(1, most)))

    def _some_numbers(self, there: dict[int, Message], highest: int) -> list[int]:
        """Of messages that are there, and now and then one that may not be."""
        numbers = self._some(list(there))
        if self._random.random() < 0.15:
            numbers.append(self._random.randint(1, highest + 2))
        return list(dict.fromkeys(numbers))

    def _shelf(self) -> str:
        return DEAD if self._random.random() < 0.25 else MAIN

    def _fragment(self, shelf: str) -> Fragment:
        return self._world.fragment(shelf)

    def _ask(self, deed: Deed, call: Callable[[], object]) -> bool:
        """False if it was refused, which only happens where the store does not work."""
        try:
            call()
        except StoreUnavailable as error:
            self._say(f"refused: {error}")
            if (
                self._world.journal.trouble is None
                and self._fragment(MAIN).is_loaded
                and (self._fragment(DEAD).is_loaded)
            ):
                raise Violation(f"{deed.kind} is refused, and the store works: {error}") from None
            self._model.end(deed)
            return False
        return True

    def _unavailable(self, deed: Deed, error: ServiceBusError | None) -> bool:
        """It is not known what became of it: it may yet happen, until the store is lost or at rest."""
        deed.is_answered = True
        if isinstance(error, StoreUnavailable):
            self._say(f"{deed.kind}: unavailable")
            if self._model.is_exact(deed):
                raise Violation(f"{deed.kind} fails, and nothing is wrong: {error}")
            return True
        if error is not None and not isinstance(error, MessageNotFound):
            raise Violation(f"{deed.kind}: {error!r}")
        return False

    def _pick_holder(self) -> Receiver | None:
        """Someone who has a session."""
        return self._pick([hold.receiver for hold in self._model.holds.values()])


def is_one_of(message: Message, shelf: str, kind: str, numbers: list[int]) -> bool:
    place = message.place
    return place is not None and (place.shelf, place.kind) == (shelf, kind) and place.number in numbers
