"""Peeking, and reading the log."""

from __future__ import annotations

from tests.model.asking import EVERYTHING, SESSIONS, Asking
from tests.model.letter import read_delivery
from tests.model.people import Looker
from tests.model.things import MAIN, Deed, Message
from tests.model.violation import Violation
from twinbus.model.errors import ServiceBusError


class Looking(Asking):
    def peek(self) -> None:
        model, random, shelf = self._model, self._random, self._shelf()
        start = random.choice((0, 1, random.randint(1, model.highest[shelf] + 2)))
        count, max_bytes = random.choice((1, 3, 100)), random.choice((300, EVERYTHING))
        deed = model.begin("peek")
        there = [one for one in model.by_place.values() if one.place and one.place.shelf == shelf]
        there = sorted([one for one in there if one.place and one.place.number >= start], key=_by_number)

        def done(found: list[bytes] | ServiceBusError) -> None:
            self._peeked(deed, found, there, count, is_whole=max_bytes == EVERYTHING)

        self._ask(deed, lambda: self._fragment(shelf).browsing.peek(start, count, max_bytes, done))

    def peek_session(self) -> None:
        model, random = self._model, self._random
        if self._fragment(MAIN).sessions is None:
            return
        session = random.choice(SESSIONS).encode()
        start = random.choice((0, random.randint(1, model.highest[MAIN] + 2)))
        count = random.choice((1, 3, 100))
        deed = model.begin("peek session")
        there = [one for one in model.by_place.values() if one.session == session and one.place]
        there = [one for one in there if one.place and one.place.shelf == MAIN and one.place.number >= start]
        there.sort(key=_by_number)

        def done(found: list[bytes] | ServiceBusError) -> None:
            self._peeked(deed, found, there, count, is_whole=True)

        self._ask(deed, lambda: self._fragment(MAIN).browsing.peek_session(session, start, count, EVERYTHING, done))

    def _peeked(
        self, deed: Deed, found: list[bytes] | ServiceBusError, there: list[Message], count: int, *, is_whole: bool
    ) -> None:
        if isinstance(found, ServiceBusError):
            self._unavailable(deed, found)
            return
        readings = [read_delivery(payload) for payload in found]
        numbers = [reading.number for reading in readings]
        if numbers != sorted(set(numbers)) or len(numbers) > count:
            raise Violation(f"peeked {numbers}, asked for {count}")
        if self._model.is_exact(deed):
            seen = [(reading.identity, reading.number, reading.delivered) for reading in readings]
            all_of_them = [(one.identity, one.place.number, one.count) for one in there if one.place][:count]
            if seen != (all_of_them if is_whole else all_of_them[: max(1, len(seen))]):
                raise Violation(f"peeked {seen}, and there are {all_of_them}")
        self._model.end(deed)

    def look(self) -> None:
        shelf, random = self._shelf(), self._random
        first = random.choice((0, random.randint(0, self._model.highest[shelf] + 2)))
        last = random.choice((2**63 - 1, first + 5))
        looker = Looker(self._world, shelf, first, last)
        self._world.lookers.append(looker)
        looker.room = random.choice((0, 1, 5, 100))
        looker.browser.go_on()

    def look_on(self) -> None:
        looker = self._pick(self._world.lookers)
        if looker is None:
            return
        if self._random.random() < 0.2:
            looker.browser.leave()
            self._world.lookers.remove(looker)
            return
        looker.room += self._random.choice((1, 5))
        looker.browser.go_on()


def _by_number(message: Message) -> int:
    return message.place.number if message.place is not None else 0
