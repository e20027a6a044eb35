"""The order of sends to one partitioned entity while a batch waits for the answers of other processes.

A batch of several keys is stored only when every process that owns one of its fragments has said that it can store its
portion. Later sends to the same fragments wait behind that batch, so that messages of one key stay in the order of
sending. Without such a batch nothing waits and nothing is kept here.

Owns: the queue of waiting sends of each fragment. What a send does when its turn comes is its own affair.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from twinbus.model.errors import ServerBusy, ServiceBusError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from twinbus.broker.entities.queue import Queue
    from twinbus.broker.entities.topic import Topic
    from twinbus.broker.ports.fragment import OwnerPort


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


class BatchCapacityCheck:
    """A batch that is stored in several fragments, from its check to its commit."""

    def __init__(
        self,
        target: Queue | Topic,
        sizes: dict[int, int],
        on_accepted: Callable[[], None],
        on_refused: Callable[[int, ServiceBusError], None],
    ) -> None:
        """`sizes` are the bytes for each fragment, by its number.

        One of two is called: `store` if all fragments can store their portions, now or later; `refuse` later, with the
        number of a fragment that cannot, and why.
        """
        self._target = target
        self._sizes = sizes
        self._on_accepted = on_accepted
        self._on_refused = on_refused
        self._pending_replies = 0
        self._refusal: tuple[int, ServiceBusError] | None = None

    def start(self) -> tuple[int, ServiceBusError] | None:
        """Check, and store at once if no other process has to be asked. Call it once.

        Returns a fragment that cannot store its portion, and why, if that is known at once: then nothing is called.
        """
        refusal = self._local_refusal()
        if refusal is not None:
            return refusal
        order, sizes, questions = self._target.send_order, self._sizes, self._sizes_by_owner()
        if not questions and not order.must_wait(sizes):
            self._on_accepted()
            return None
        turn = QueuedSend(list(sizes), sum(sizes.values()), self._finish, is_ready=not questions)
        try:
            order.enqueue(turn)
        except ServiceBusError as error:
            return next(iter(sizes)), error
        self._pending_replies = len(questions)
        for owner, asked in questions.items():
            told = partial(self._on_checked, turn)
            try:
                owner.check_capacity(self._target.entity_id, asked, told)
            except ServiceBusError as error:
                told(dict.fromkeys(asked, error))
        return None

    def _sizes_by_owner(self) -> dict[OwnerPort, dict[int, int]]:
        """The portions of other processes. A single one needs no question: its owner stores all of it, or nothing."""
        questions: dict[OwnerPort, dict[int, int]] = {}
        if len(self._sizes) == 1:
            return questions
        for number, size in self._sizes.items():
            owner = self._target.parts[number].owner
            if owner.decides_capacity:
                questions.setdefault(owner, {})[number] = size
        return questions

    def _on_checked(self, send: QueuedSend, refusals: dict[int, ServiceBusError]) -> None:
        """A process has said which of its fragments cannot store their portions."""
        self._pending_replies -= 1
        for number, error in refusals.items():
            self._refusal = self._refusal or (number, error)
        if not self._pending_replies:
            self._target.send_order.set_ready(send)

    def _finish(self) -> None:
        """All have answered. What this process knows of its own fragments may have changed meanwhile."""
        refusal = self._refusal or self._local_refusal()
        if refusal is not None:
            self._on_refused(*refusal)
        else:
            self._on_accepted()

    def _local_refusal(self) -> tuple[int, ServiceBusError] | None:
        """The first fragment that cannot store its portion, as far as this process knows."""
        parts = self._target.parts
        for number, size in self._sizes.items():
            try:
                parts[number].check_can_store(size)
            except ServiceBusError as error:
                return number, error
        return None
