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
from twinbus.broker.ports.numbers import fragment_of_sequence
from twinbus.model.annotations import ENQUEUED_TIME, SEQUENCE_NUMBER
from twinbus.model.errors import ServiceBusError
from twinbus.model.path import SubQueue
from twinbus.server.operations import messages
from twinbus.server.operations.outcomes import failure, nothing, success

if TYPE_CHECKING:
    from twinbus.server.operations.arguments import Arguments
    from twinbus.server.operations.subject import Subject
    from twinbus.server.requests import Reply


class Place(NamedTuple):
    """Of a message in the order of all."""

    enqueued_ms: int
    fragment: int
    sequence: int


class Peeking:
    """One page."""

    def __init__(self, subject: Subject, arguments: Arguments, reply: Reply) -> None:
        """InvalidArgument."""
        self._subject = subject
        self._reply = reply
        self._omits_bodies = arguments.flag("omit-message-body")
        self._start = arguments.number("from-sequence-number", lowest=-(2**63))
        self._count = min(arguments.number("message-count", lowest=1), messages.PEEK_MAX_COUNT)
        self._deferred_only = messages.only_deferred(arguments)
        self._is_by_age = subject.sub_queue is SubQueue.MAIN
        self._found: dict[int, list[bytes] | ServiceBusError] = {}
        self._reach: list[Place] = []
        """Of each fragment that may have more than was read of it: the last that was."""

    def begin(self) -> None:
        """Find the place, and look from there."""
        fragment = fragment_of_sequence(self._start)
        if self._start <= 1 or fragment >= len(self._subject.parts):
            self._look(Place(0, 0, 0))
            return
        ended_ms = self._subject.receivable.page_ends.get((self._subject.sub_queue, self._start - 1))
        if ended_ms is not None:
            self._look(Place(ended_ms, fragment, self._start))
            return

        if not self._is_by_age:
            self._look(Place(0, fragment, self._start))
            return

        def found(page: list[bytes] | ServiceBusError) -> None:
            if isinstance(page, ServiceBusError):
                self._reply(failure(page))
            elif not page:
                latest_ms = self._subject.parts[fragment].fragment.browsing.latest_ms
                self._look(Place(latest_ms, fragment, self._start))
            else:
                self._look(Place(self._place_of(page[0]).enqueued_ms, fragment, self._start))

        self._peek(fragment, self._start - 1, 1, found)

    def _look(self, place: Place) -> None:
        for number, part in enumerate(self._subject.parts):
            if number == place.fragment:
                self._peek_into(number, place.sequence, place)
            elif not place.enqueued_ms and number < place.fragment:
                self._take(number, [], place)
            elif not place.enqueued_ms:
                self._peek_into(number, 0, place)
            else:
                # Of the same time, those of a fragment before its own are before it: there may be more than a page.
                since_ms = place.enqueued_ms + (number < place.fragment)
                try:
                    part.fragment.browsing.find_time(since_ms, partial(self._entered, number, place))
                except ServiceBusError as error:
                    self._take(number, error, place)

    def _entered(self, number: int, place: Place, start: int | ServiceBusError) -> None:
        if isinstance(start, ServiceBusError):
            self._take(number, start, place)
        else:
            self._peek_into(number, start, place)

    def _peek_into(self, number: int, start: int, place: Place) -> None:
        def read(page: list[bytes] | ServiceBusError) -> None:
            if isinstance(page, list) and (len(page) == self._count or sum(map(len, page)) > messages.PEEK_MAX_BYTES):
                self._reach.append(self._place_of(page[-1]))
            self._take(number, page, place)

        self._peek(number, start, self._count, read)

    def _peek(self, number: int, start: int, count: int, done: messages.Peeked) -> None:
        browsing = self._subject.parts[number].fragment.browsing
        try:
            browsing.peek(start, count, messages.PEEK_MAX_BYTES, done, deferred_only=self._deferred_only)
        except ServiceBusError as error:
            done(error)

    def _take(self, number: int, page: list[bytes] | ServiceBusError, place: Place) -> None:
        self._found[number] = page
        if len(self._found) < len(self._subject.parts):
            return
        silent = {number: one for number, one in sorted(self._found.items()) if isinstance(one, ServiceBusError)}
        if len(silent) == len(self._found):
            self._reply(failure(next(iter(silent.values()))))
            return
        pages = {number: one for number, one in self._found.items() if not isinstance(one, ServiceBusError)}
        shown = self._merge(pages, place)
        if shown:
            last = self._place_of(shown[-1])
            self._subject.receivable.note_page_end(self._subject.sub_queue, last.sequence, last.enqueued_ms)
        told: dict[str, object] = {"twinbus:unavailable-fragments": list(silent)} if silent else {}
        if not shown:
            self._reply(nothing(told))
            return
        if self._omits_bodies:
            shown = [messages.without_body(message) for message in shown]
        self._reply(success({"messages": [{"message": message} for message in shown], **told}))

    def _merge(self, pages: dict[int, list[bytes]], start: Place) -> list[bytes]:
        """The first of all messages from a place on, up to where every fragment was read."""
        placed = [(self._place_of(message), message) for page in pages.values() for message in page]
        end = min(self._reach, default=None)
        shown: list[bytes] = []
        size = 0
        for place, message in sorted(placed):
            if place < start:
                continue
            if (end is not None and place > end) or len(shown) == self._count or size > messages.PEEK_MAX_BYTES:
                break
            size += len(message)
            shown.append(message)
        return shown

    def _place_of(self, payload: bytes) -> Place:
        """Of a message as it was peeked."""
        message = Message(payload)
        sequence = message.lookup(Section.MESSAGE_ANNOTATIONS, SEQUENCE_NUMBER)
        enqueued_ms = message.lookup(Section.MESSAGE_ANNOTATIONS, ENQUEUED_TIME)
        assert isinstance(sequence, int)
        assert isinstance(enqueued_ms, int)
        return Place(int(enqueued_ms) if self._is_by_age else 0, fragment_of_sequence(sequence), int(sequence))
