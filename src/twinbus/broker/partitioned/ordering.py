"""The order of sends to one partitioned entity while a batch waits for the answers of other processes.

A batch of several keys is stored only when every process that owns one of its fragments has said that it can store its
portion. Later sends to the same fragments wait behind that batch, so that messages of one key stay in the order of
sending. Without such a batch nothing waits and nothing is kept here.

Owns: the queue of waiting sends of each fragment. What a send does when its turn comes is its own affair.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from twinbus.model.errors import ServerBusy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


class Turn:
    """A place in the queues of some fragments."""

    __slots__ = ("is_ready", "numbers", "run", "size")

    def __init__(self, numbers: Sequence[int], size: int, run: Callable[[], None], *, is_ready: bool) -> None:
        """`run` is called when the turn is ready and the first in all of its queues. `size` is what it holds, in bytes.

        `run` raises no ServiceBusError: it answers its sender.
        """
        self.numbers = numbers
        self.size = size
        self.run = run
        self.is_ready = is_ready


class SendOrder:
    """The waiting sends of one entity, by the numbers of its fragments."""

    def __init__(self, path: str) -> None:
        """Nothing waits."""
        self.max_bytes = 0
        self.queues: dict[int, deque[Turn]] = {}
        """Fragments without waiting sends are not in it."""
        self._path = path
        self._bytes = 0
        self._running: Turn | None = None

    def holds(self, numbers: Iterable[int]) -> bool:
        """Whether a send to any of these fragments has to wait."""
        return bool(self.queues) and any(self.holds_one(number) for number in numbers)

    def holds_one(self, number: int) -> bool:
        """Whether a send to this fragment has to wait. A turn that runs does not wait behind later turns."""
        running = self._running
        return number in self.queues and (running is None or number not in running.numbers)

    def enter(self, turn: Turn) -> None:
        """Queue a send. ServerBusy if too many bytes wait."""
        if self._bytes > self.max_bytes:
            raise ServerBusy(
                f"{self._bytes:,} bytes wait to be sent to '{self._path}' until other broker processes answer: send "
                "again in a moment"
            )
        self._bytes += turn.size
        for number in turn.numbers:
            self.queues.setdefault(number, deque()).append(turn)

    def enter_one(self, number: int, size: int, run: Callable[[], None]) -> None:
        """Queue a send to one fragment that waits for no check itself. ServerBusy if too many bytes wait."""
        self.enter(Turn([number], size, run, is_ready=True))

    def set_ready(self, turn: Turn) -> None:
        """Let a turn run as soon as it is the first, and those behind it after it."""
        turn.is_ready = True
        faults: list[Exception] = []
        numbers = list(turn.numbers)
        while numbers:
            first = self._pop_ready(numbers.pop())
            if first is None:
                continue
            numbers += first.numbers
            before, self._running = self._running, first
            try:
                first.run()
            except Exception as fault:  # noqa: BLE001  # raised below: one send's fault must not leave the others waiting
                faults.append(fault)
            self._running = before
        if faults:
            raise ExceptionGroup("sends that waited for other processes failed", faults)

    def _pop_ready(self, number: int) -> Turn | None:
        """The first turn of a fragment, if it is ready and the first of all of its fragments."""
        queues = self.queues
        if number not in queues:
            return None
        turn = queues[number][0]
        if not turn.is_ready or any(queues[other][0] is not turn for other in turn.numbers):
            return None
        for other in turn.numbers:
            queues[other].popleft()
            if not queues[other]:
                del queues[other]
        self._bytes -= turn.size
        return turn
