"""Base class of actions: random choices, and checks that every operation completes."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from tests.simulation.queue.model_state import DEAD, MAIN, Message, Operation, Violation
from twinbus.model.errors import MessageNotFound, ServiceBusError, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

    from tests.simulation.queue.links import Receiver
    from tests.simulation.queue.simulation import QueueSimulation
    from twinbus.broker.fragment.fragment import Fragment

T = TypeVar("T")
SESSIONS = ("a", "b", "bb", "", "c")
NO_LIMIT = 10_000_000


class BaseActions:
    def __init__(self, simulation: QueueSimulation) -> None:
        self._simulation = simulation
        self._model = simulation.model
        self._next_identity = 1
        self._next_receiver = 1
        self._random = simulation.random

    def do(self, name: str, random: Random | None = None) -> None:
        self._random = random or self._simulation.random
        if name != "run_step":
            self._model.step += 1
            self._simulation.trace(name)
        getattr(self, name)()

    def _trace(self, line: str) -> None:
        self._simulation.trace(f"  {line}")

    def _choose(self, items: Sequence[T]) -> T | None:
        return items[int(self._random.random() * len(items))] if items else None

    def _sample(self, items: Sequence[T], most: int = 3) -> list[T]:
        return self._random.sample(list(items), min(len(items), self._random.randint(1, most)))

    def _sample_numbers(self, existing: dict[int, Message], highest: int) -> list[int]:
        """Return sequence numbers of some messages, and sometimes one that may not exist."""
        numbers = self._sample(list(existing))
        if self._random.random() < 0.15:
            numbers.append(self._random.randint(1, highest + 2))
        return list(dict.fromkeys(numbers))

    def _choose_area(self) -> str:
        return DEAD if self._random.random() < 0.25 else MAIN

    def _fragment(self, area: str) -> Fragment:
        return self._simulation.fragment(area)

    def _call(self, operation: Operation, call: Callable[[], object]) -> bool:
        """Make a call; return False if it is refused, which is correct only while the store does not work."""
        try:
            call()
        except StoreUnavailable as error:
            self._trace(f"refused: {error}")
            if (
                self._simulation.commit_log.unavailable_reason is None
                and self._fragment(MAIN).is_loaded
                and (self._fragment(DEAD).is_loaded)
            ):
                raise Violation(f"{operation.kind} is refused, and the store works: {error}") from None
            self._model.end_operation(operation)
            return False
        return True

    def _is_unavailable(self, operation: Operation, error: ServiceBusError | None) -> bool:
        """Whether the outcome of an operation is unknown: it may still happen until the store is lost or idle."""
        operation.is_answered = True
        if isinstance(error, StoreUnavailable):
            self._trace(f"{operation.kind}: unavailable")
            if self._model.is_undisturbed(operation):
                raise Violation(f"{operation.kind} fails, and nothing is wrong: {error}")
            return True
        if error is not None and not isinstance(error, MessageNotFound):
            raise Violation(f"{operation.kind}: {error!r}")
        return False

    def _choose_session_holder(self) -> Receiver | None:
        """Return a receiver that holds a session."""
        return self._choose([hold.receiver for hold in self._model.session_holds.values()])


def is_at(message: Message, area: str, kind: str, numbers: list[int]) -> bool:
    location = message.location
    return location is not None and (location.area, location.kind) == (area, kind) and location.number in numbers
