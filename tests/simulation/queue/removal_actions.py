"""Actions that delete messages without receiving them, and that resubmit dead letters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.queue.base_actions import SESSIONS, is_at
from tests.simulation.queue.model_state import ACTIVE, DEAD, DEFERRED, MAIN, SCHEDULED, Message, Violation
from tests.simulation.queue.send_actions import SendActions
from tests.support.parts import local_part
from twinbus.broker.ports.fragment import RemovalCriteria, RemovalResult
from twinbus.model.errors import ServiceBusError

if TYPE_CHECKING:
    from tests.simulation.queue.messages import SentMessage


class RemovalActions(SendActions):
    def remove(self) -> None:
        model, random, area = self._model, self._random, self._choose_area()
        kind = random.choice((ACTIVE, ACTIVE, DEFERRED, SCHEDULED)) if area == MAIN else ACTIVE
        criteria = RemovalCriteria()
        if kind == ACTIVE:
            criteria = random.choice(
                (
                    RemovalCriteria(),
                    RemovalCriteria(max_count=random.randint(1, 4)),
                    RemovalCriteria(max_sequence=random.randint(1, model.highest[area] + 1)),
                    RemovalCriteria(enqueued_before_ms=self._simulation.clock.wall_ms() - random.choice((0, 2_000))),
                    RemovalCriteria(session_id=random.choice(SESSIONS).encode(), max_count=random.randint(1, 4)),
                )
            )

        def covers(message: Message) -> bool:
            location = message.location
            return (
                location is not None
                and (location.area, location.kind) == (area, kind)
                and location.number <= criteria.max_sequence
                and message.enqueued_ms < criteria.enqueued_before_ms
                and (
                    criteria.session_id is None
                    or (self._simulation.has_sessions(area) and message.session == criteria.session_id)
                )
            )

        expected = [message for message in model.messages_at(area, kind) if covers(message)]
        removable = [message for message in expected if message.is_idle][: criteria.max_count]
        operation = model.begin_operation("remove", covers=covers)
        self._trace(
            f"{kind} of {area}: most {criteria.max_count}, up to {criteria.max_sequence}, {criteria.session_id!r}"
        )

        def done(outcome: RemovalResult | ServiceBusError) -> None:
            if isinstance(outcome, ServiceBusError):
                self._is_unavailable(operation, outcome)
                return
            self._trace(f"removed {outcome.removed_count}, skipped {outcome.skipped_count}")
            if model.is_undisturbed(operation):
                skipped = (
                    len(expected) - len(removable) if criteria.max_count > len(expected) else outcome.skipped_count
                )
                if (outcome.removed_count, outcome.skipped_count) != (len(removable), skipped):
                    raise Violation(f"removed {outcome.removed_count}, skipped {outcome.skipped_count} of {expected}")
                if sorted(operation.affected) != sorted(message.identity for message in removable):
                    raise Violation(f"removed {operation.affected}, not {removable}")
            operation.is_answered = True
            model.end_operation(operation)

        removal = self._fragment(area).removal
        calls = {
            ACTIVE: removal.remove_active,
            DEFERRED: removal.remove_deferred,
            SCHEDULED: removal.remove_scheduled,
        }
        self._call(operation, lambda: calls[kind](criteria, done))

    def remove_numbers(self) -> None:
        model, area = self._model, self._choose_area()
        existing = {
            message.location.number: message
            for message in model.by_location.values()
            if message.location and message.location.area == area
        }
        numbers = self._sample_numbers(existing, model.highest[area])
        if not numbers:
            return
        expected = sorted(number for number in numbers if number in existing and existing[number].is_idle)
        operation = model.begin_operation(
            "remove",
            covers=lambda message: (
                message.location is not None and message.location.area == area and message.location.number in numbers
            ),
        )
        self._trace(f"{numbers} of {area}")

        def done(removed: list[int] | ServiceBusError) -> None:
            if isinstance(removed, ServiceBusError):
                self._is_unavailable(operation, removed)
                return
            if model.is_undisturbed(operation) and sorted(removed) != expected:
                raise Violation(f"removed {removed}, not {expected}")
            model.end_operation(operation)

        self._call(operation, lambda: self._fragment(area).removal.remove_by_sequence(numbers, done))

    def resubmit(self) -> None:
        simulation, model, random = self._simulation, self._model, self._random
        existing = {message.location.number: message for message in model.messages_at(DEAD, ACTIVE) if message.location}
        numbers = self._sample_numbers(existing, model.highest[DEAD])
        if not numbers:
            return
        are_all_available = all(number in existing and existing[number].is_idle for number in numbers)
        messages = [existing[number] for number in numbers if number in existing]
        edited: SentMessage | None = None
        if len(numbers) == 1 and messages and random.random() < 0.3:
            edited = self._make_message(is_scheduled=False)._replace(identity=messages[0].identity)
        operation = model.begin_operation(
            "resubmit",
            covers=lambda message: is_at(message, DEAD, ACTIVE, numbers),
            properties={"edited": edited} if edited is not None else {},
        )
        self._trace(f"{numbers} {'edited' if edited else ''}")

        def done(result: list[int] | ServiceBusError) -> None:
            error = result if isinstance(result, ServiceBusError) else None
            self._trace(f"resubmitted: {result}")
            if self._is_unavailable(operation, error):
                return
            if model.is_undisturbed(operation) and are_all_available != (error is None):
                raise Violation(f"resubmitting {numbers}: {error!r}, and there are {existing}")
            if not operation.is_shared and len(operation.affected) != (len(numbers) if error is None else 0):
                raise Violation(f"resubmitting {numbers} is answered with {result!r}, and {operation.affected} were")
            model.end_operation(operation)

        payload = edited.encode() if edited is not None else None
        self._call(
            operation,
            lambda: local_part(simulation.queue).resubmit(numbers, payload, simulation.namespace.intake, done),
        )
