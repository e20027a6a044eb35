"""Actions that send, schedule and cancel messages."""

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
        simulation, model, random = self._simulation, self._model, self._random
        messages = [
            self._make_message(is_scheduled=is_scheduled and random.random() < 0.8)
            for _ in range(random.choice((1, 1, 1, 2, 5)))
        ]
        batch, numbers = IncomingBatch(), list[int]()
        for message in messages:
            payload = message.encode(random.choice((0, 30, 200)))
            simulation.namespace.intake.add_to(
                batch, payload, 0, simulation.clock.wall_ms(), simulation.queue.validation_policy
            )
        for message in messages:
            model.add_message(message)
        operation = model.begin_operation("send", [message.identity for message in messages])
        for message in messages:
            self._trace(repr(message))

        def answered(error: ServiceBusError | None) -> None:
            if self._is_unavailable(operation, error):
                return
            self._trace(f"accepted: {numbers}")
            if len(numbers) != len(messages):
                raise Violation(f"{len(messages)} messages, and the numbers {numbers}")
            for identity, number in zip(operation.identities, numbers, strict=True):
                self._check_sent(operation, model.messages[identity], number)
            model.end_operation(operation)

        self._call(operation, lambda: simulation.queue.send(batch, answered, numbers))

    def _check_sent(self, operation: Operation, message: Message, number: int) -> None:
        is_stored = message.identity in operation.affected
        if is_stored != bool(number):
            raise Violation(f"{message} is accepted as number {number}")
        if is_stored:
            locations = [location for location in (message.location, message.visible_location) if location is not None]
            if (
                self._model.is_undisturbed(operation)
                and locations
                and number not in [location.number for location in locations]
            ):
                raise Violation(f"{message} is said to have the number {number}")
        elif not self._model.description.requires_duplicate_detection or not self._model.is_duplicate(
            message, operation
        ):
            raise Violation(f"{message} is accepted, and not stored")

    def ping(self) -> None:
        batch, operation = IncomingBatch(), self._model.begin_operation("ping")
        now_ms, policy = self._simulation.clock.wall_ms(), self._simulation.queue.validation_policy
        self._simulation.namespace.intake.add_to(batch, PING, 0, now_ms, policy)

        def answered(error: ServiceBusError | None) -> None:
            if not self._is_unavailable(operation, error):
                self._model.end_operation(operation)

        self._call(operation, lambda: self._simulation.queue.send(batch, answered))

    def cancel(self) -> None:
        model = self._model
        existing = {
            message.location.number: message for message in model.messages_at(MAIN, SCHEDULED) if message.location
        }
        numbers = self._sample_numbers(existing, model.highest[MAIN])
        if not numbers:
            return
        is_all = all(number in existing for number in numbers)
        operation = model.begin_operation("cancel", covers=lambda message: is_at(message, MAIN, SCHEDULED, numbers))
        self._trace(f"{numbers}")

        def answered(error: ServiceBusError | None) -> None:
            self._trace(f"cancelled: {numbers}: {error}")
            if self._is_unavailable(operation, error):
                return
            if model.is_undisturbed(operation) and is_all != (error is None):
                raise Violation(f"cancelling {numbers}: {error!r}, and there are {sorted(existing)}")
            if not operation.is_shared and len(operation.affected) != (len(numbers) if error is None else 0):
                raise Violation(
                    f"cancelling {numbers} is answered with {error!r}, and {operation.affected} are deleted"
                )
            model.end_operation(operation)

        try:
            self._call(operation, lambda: self._fragment(MAIN).schedule.cancel(numbers, answered))
        except MessageNotFound as error:
            answered(error)
