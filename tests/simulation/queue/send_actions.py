"""Sending, scheduling and cancelling."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.queue.base_actions import SESSIONS, BaseActions, is_at
from tests.simulation.queue.messages import PING, SentMessage
from tests.simulation.queue.model_state import MAIN, SCHEDULED, Message, Operation, Violation
from twinbus.broker.ports.incoming_batch import IncomingBatch
from twinbus.model.errors import MessageNotFound, ServiceBusError

if TYPE_CHECKING:
    from twinbus.model.errors import ServiceBusError


IDS = ("x", "y", "z")


class SendActions(BaseActions):
    def send(self) -> None:
        self._send(is_scheduled=False)

    def schedule(self) -> None:
        self._send(is_scheduled=True)

    def _make_message(self, *, is_scheduled: bool) -> SentMessage:
        random, now_ms = self._random, self._simulation.clock.wall_ms()
        identity, self._next_identity = self._next_identity, self._next_identity + 1
        due_ms = now_ms + random.choice((-1, 0, 1, 500, 3_000, 3_000, 15_000)) if is_scheduled else None
        is_repeated = random.random() < 0.5
        return SentMessage(
            identity,
            random.choice(IDS) if is_repeated else f"id {identity}",
            random.choice(SESSIONS) if self._model.description.requires_session or random.random() < 0.1 else None,
            random.choice((None, None, 1, 700, 3_000, 9_000)),
            due_ms,
        )

    def _send(self, *, is_scheduled: bool) -> None:
        world, model, random = self._simulation, self._model, self._random
        letters = [
            self._make_message(is_scheduled=is_scheduled and random.random() < 0.8)
            for _ in range(random.choice((1, 1, 1, 2, 5)))
        ]
        parcel, numbers = IncomingBatch(), list[int]()
        for letter in letters:
            payload = letter.encode(random.choice((0, 30, 200)))
            world.namespace.intake.add_to(parcel, payload, 0, world.clock.wall_ms(), world.queue.validation_policy)
        for letter in letters:
            model.add_message(letter)
        deed = model.begin_operation("send", [letter.identity for letter in letters])
        for letter in letters:
            self._trace(repr(letter))

        def answered(error: ServiceBusError | None) -> None:
            if self._is_unavailable(deed, error):
                return
            self._trace(f"accepted: {numbers}")
            if len(numbers) != len(letters):
                raise Violation(f"{len(letters)} messages, and the numbers {numbers}")
            for identity, number in zip(deed.identities, numbers, strict=True):
                self._check_sent(deed, model.messages[identity], number)
            model.end_operation(deed)

        self._call(deed, lambda: world.queue.send(parcel, answered, numbers))

    def _check_sent(self, operation: Operation, message: Message, number: int) -> None:
        is_stored = message.identity in operation.affected
        if is_stored != bool(number):
            raise Violation(f"{message} is accepted as number {number}")
        if is_stored:
            places = [place for place in (message.location, message.visible_location) if place is not None]
            if self._model.is_undisturbed(operation) and places and number not in [place.number for place in places]:
                raise Violation(f"{message} is said to have the number {number}")
        elif not self._model.description.requires_duplicate_detection or not self._model.is_duplicate(
            message, operation
        ):
            raise Violation(f"{message} is accepted, and not stored")

    def ping(self) -> None:
        parcel, deed = IncomingBatch(), self._model.begin_operation("ping")
        now_ms, terms = self._simulation.clock.wall_ms(), self._simulation.queue.validation_policy
        self._simulation.namespace.intake.add_to(parcel, PING, 0, now_ms, terms)

        def answered(error: ServiceBusError | None) -> None:
            if not self._is_unavailable(deed, error):
                self._model.end_operation(deed)

        self._call(deed, lambda: self._simulation.queue.send(parcel, answered))

    def cancel(self) -> None:
        model = self._model
        there = {one.location.number: one for one in model.messages_at(MAIN, SCHEDULED) if one.location}
        numbers = self._sample_numbers(there, model.highest[MAIN])
        if not numbers:
            return
        is_all = all(number in there for number in numbers)
        deed = model.begin_operation("cancel", covers=lambda one: is_at(one, MAIN, SCHEDULED, numbers))
        self._trace(f"{numbers}")

        def answered(error: ServiceBusError | None) -> None:
            self._trace(f"cancelled: {numbers}: {error}")
            if self._is_unavailable(deed, error):
                return
            if model.is_undisturbed(deed) and is_all != (error is None):
                raise Violation(f"cancelling {numbers}: {error!r}, and there are {sorted(there)}")
            if not deed.is_shared and len(deed.affected) != (len(numbers) if error is None else 0):
                raise Violation(f"cancelling {numbers} is answered with {error!r}, and {deed.affected} are deleted")
            model.end_operation(deed)

        try:
            self._call(deed, lambda: self._fragment(MAIN).schedule.cancel(numbers, answered))
        except MessageNotFound as error:
            answered(error)
