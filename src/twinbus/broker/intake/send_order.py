"""Order of sends to one partitioned entity while a batch waits for replies from other processes.

A batch with several keys is stored only after every process that owns one of the batch's fragments has confirmed that
the fragment can store its portion. Later sends to the same fragments wait behind this batch, so that messages with the
same key keep their order. Without such a batch, no send waits.

Owns the queue of pending sends for each fragment. Must not know how a send is carried out.
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
    """A pending send in the queues of one or more fragments."""

    __slots__ = ("fragment_numbers", "is_ready", "run", "size")

    def __init__(self, fragment_numbers: Sequence[int], size: int, run: Callable[[], None], *, is_ready: bool) -> None:
        """Create a send of `size` bytes to these fragments.

        `run` is called when the send is ready and first in all its queues. `run` must report a ServiceBusError to the
        sender instead of raising the error.
        """
        self.fragment_numbers = fragment_numbers
        self.size = size
        self.run = run
        self.is_ready = is_ready


class SendOrder:
    """Pending sends to one entity, by fragment number."""

    def __init__(self, path: str) -> None:
        """Create an order without pending sends; `path` names the entity in errors."""
        self.max_bytes = 0
        self.queues: dict[int, deque[QueuedSend]] = {}
        """Queues by fragment number; a fragment without pending sends has no queue."""
        self._path = path
        self._queued_bytes = 0
        self._running: QueuedSend | None = None

    def must_wait(self, fragment_numbers: Iterable[int]) -> bool:
        """Return whether a send to these fragments must wait for pending sends to any of them."""
        return bool(self.queues) and any(self.must_wait_for(number) for number in fragment_numbers)

    def must_wait_for(self, fragment_number: int) -> bool:
        """Return whether a send to this fragment must wait.

        While a queued send runs, its own portions do not wait behind later sends.
        """
        running = self._running
        return fragment_number in self.queues and (running is None or fragment_number not in running.fragment_numbers)

    def enqueue(self, send: QueuedSend) -> None:
        """Queue a send; raise ServerBusy if too many bytes are pending."""
        if self._queued_bytes > self.max_bytes:
            raise ServerBusy(
                f"{self._queued_bytes:,} bytes of sends to '{self._path}' are pending until other broker processes "
                "reply: send again in a moment"
            )
        self._queued_bytes += send.size
        for number in send.fragment_numbers:
            self.queues.setdefault(number, deque()).append(send)

    def enqueue_ready(self, fragment_number: int, size: int, run: Callable[[], None]) -> None:
        """Queue a send to one fragment that needs no check; raise ServerBusy if too many bytes are pending."""
        self.enqueue(QueuedSend([fragment_number], size, run, is_ready=True))

    def set_ready(self, send: QueuedSend) -> None:
        """Mark a send as ready, then run all sends that are ready and first in their queues."""
        send.is_ready = True
        faults: list[Exception] = []
        numbers = list(send.fragment_numbers)
        while numbers:
            first = self._pop_ready(numbers.pop())
            if first is None:
                continue
            numbers += first.fragment_numbers
            previous, self._running = self._running, first
            try:
                first.run()
            except Exception as fault:  # noqa: BLE001  # raised below: a failed send must not block the others
                faults.append(fault)
            self._running = previous
        if faults:
            raise ExceptionGroup("pending sends failed after other processes replied", faults)

    def _pop_ready(self, fragment_number: int) -> QueuedSend | None:
        """Remove and return the first send to a fragment if it is ready and first in all its queues, else None."""
        queues = self.queues
        if fragment_number not in queues:
            return None
        send = queues[fragment_number][0]
        if not send.is_ready or any(queues[other][0] is not send for other in send.fragment_numbers):
            return None
        for other in send.fragment_numbers:
            queues[other].popleft()
            if not queues[other]:
                del queues[other]
        self._queued_bytes -= send.size
        return send


class BatchCapacityCheck:
    """Check whether all fragments of a batch can store their portions."""

    def __init__(
        self,
        target: Queue | Topic,
        sizes: dict[int, int],
        on_accepted: Callable[[], None],
        on_refused: Callable[[int, ServiceBusError], None],
    ) -> None:
        """Create a check; `sizes` are the bytes to store in each fragment, by fragment number.

        `on_accepted` is called, during `start` or later, if all fragments can store their portions. Otherwise,
        `on_refused` is called, after `start`, with the number and the error of a fragment that cannot store its
        portion.
        """
        self._target = target
        self._sizes = sizes
        self._on_accepted = on_accepted
        self._on_refused = on_refused
        self._pending_replies = 0
        self._refusal: tuple[int, ServiceBusError] | None = None

    def start(self) -> tuple[int, ServiceBusError] | None:
        """Start the check; call `on_accepted` at once if there is no reply or earlier send to wait for. Call only once.

        If this process already knows a fragment that cannot store its portion, return the fragment's number and the
        error; in that case, no callback is called.
        """
        refusal = self._local_refusal()
        if refusal is not None:
            return refusal
        send_order, sizes, questions = self._target.send_order, self._sizes, self._sizes_by_owner()
        if not questions and not send_order.must_wait(sizes):
            self._on_accepted()
            return None
        send = QueuedSend(list(sizes), sum(sizes.values()), self._finish, is_ready=not questions)
        try:
            send_order.enqueue(send)
        except ServiceBusError as error:
            return next(iter(sizes)), error
        self._pending_replies = len(questions)
        for owner, owner_sizes in questions.items():
            on_checked = partial(self._on_checked, send)
            try:
                owner.check_capacity(self._target.entity_id, owner_sizes, on_checked)
            except ServiceBusError as error:
                on_checked(dict.fromkeys(owner_sizes, error))
        return None

    def _sizes_by_owner(self) -> dict[OwnerPort, dict[int, int]]:
        """Return the sizes that other processes must check, by owner.

        A batch with a single fragment needs no check, because the owner stores the whole batch or nothing.
        """
        questions: dict[OwnerPort, dict[int, int]] = {}
        if len(self._sizes) == 1:
            return questions
        for number, size in self._sizes.items():
            owner = self._target.parts[number].owner
            if owner.decides_capacity:
                questions.setdefault(owner, {})[number] = size
        return questions

    def _on_checked(self, send: QueuedSend, refusals: dict[int, ServiceBusError]) -> None:
        """Record one owner's reply: the errors from its fragments that cannot store their portions."""
        self._pending_replies -= 1
        for number, error in refusals.items():
            self._refusal = self._refusal or (number, error)
        if not self._pending_replies:
            self._target.send_order.set_ready(send)

    def _finish(self) -> None:
        """Finish after all replies; check the local state again, because it may have changed meanwhile."""
        refusal = self._refusal or self._local_refusal()
        if refusal is not None:
            self._on_refused(*refusal)
        else:
            self._on_accepted()

    def _local_refusal(self) -> tuple[int, ServiceBusError] | None:
        """Return the number and error of the first fragment that, as this process knows, cannot store its portion.

        Return None if there is no such fragment.
        """
        parts = self._target.parts
        for number, size in self._sizes.items():
            try:
                parts[number].check_can_store(size)
            except ServiceBusError as error:
                return number, error
        return None
