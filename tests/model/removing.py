"""Deleting what nobody has, and bringing dead letters back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.model.asking import SESSIONS, is_one_of
from tests.model.sending import Sending
from tests.model.things import ACTIVE, DEAD, DEFERRED, MAIN, SCHEDULED, Message
from tests.model.violation import Violation
from tests.parts import part_of
from twinbus.broker.ports.removal import Outcome, Wanted
from twinbus.model.errors import ServiceBusError

if TYPE_CHECKING:
    from tests.model.letter import Letter


class Removing(Sending):
    def remove(self) -> None:
        model, random, shelf = self._model, self._random, self._shelf()
        kind = random.choice((ACTIVE, ACTIVE, DEFERRED, SCHEDULED)) if shelf == MAIN else ACTIVE
        wanted = Wanted()
        if kind == ACTIVE:
            wanted = random.choice(
                (
                    Wanted(),
                    Wanted(most=random.randint(1, 4)),
                    Wanted(up_to=random.randint(1, model.highest[shelf] + 1)),
                    Wanted(before_ms=self._world.clock.wall_ms() - random.choice((0, 2_000))),
                    Wanted(session=random.choice(SESSIONS).encode(), most=random.randint(1, 4)),
                )
            )

        def covers(one: Message) -> bool:
            place = one.place
            return (
                place is not None
                and (place.shelf, place.kind) == (shelf, kind)
                and place.number <= wanted.up_to
                and one.enqueued_ms < wanted.before_ms
                and (wanted.session is None or (self._world.has_sessions(shelf) and one.session == wanted.session))
            )

        expected = [one for one in model.at(shelf, kind) if covers(one)]
        removable = [one for one in expected if one.is_idle][: wanted.most]
        deed = model.begin("remove", covers=covers)
        self._say(f"{kind} of {shelf}: most {wanted.most}, up to {wanted.up_to}, {wanted.session!r}")

        def done(outcome: Outcome | ServiceBusError) -> None:
            if isinstance(outcome, ServiceBusError):
                self._unavailable(deed, outcome)
                return
            self._say(f"removed {outcome.removed}, skipped {outcome.skipped}")
            if model.is_exact(deed):
                skipped = len(expected) - len(removable) if wanted.most > len(expected) else outcome.skipped
                if (outcome.removed, outcome.skipped) != (len(removable), skipped):
                    raise Violation(f"removed {outcome.removed}, skipped {outcome.skipped} of {expected}")
                if sorted(deed.taken) != sorted(one.identity for one in removable):
                    raise Violation(f"removed {deed.taken}, not {removable}")
            deed.is_answered = True
            model.end(deed)

        removal = self._fragment(shelf).removal
        calls = {
            ACTIVE: removal.remove_active,
            DEFERRED: removal.remove_deferred,
            SCHEDULED: removal.remove_scheduled,
        }
        self._ask(deed, lambda: calls[kind](wanted, done))

    def remove_numbers(self) -> None:
        model, shelf = self._model, self._shelf()
        there = {one.place.number: one for one in model.by_place.values() if one.place and one.place.shelf == shelf}
        numbers = self._some_numbers(there, model.highest[shelf])
        if not numbers:
            return
        expected = sorted(number for number in numbers if number in there and there[number].is_idle)
        deed = model.begin(
            "remove",
            covers=lambda one: one.place is not None and one.place.shelf == shelf and one.place.number in numbers,
        )
        self._say(f"{numbers} of {shelf}")

        def done(found: list[int] | ServiceBusError) -> None:
            if isinstance(found, ServiceBusError):
                self._unavailable(deed, found)
                return
            if model.is_exact(deed) and sorted(found) != expected:
                raise Violation(f"removed {found}, not {expected}")
            model.end(deed)

        self._ask(deed, lambda: self._fragment(shelf).removal.remove_numbers(numbers, done))

    def resubmit(self) -> None:
        world, model, random = self._world, self._model, self._random
        there = {one.place.number: one for one in model.at(DEAD, ACTIVE) if one.place}
        numbers = self._some_numbers(there, model.highest[DEAD])
        if not numbers:
            return
        is_all = all(number in there and there[number].is_idle for number in numbers)
        wanted = [there[number] for number in numbers if number in there]
        edited: Letter | None = None
        if len(numbers) == 1 and wanted and random.random() < 0.3:
            edited = self._letter(is_scheduled=False)._replace(identity=wanted[0].identity)
        deed = model.begin(
            "resubmit",
            covers=lambda one: is_one_of(one, DEAD, ACTIVE, numbers),
            properties={"edited": edited} if edited is not None else {},
        )
        self._say(f"{numbers} {'edited' if edited else ''}")

        def done(found: list[int] | ServiceBusError) -> None:
            error = found if isinstance(found, ServiceBusError) else None
            self._say(f"resubmitted: {found}")
            if self._unavailable(deed, error):
                return
            if model.is_exact(deed) and is_all != (error is None):
                raise Violation(f"resubmitting {numbers}: {error!r}, and there are {there}")
            if not deed.is_shared and len(deed.taken) != (len(numbers) if error is None else 0):
                raise Violation(f"resubmitting {numbers} is answered with {found!r}, and {deed.taken} were")
            model.end(deed)

        payload = edited.payload() if edited is not None else None
        self._ask(deed, lambda: part_of(world.queue).resubmit(numbers, payload, world.namespace.intake, done))
