"""Actions that peek and browse."""

from __future__ import annotations

from tests.simulation.queue.base_actions import NO_LIMIT, SESSIONS, BaseActions
from tests.simulation.queue.links import BrowsingLink
from tests.simulation.queue.messages import read_delivery
from tests.simulation.queue.model_state import MAIN, Message, Operation, Violation
from twinbus.model.errors import ServiceBusError


class BrowseActions(BaseActions):
    def peek(self) -> None:
        model, random, area = self._model, self._random, self._choose_area()
        start = random.choice((0, 1, random.randint(1, model.highest[area] + 2)))
        count, max_bytes = random.choice((1, 3, 100)), random.choice((300, NO_LIMIT))
        operation = model.begin_operation("peek")
        existing = [
            message for message in model.by_location.values() if message.location and message.location.area == area
        ]
        existing = sorted(
            [message for message in existing if message.location and message.location.number >= start], key=_by_number
        )

        def done(page: list[bytes] | ServiceBusError) -> None:
            self._check_peeked(operation, page, existing, count, is_whole=max_bytes == NO_LIMIT)

        self._call(operation, lambda: self._fragment(area).browser.peek(start, count, max_bytes, done))

    def peek_session(self) -> None:
        model, random = self._model, self._random
        if self._fragment(MAIN).sessions is None:
            return
        session = random.choice(SESSIONS).encode()
        start = random.choice((0, random.randint(1, model.highest[MAIN] + 2)))
        count = random.choice((1, 3, 100))
        operation = model.begin_operation("peek session")
        existing = [
            message for message in model.by_location.values() if message.session == session and message.location
        ]
        existing = [
            message
            for message in existing
            if message.location and message.location.area == MAIN and message.location.number >= start
        ]
        existing.sort(key=_by_number)

        def done(page: list[bytes] | ServiceBusError) -> None:
            self._check_peeked(operation, page, existing, count, is_whole=True)

        self._call(operation, lambda: self._fragment(MAIN).browser.peek_session(session, start, count, NO_LIMIT, done))

    def _check_peeked(
        self,
        operation: Operation,
        page: list[bytes] | ServiceBusError,
        existing: list[Message],
        count: int,
        *,
        is_whole: bool,
    ) -> None:
        if isinstance(page, ServiceBusError):
            self._is_unavailable(operation, page)
            return
        deliveries = [read_delivery(payload) for payload in page]
        numbers = [delivery.number for delivery in deliveries]
        if numbers != sorted(set(numbers)) or len(numbers) > count:
            raise Violation(f"peeked {numbers}, asked for {count}")
        if self._model.is_undisturbed(operation):
            seen = [(delivery.identity, delivery.number, delivery.delivered) for delivery in deliveries]
            expected = [
                (message.identity, message.location.number, message.delivery_count)
                for message in existing
                if message.location
            ][:count]
            if seen != (expected if is_whole else expected[: max(1, len(seen))]):
                raise Violation(f"peeked {seen}, and there are {expected}")
        self._model.end_operation(operation)

    def open_browser(self) -> None:
        area, random = self._choose_area(), self._random
        first = random.choice((0, random.randint(0, self._model.highest[area] + 2)))
        last = random.choice((2**63 - 1, first + 5))
        link = BrowsingLink(self._simulation, area, first, last)
        self._simulation.browsing_links.append(link)
        link.available_credit = random.choice((0, 1, 5, 100))
        link.browser.advance()

    def continue_browsing(self) -> None:
        link = self._choose(self._simulation.browsing_links)
        if link is None:
            return
        if self._random.random() < 0.2:
            link.browser.close()
            self._simulation.browsing_links.remove(link)
            return
        link.available_credit += self._random.choice((1, 5))
        link.browser.advance()


def _by_number(message: Message) -> int:
    return message.location.number if message.location is not None else 0
