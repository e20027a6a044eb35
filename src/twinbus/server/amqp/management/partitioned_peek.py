"""Peeking into a partitioned entity: messages of all fragments, in the order of their age.

The order is that of (enqueued time, fragment, sequence number). A client asks for the messages from a sequence number n
on, which stands for a place in that order: behind message n - 1, if that is there, or ended a page not long ago, as it
did for who reads page by page; else before the first message of n's fragment that is not below n. The other fragments
are entered at that time: it never decreases in a fragment, so the place is found without reading what is before it. So
each message is seen once, over any number of pages. From 1 or below means from the beginning.

A dead-letter queue is shown fragment by fragment: what is in it is as old as it was before, so its times say nothing of
where a message lies.

Owns: that order. Fragments that do not answer are left out, and named in the answer.
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
    """Of a message in the order of all."""

    enqueued_ms: int
    fragment: int
    sequence_number: int


class PartitionedPeek:
    """One page."""

    def __init__(self, context: RequestContext, arguments: Arguments, on_reply: OnReply) -> None:
        """InvalidArgument."""
        self._context = context
        self._on_reply = on_reply
        self._omits_bodies = arguments.boolean("omit-message-body")
        self._from_sequence_number = arguments.whole_number("from-sequence-number", minimum=-(2**63))
        self._max_count = min(arguments.whole_number("message-count", minimum=1), messages.MAX_PEEK_COUNT)
        self._deferred_only = messages.wants_deferred_only(arguments)
        self._is_ordered_by_time = context.sub_queue is SubQueue.MAIN
        self._pages: dict[int, list[bytes] | ServiceBusError] = {}
        self._last_positions: list[PeekPosition] = []
        """Of each fragment that may have more than was read of it: the last that was."""

    def start(self) -> None:
        """Find the place, and look from there."""
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

        def found(page: list[bytes] | ServiceBusError) -> None:
            if isinstance(page, ServiceBusError):
                self._on_reply(failure(page))
            elif not page:
                latest_ms = self._context.per_fragment[fragment].fragment.browser.last_enqueued_ms
                self._peek_all(PeekPosition(latest_ms, fragment, self._from_sequence_number))
            else:
                self._peek_all(
                    PeekPosition(self._position_of(page[0]).enqueued_ms, fragment, self._from_sequence_number)
                )

        self._peek_page(fragment, self._from_sequence_number - 1, 1, found)

    def _peek_all(self, position: PeekPosition) -> None:
        for number, part in enumerate(self._context.per_fragment):
            if number == position.fragment:
                self._peek_fragment(number, position.sequence_number, position)
            elif not position.enqueued_ms and number < position.fragment:
                self._on_page(number, [], position)
            elif not position.enqueued_ms:
                self._peek_fragment(number, 0, position)
            else:
                # Of the same time, those of a fragment before its own are before it: there may be more than a page.
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
        def read(page: list[bytes] | ServiceBusError) -> None:
            if isinstance(page, list) and (
                len(page) == self._max_count or sum(map(len, page)) > messages.MAX_PEEK_BYTES
            ):
                self._last_positions.append(self._position_of(page[-1]))
            self._on_page(fragment_number, page, position)

        self._peek_page(fragment_number, start, self._max_count, read)

    def _peek_page(self, fragment_number: int, start: int, count: int, on_done: messages.OnPeeked) -> None:
        browsing = self._context.per_fragment[fragment_number].fragment.browser
        try:
            browsing.peek(start, count, messages.MAX_PEEK_BYTES, on_done, deferred_only=self._deferred_only)
        except ServiceBusError as error:
            on_done(error)

    def _on_page(self, fragment_number: int, page: list[bytes] | ServiceBusError, position: PeekPosition) -> None:
        self._pages[fragment_number] = page
        if len(self._pages) < len(self._context.per_fragment):
            return
        silent = {number: one for number, one in sorted(self._pages.items()) if isinstance(one, ServiceBusError)}
        if len(silent) == len(self._pages):
            self._on_reply(failure(next(iter(silent.values()))))
            return
        pages = {number: one for number, one in self._pages.items() if not isinstance(one, ServiceBusError)}
        shown = self._merge(pages, position)
        if shown:
            last = self._position_of(shown[-1])
            self._context.receivable.record_page_end(self._context.sub_queue, last.sequence_number, last.enqueued_ms)
        told: dict[str, object] = {"twinbus:unavailable-fragments": list(silent)} if silent else {}
        if not shown:
            self._on_reply(no_content(told))
            return
        if self._omits_bodies:
            shown = [messages.without_body(message) for message in shown]
        self._on_reply(success({"messages": [{"message": message} for message in shown], **told}))

    def _merge(self, pages: dict[int, list[bytes]], start: PeekPosition) -> list[bytes]:
        """The first of all messages from a place on, up to where every fragment was read."""
        placed = [(self._position_of(message), message) for page in pages.values() for message in page]
        end = min(self._last_positions, default=None)
        shown: list[bytes] = []
        size = 0
        for place, message in sorted(placed):
            if place < start:
                continue
            if (end is not None and place > end) or len(shown) == self._max_count or size > messages.MAX_PEEK_BYTES:
                break
            size += len(message)
            shown.append(message)
        return shown

    def _position_of(self, payload: bytes) -> PeekPosition:
        """Of a message as it was peeked."""
        message = Message(payload)
        sequence = message.lookup(Section.MESSAGE_ANNOTATIONS, SEQUENCE_NUMBER)
        enqueued_ms = message.lookup(Section.MESSAGE_ANNOTATIONS, ENQUEUED_TIME)
        assert isinstance(sequence, int)
        assert isinstance(enqueued_ms, int)
        return PeekPosition(
            int(enqueued_ms) if self._is_ordered_by_time else 0, fragment_of_sequence(sequence), int(sequence)
        )
