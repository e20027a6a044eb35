"""Peeking into a partitioned entity: messages from all fragments, ordered by age.

The order is (enqueued time, fragment, sequence number). A request for the messages from sequence number n on names a
position in this order. If message n - 1 exists or was recently the last message on a page, the position is after
message n - 1, as for a client that reads page by page. Otherwise, the position is before the first message in n's
fragment whose sequence number is at least n. Peeking in the other fragments starts at the enqueued time of this
position. Enqueued times never decrease within a fragment, so the start is found without reading earlier messages. Each
message is therefore seen once, over any number of pages. A sequence number of 1 or less means the beginning.

A dead-letter queue is listed fragment by fragment: dead letters keep their original enqueued times, so later dead
letters may have earlier times.

Owns: this order. Fragments that do not respond are omitted from the page, and named in the response.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from twinbus.amqp.message import Message, Section
from twinbus.broker.ports.fragment import fragment_of_sequence
from twinbus.model.annotations import ENQUEUED_TIME, SEQUENCE_NUMBER
from twinbus.model.errors import ServiceBusError
from twinbus.model.path import SubQueue
from twinbus.server.amqp.management import messages
from twinbus.server.amqp.management.responses import failure, no_content, success

if TYPE_CHECKING:
    from twinbus.server.amqp.management.arguments import Arguments
    from twinbus.server.amqp.management.request_context import RequestContext
    from twinbus.server.amqp.request_link import OnReply


class PeekPosition(NamedTuple):
    """The position of a message in the order of all fragments."""

    enqueued_ms: int
    fragment: int
    sequence_number: int


class PartitionedPeek:
    """The request for one page of messages."""

    def __init__(self, context: RequestContext, arguments: Arguments, on_reply: OnReply) -> None:
        """Parse the arguments. Raise InvalidArgument if an argument is invalid."""
        self._context = context
        self._on_reply = on_reply
        self._omits_bodies = arguments.boolean("omit-message-body")
        self._from_sequence_number = arguments.whole_number("from-sequence-number", minimum=-(2**63))
        self._max_count = min(arguments.whole_number("message-count", minimum=1), messages.MAX_PEEK_COUNT)
        self._deferred_only = messages.wants_deferred_only(arguments)
        self._is_ordered_by_time = context.sub_queue is SubQueue.MAIN
        self._pages: dict[int, list[bytes] | ServiceBusError] = {}
        self._last_positions: list[PeekPosition] = []
        """The last position read in each fragment that may have more messages."""

    def start(self) -> None:
        """Find the start position, and peek from there."""
        fragment = fragment_of_sequence(self._from_sequence_number)
        if self._from_sequence_number <= 1 or fragment >= len(self._context.per_fragment):
            self._peek_all(PeekPosition(0, 0, 0))
            return
        ended_ms = self._context.receivable.page_ends.get((self._context.sub_queue, self._from_sequence_number - 1))
        if ended_ms is not None:
            self._peek_all(PeekPosition(ended_ms, fragment, self._from_sequence_number))
            return

        if not self._is_ordered_by_time:
            self._peek_all(PeekPosition(0, fragment, self._from_sequence_number))
            return

        def on_first_page(page: list[bytes] | ServiceBusError) -> None:
            if isinstance(page, ServiceBusError):
                self._on_reply(failure(page))
            elif not page:
                latest_ms = self._context.per_fragment[fragment].fragment.browser.last_enqueued_ms
                self._peek_all(PeekPosition(latest_ms, fragment, self._from_sequence_number))
            else:
                self._peek_all(
                    PeekPosition(self._position_of(page[0]).enqueued_ms, fragment, self._from_sequence_number)
                )

        self._peek_page(fragment, self._from_sequence_number - 1, 1, on_first_page)

    def _peek_all(self, position: PeekPosition) -> None:
        for number, part in enumerate(self._context.per_fragment):
            if number == position.fragment:
                self._peek_fragment(number, position.sequence_number, position)
            elif not position.enqueued_ms and number < position.fragment:
                self._on_page(number, [], position)
            elif not position.enqueued_ms:
                self._peek_fragment(number, 0, position)
            else:
                # In earlier fragments, messages with the same time come before the position and are skipped; they may
                # fill more than a page.
                since_ms = position.enqueued_ms + (number < position.fragment)
                try:
                    part.fragment.browser.find_by_enqueued_time(
                        since_ms, partial(self._on_start_found, number, position)
                    )
                except ServiceBusError as error:
                    self._on_page(number, error, position)

    def _on_start_found(self, fragment_number: int, position: PeekPosition, start: int | ServiceBusError) -> None:
        if isinstance(start, ServiceBusError):
            self._on_page(fragment_number, start, position)
        else:
            self._peek_fragment(fragment_number, start, position)

    def _peek_fragment(self, fragment_number: int, start: int, position: PeekPosition) -> None:
        def on_read(page: list[bytes] | ServiceBusError) -> None:
            if isinstance(page, list) and (
                len(page) == self._max_count or sum(map(len, page)) > messages.MAX_PEEK_BYTES
            ):
                self._last_positions.append(self._position_of(page[-1]))
            self._on_page(fragment_number, page, position)

        self._peek_page(fragment_number, start, self._max_count, on_read)

    def _peek_page(self, fragment_number: int, start: int, count: int, on_done: messages.OnPeeked) -> None:
        browser = self._context.per_fragment[fragment_number].fragment.browser
        try:
            browser.peek(start, count, messages.MAX_PEEK_BYTES, on_done, deferred_only=self._deferred_only)
        except ServiceBusError as error:
            on_done(error)

    def _on_page(self, fragment_number: int, page: list[bytes] | ServiceBusError, position: PeekPosition) -> None:
        self._pages[fragment_number] = page
        if len(self._pages) < len(self._context.per_fragment):
            return
        failures = {
            number: result for number, result in sorted(self._pages.items()) if isinstance(result, ServiceBusError)
        }
        if len(failures) == len(self._pages):
            self._on_reply(failure(next(iter(failures.values()))))
            return
        pages = {number: result for number, result in self._pages.items() if not isinstance(result, ServiceBusError)}
        merged = self._merge(pages, position)
        if merged:
            end = self._position_of(merged[-1])
            self._context.receivable.record_page_end(self._context.sub_queue, end.sequence_number, end.enqueued_ms)
        extra_fields: dict[str, object] = {"twinbus:unavailable-fragments": list(failures)} if failures else {}
        if not merged:
            self._on_reply(no_content(extra_fields))
            return
        if self._omits_bodies:
            merged = [messages.without_body(message) for message in merged]
        self._on_reply(success({"messages": [{"message": message} for message in merged], **extra_fields}))

    def _merge(self, pages: dict[int, list[bytes]], start: PeekPosition) -> list[bytes]:
        """Return the first messages from a position on, up to the point that was read in all fragments."""
        positioned = [(self._position_of(message), message) for page in pages.values() for message in page]
        end = min(self._last_positions, default=None)
        merged: list[bytes] = []
        size = 0
        for position, message in sorted(positioned):
            if position < start:
                continue
            if (end is not None and position > end) or len(merged) == self._max_count or size > messages.MAX_PEEK_BYTES:
                break
            size += len(message)
            merged.append(message)
        return merged

    def _position_of(self, payload: bytes) -> PeekPosition:
        """Return the position of a peeked message."""
        message = Message(payload)
        sequence = message.lookup(Section.MESSAGE_ANNOTATIONS, SEQUENCE_NUMBER)
        enqueued_ms = message.lookup(Section.MESSAGE_ANNOTATIONS, ENQUEUED_TIME)
        assert isinstance(sequence, int)
        assert isinstance(enqueued_ms, int)
        return PeekPosition(
            int(enqueued_ms) if self._is_ordered_by_time else 0, fragment_of_sequence(sequence), int(sequence)
        )
