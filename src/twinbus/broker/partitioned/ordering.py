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


class QueuedSend:
    """A place in the queues of some fragments."""

    __slots__ = ("fragment_numbers", "is_ready", "run", "size")

    def __init__(self, fragment_numbers: Sequence[int], size: int, run: Callable[[], None], *, is_ready: bool) -> None:
        """`run` is called when the turn is ready and the first in all of its queues. `size` is what it holds, in bytes.

        `run` raises no ServiceBusError: it answers its sender.
        """
        self.fragment_numbers = fragment_numbers
        self.size = size
        self.run = run
        self.is_ready = is_ready


class SendOrder:
    """The waiting sends of one entity, by the numbers of its fragments."""

    def __init__(self, path: str) -> None:
        """Nothing waits."""
        self.max_bytes = 0
        self.queues: dict[int, deque[QueuedSend]] = {}
        """Fragments without waiting sends are not in it."""
        self._path = path
        self._queued_bytes = 0
        self._running: QueuedSend | None = None

    def must_wait(self, fragment_numbers: Iterable[int]) -> bool:
        """Whether a send to any of these fragments has to wait."""
        return bool(self.queues) and any(self.must_wait_for(number) for number in fragment_numbers)

    def must_wait_for(self, fragment_number: int) -> bool:
        """Whether a send to this fragment has to wait. A turn that runs does not wait behind later turns."""
        running = self._running
        return fragment_number in self.queues and (running is None or fragment_number not in running.fragment_numbers)

    def enqueue(self, send: QueuedSend) -> None:
        """Queue a send. ServerBusy if too many bytes wait."""
        if self._queued_bytes > self.max_bytes:
            raise ServerBusy(
                f"{self._queued_bytes:,} bytes wait to be sent to '{self._path}' until other broker processes "
                "answer: send "
                "again in a moment"
            )
        self._queued_bytes += send.size
        for number in send.fragment_numbers:
            self.queues.setdefault(number, deque()).append(send)

    def enqueue_ready(self, fragment_number: int, size: int, run: Callable[[], None]) -> None:
        """Queue a send to one fragment that waits for no check itself. ServerBusy if too many bytes wait."""
        self.enqueue(QueuedSend([fragment_number], size, run, is_ready=True))

    def set_ready(self, send: QueuedSend) -> None:
        """Let a turn run as soon as it is the first, and those behind it after it."""
        send.is_ready = True
        faults: list[Exception] = []
        numbers = list(send.fragment_numbers)
        while numbers:
            first = self._pop_ready(numbers.pop())
            if first is None:
                continue
            numbers += first.fragment_numbers
            before, self._running = self._running, first
            try:
                first.run()
            except Exception as fault:  # noqa: BLE001  # raised below: one send's fault must not leave the others waiting
                faults.append(fault)
            self._running = before
        if faults:
            raise ExceptionGroup("sends that waited for other processes failed", faults)

    def _pop_ready(self, fragment_number: int) -> QueuedSend | None:
        """The first turn of a fragment, if it is ready and the first of all of its fragments."""
        queues = self.queues
        if fragment_number not in queues:
            return None
        turn = queues[fragment_number][0]
        if not turn.is_ready or any(queues[other][0] is not turn for other in turn.fragment_numbers):
            return None
        for other in turn.fragment_numbers:
            queues[other].popleft()
            if not queues[other]:
                del queues[other]
        self._queued_bytes -= turn.size
        return turn
