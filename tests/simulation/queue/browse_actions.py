"""Peeking, and reading the log."""

from __future__ import annotations

from tests.simulation.queue.base_actions import NO_LIMIT, SESSIONS, BaseActions
from tests.simulation.queue.links import BrowsingLink
from tests.simulation.queue.messages import read_delivery
from tests.simulation.queue.model_state import MAIN, Message, Operation, Violation
from twinbus.model.errors import ServiceBusError


class BrowseActions(BaseActions):
    def peek(self) -> None:
        model, random, shelf = self._model, self._random, self._choose_area()
        start = random.choice((0, 1, random.randint(1, model.highest[shelf] + 2)))
        count, max_bytes = random.choice((1, 3, 100)), random.choice((300, NO_LIMIT))
        deed = model.begin_operation("peek")
        there = [one for one in model.by_location.values() if one.location and one.location.area == shelf]
        there = sorted([one for one in there if one.location and one.location.number >= start], key=_by_number)

        def done(found: list[bytes] | ServiceBusError) -> None:
            self._check_peeked(deed, found, there, count, is_whole=max_bytes == NO_LIMIT)

        self._call(deed, lambda: self._fragment(shelf).browser.peek(start, count, max_bytes, done))

    def peek_session(self) -> None:
        model, random = self._model, self._random
        if self._fragment(MAIN).sessions is None:
            return
        session = random.choice(SESSIONS).encode()
        start = random.choice((0, random.randint(1, model.highest[MAIN] + 2)))
        count = random.choice((1, 3, 100))
        deed = model.begin_operation("peek session")
        there = [one for one in model.by_location.values() if one.session == session and one.location]
        there = [one for one in there if one.location and one.location.area == MAIN and one.location.number >= start]
        there.sort(key=_by_number)

        def done(found: list[bytes] | ServiceBusError) -> None:
            self._check_peeked(deed, found, there, count, is_whole=True)

        self._call(deed, lambda: self._fragment(MAIN).browser.peek_session(session, start, count, NO_LIMIT, done))

    def _check_peeked(
        self,
        operation: Operation,
        found: list[bytes] | ServiceBusError,
        existing: list[Message],
        count: int,
        *,
        is_whole: bool,
    ) -> None:
        if isinstance(found, ServiceBusError):
            self._is_unavailable(operation, found)
            return
        readings = [read_delivery(payload) for payload in found]
        numbers = [reading.number for reading in readings]
        if numbers != sorted(set(numbers)) or len(numbers) > count:
            raise Violation(f"peeked {numbers}, asked for {count}")
        if self._model.is_undisturbed(operation):
            seen = [(reading.identity, reading.number, reading.delivered) for reading in readings]
            all_of_them = [(one.identity, one.location.number, one.delivery_count) for one in existing if one.location][
                :count
            ]
            if seen != (all_of_them if is_whole else all_of_them[: max(1, len(seen))]):
                raise Violation(f"peeked {seen}, and there are {all_of_them}")
        self._model.end_operation(operation)

    def look(self) -> None:
        shelf, random = self._choose_area(), self._random
        first = random.choice((0, random.randint(0, self._model.highest[shelf] + 2)))
        last = random.choice((2**63 - 1, first + 5))
        looker = BrowsingLink(self._simulation, shelf, first, last)
        self._simulation.browsing_links.append(looker)
        looker.available_credit = random.choice((0, 1, 5, 100))
        looker.browser.advance()

    def look_on(self) -> None:
        looker = self._choose(self._simulation.browsing_links)
        if looker is None:
            return
        if self._random.random() < 0.2:
            looker.browser.close()
            self._simulation.browsing_links.remove(looker)
            return
        looker.available_credit += self._random.choice((1, 5))
        looker.browser.advance()


def _by_number(message: Message) -> int:
    return message.location.number if message.location is not None else 0
