"""The check of a batch of several keys before any of it is stored.

Every fragment of the batch is asked whether it is available and has room: those of this process at once, those of other
processes by one question to each process. Nothing is reserved: between an answer and the commit a fragment can be
filled by another sender, or its process can end. Then the sender hears which messages are stored (`sending`).

Owns: the questions, and that the batch keeps its place before later sends while it waits for the answers (`ordering`).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from twinbus.broker.partitioned.ordering import QueuedSend
from twinbus.model.errors import ServiceBusError

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.broker.ports.fragment import OwnerPort
    from twinbus.broker.queue import Queue
    from twinbus.broker.topic import Topic


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
