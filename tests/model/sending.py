"""Sending, scheduling and cancelling."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.model.asking import SESSIONS, Asking, is_one_of
from tests.model.letter import PING, Letter
from tests.model.things import MAIN, SCHEDULED, Deed, Message
from tests.model.violation import Violation
from twinbus.broker.ports.incoming import Parcel
from twinbus.model.errors import MessageNotFound, ServiceBusError

if TYPE_CHECKING:
    from twinbus.model.errors import ServiceBusError


IDS = ("x", "y", "z")


class Sending(Asking):
    def send(self) -> None:
        self._send(is_scheduled=False)

    def schedule(self) -> None:
        self._send(is_scheduled=True)

    def _letter(self, *, is_scheduled: bool) -> Letter:
        random, now_ms = self._random, self._world.clock.wall_ms()
        identity, self._next_identity = self._next_identity, self._next_identity + 1
        due_ms = now_ms + random.choice((-1, 0, 1, 500, 3_000, 3_000, 15_000)) if is_scheduled else None
        is_repeated = random.random() < 0.5
        return Letter(
            identity,
            random.choice(IDS) if is_repeated else f"id {identity}",
            random.choice(SESSIONS) if self._model.description.requires_session or random.random() < 0.1 else None,
            random.choice((None, None, 1, 700, 3_000, 9_000)),
            due_ms,
        )

    def _send(self, *, is_scheduled: bool) -> None:
        world, model, random = self._world, self._model, self._random
        letters = [
            self._letter(is_scheduled=is_scheduled and random.random() < 0.8)
            for _ in range(random.choice((1, 1, 1, 2, 5)))
        ]
        parcel, numbers = Parcel(), list[int]()
        for letter in letters:
            payload = letter.payload(random.choice((0, 30, 200)))
            world.namespace.intake.add_to(parcel, payload, 0, world.clock.wall_ms(), world.queue.terms)
        for letter in letters:
            model.add(letter)
        deed = model.begin("send", [letter.identity for letter in letters])
        for letter in letters:
            self._say(repr(letter))

        def answered(error: ServiceBusError | None) -> None:
            if self._unavailable(deed, error):
                return
            self._say(f"accepted: {numbers}")
            if len(numbers) != len(letters):
                raise Violation(f"{len(letters)} messages, and the numbers {numbers}")
            for identity, number in zip(deed.identities, numbers, strict=True):
                self._check_sent(deed, model.messages[identity], number)
            model.end(deed)

        self._ask(deed, lambda: world.queue.send(parcel, answered, numbers))

    def _check_sent(self, deed: Deed, message: Message, number: int) -> None:
        is_stored = message.identity in deed.taken
        if is_stored != bool(number):
            raise Violation(f"{message} is accepted as number {number}")
        if is_stored:
            places = [place for place in (message.place, message.shown) if place is not None]
            if self._model.is_exact(deed) and places and number not in [place.number for place in places]:
                raise Violation(f"{message} is said to have the number {number}")
        elif not self._model.description.requires_duplicate_detection or not self._model.is_duplicate(message, deed):
            raise Violation(f"{message} is accepted, and not stored")

    def ping(self) -> None:
        parcel, deed = Parcel(), self._model.begin("ping")
        now_ms, terms = self._world.clock.wall_ms(), self._world.queue.terms
        self._world.namespace.intake.add_to(parcel, PING, 0, now_ms, terms)

        def answered(error: ServiceBusError | None) -> None:
            if not self._unavailable(deed, error):
                self._model.end(deed)

        self._ask(deed, lambda: self._world.queue.send(parcel, answered))

    def cancel(self) -> None:
        model = self._model
        there = {one.place.number: one for one in model.at(MAIN, SCHEDULED) if one.place}
        numbers = self._some_numbers(there, model.highest[MAIN])
        if not numbers:
            return
        is_all = all(number in there for number in numbers)
        deed = model.begin("cancel", covers=lambda one: is_one_of(one, MAIN, SCHEDULED, numbers))
        self._say(f"{numbers}")

        def answered(error: ServiceBusError | None) -> None:
            self._say(f"cancelled: {numbers}: {error}")
            if self._unavailable(deed, error):
                return
            if model.is_exact(deed) and is_all != (error is None):
                raise Violation(f"cancelling {numbers}: {error!r}, and there are {sorted(there)}")
            if not deed.is_shared and len(deed.taken) != (len(numbers) if error is None else 0):
                raise Violation(f"cancelling {numbers} is answered with {error!r}, and {deed.taken} are deleted")
            model.end(deed)

        try:
            self._ask(deed, lambda: self._fragment(MAIN).schedule.cancel(numbers, answered))
        except MessageNotFound as error:
            answered(error)
