"""Deleting what nobody has, and bringing dead letters back."""

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
        model, random, shelf = self._model, self._random, self._choose_area()
        kind = random.choice((ACTIVE, ACTIVE, DEFERRED, SCHEDULED)) if shelf == MAIN else ACTIVE
        wanted = RemovalCriteria()
        if kind == ACTIVE:
            wanted = random.choice(
                (
                    RemovalCriteria(),
                    RemovalCriteria(max_count=random.randint(1, 4)),
                    RemovalCriteria(max_sequence=random.randint(1, model.highest[shelf] + 1)),
                    RemovalCriteria(enqueued_before_ms=self._simulation.clock.wall_ms() - random.choice((0, 2_000))),
                    RemovalCriteria(session_id=random.choice(SESSIONS).encode(), max_count=random.randint(1, 4)),
                )
            )

        def covers(one: Message) -> bool:
            place = one.location
            return (
                place is not None
                and (place.area, place.kind) == (shelf, kind)
                and place.number <= wanted.max_sequence
                and one.enqueued_ms < wanted.enqueued_before_ms
                and (
                    wanted.session_id is None
                    or (self._simulation.has_sessions(shelf) and one.session == wanted.session_id)
                )
            )

        expected = [one for one in model.messages_at(shelf, kind) if covers(one)]
        removable = [one for one in expected if one.is_idle][: wanted.max_count]
        deed = model.begin_operation("remove", covers=covers)
        self._trace(f"{kind} of {shelf}: most {wanted.max_count}, up to {wanted.max_sequence}, {wanted.session_id!r}")

        def done(outcome: RemovalResult | ServiceBusError) -> None:
            if isinstance(outcome, ServiceBusError):
                self._is_unavailable(deed, outcome)
                return
            self._trace(f"removed {outcome.removed_count}, skipped {outcome.skipped_count}")
            if model.is_undisturbed(deed):
                skipped = len(expected) - len(removable) if wanted.max_count > len(expected) else outcome.skipped_count
                if (outcome.removed_count, outcome.skipped_count) != (len(removable), skipped):
                    raise Violation(f"removed {outcome.removed_count}, skipped {outcome.skipped_count} of {expected}")
                if sorted(deed.affected) != sorted(one.identity for one in removable):
                    raise Violation(f"removed {deed.affected}, not {removable}")
            deed.is_answered = True
            model.end_operation(deed)

        removal = self._fragment(shelf).removal
        calls = {
            ACTIVE: removal.remove_active,
            DEFERRED: removal.remove_deferred,
            SCHEDULED: removal.remove_scheduled,
        }
        self._call(deed, lambda: calls[kind](wanted, done))

    def remove_numbers(self) -> None:
        model, shelf = self._model, self._choose_area()
        there = {
            one.location.number: one
            for one in model.by_location.values()
            if one.location and one.location.area == shelf
        }
        numbers = self._sample_numbers(there, model.highest[shelf])
        if not numbers:
            return
        expected = sorted(number for number in numbers if number in there and there[number].is_idle)
        deed = model.begin_operation(
            "remove",
            covers=lambda one: (
                one.location is not None and one.location.area == shelf and one.location.number in numbers
            ),
        )
        self._trace(f"{numbers} of {shelf}")

        def done(found: list[int] | ServiceBusError) -> None:
            if isinstance(found, ServiceBusError):
                self._is_unavailable(deed, found)
                return
            if model.is_undisturbed(deed) and sorted(found) != expected:
                raise Violation(f"removed {found}, not {expected}")
            model.end_operation(deed)

        self._call(deed, lambda: self._fragment(shelf).removal.remove_by_sequence(numbers, done))

    def resubmit(self) -> None:
        world, model, random = self._simulation, self._model, self._random
        there = {one.location.number: one for one in model.messages_at(DEAD, ACTIVE) if one.location}
        numbers = self._sample_numbers(there, model.highest[DEAD])
        if not numbers:
            return
        is_all = all(number in there and there[number].is_idle for number in numbers)
        wanted = [there[number] for number in numbers if number in there]
        edited: SentMessage | None = None
        if len(numbers) == 1 and wanted and random.random() < 0.3:
            edited = self._make_message(is_scheduled=False)._replace(identity=wanted[0].identity)
        deed = model.begin_operation(
            "resubmit",
            covers=lambda one: is_at(one, DEAD, ACTIVE, numbers),
            properties={"edited": edited} if edited is not None else {},
        )
        self._trace(f"{numbers} {'edited' if edited else ''}")

        def done(found: list[int] | ServiceBusError) -> None:
            error = found if isinstance(found, ServiceBusError) else None
            self._trace(f"resubmitted: {found}")
            if self._is_unavailable(deed, error):
                return
            if model.is_undisturbed(deed) and is_all != (error is None):
                raise Violation(f"resubmitting {numbers}: {error!r}, and there are {there}")
            if not deed.is_shared and len(deed.affected) != (len(numbers) if error is None else 0):
                raise Violation(f"resubmitting {numbers} is answered with {found!r}, and {deed.affected} were")
            model.end_operation(deed)

        payload = edited.encode() if edited is not None else None
        self._call(deed, lambda: local_part(world.queue).resubmit(numbers, payload, world.namespace.intake, done))
