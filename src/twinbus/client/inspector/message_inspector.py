"""Message inspector: find messages with SQL filters, and resubmit, move or delete them, without receiving them.

    inspector = factory.create_message_inspector("orders/$DeadLetterQueue")
    async for message in inspector.search("DeadLetterReason = 'late' AND price > 100"): ...
    await inspector.resubmit(filter="DeadLetterReason = 'late'")

Owns the requests and the pages of searches. Only twinbus has most of these operations: with other servers they raise
NotImplementedHere. `docs/messages.md` lists the guarantees, `docs/filters.md` describes the SQL language.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from twinbus.amqp.types import Array, Int
from twinbus.client.client_entity import ClientEntity
from twinbus.client.errors import UnknownAnswer
from twinbus.client.events import SettledInBulk
from twinbus.client.inspector.bulk_operation import BulkOperation, BulkProgress
from twinbus.client.sender import MessageSender
from twinbus.model.description import FRAGMENT_COUNT, FRAGMENT_SHIFT
from twinbus.model.errors import (
    InvalidArgument,
    InvalidOperation,
    MessageNotFound,
    NotImplementedHere,
    ServiceBusError,
)
from twinbus.model.message import BrokeredMessage
from twinbus.model.path import parse_address

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import AsyncIterator, Iterable, Mapping

    from twinbus.client.amqp.request_response import Response
    from twinbus.client.factory import MessagingFactory
    from twinbus.client.inspector.bulk_operation import OnProgress

PAGE_SIZE: Final = 100
"""Messages in one page of a search, and in one request to resubmit or move messages: the server's maximum."""
MAX_SCANNED_PER_PAGE: Final = 2_000
DELETE_SIZE: Final = 1_000
"""Messages in one request to delete messages."""
STATES: Final = ("active", "deferred", "scheduled")
_AFTER_ALL_MESSAGES: Final = 1 << (FRAGMENT_SHIFT - 1)
"""A sequence number that no message of a fragment reaches."""
REASON_PROPERTY: Final = "DeadLetterReason"
DEFAULT_SUMMARY_SIZE: Final = 10_000


@dataclass(frozen=True, slots=True)
class SearchPage:
    """Messages found by one request of a search."""

    messages: list[BrokeredMessage]
    scanned_count: int
    """Number of messages that the server read for this page."""
    next_sequence_number: int
    """The sequence number from which a later search continues, perhaps in the next fragment."""
    end_sequence_number: int
    """The sequence number after that of the last message in the fragment, at the time the search reached the
    fragment."""
    unavailable_fragments: tuple[int, ...] = ()
    """Fragments of a partitioned entity that were not searched, because their store or process does not work."""


@dataclass(frozen=True, slots=True)
class DeadLetterReason:
    """Dead letters that have the same reason."""

    reason: str | None
    count: int
    first_sequence_number: int
    description: str | None
    """Description of the first of these dead letters."""


@dataclass(frozen=True, slots=True)
class DeadLetterSummary:
    """Dead letters by reason, most frequent first."""

    reasons: list[DeadLetterReason]
    count: int
    is_complete: bool
    """Whether all dead letters were counted."""


class MessageInspector(ClientEntity):
    """Inspector of the messages in one queue, subscription or sub-queue; for a topic, of its scheduled messages."""

    def __init__(self, factory: MessagingFactory, path: str) -> None:
        """Create an inspector. Applications call `MessagingFactory.create_message_inspector` instead."""
        super().__init__(factory, path)
        self._sender = MessageSender(factory, path)
        self._entity_path = parse_address(path).entity
        """Path of the entity without its sub-queue: resubmitting needs the right to send to it."""

    # --- finding messages ---------------------------------------------------------------------------------------------

    async def peek(
        self, max_count: int = PAGE_SIZE, *, from_sequence_number: int = 0, session_id: str | None = None
    ) -> list[BrokeredMessage]:
        """Return messages in any state, oldest first, without locking them. Other servers support this, too."""
        body: dict[str, object] = {"from-sequence-number": from_sequence_number, "message-count": Int(max_count)}
        if session_id is not None:
            body["session-id"] = session_id
        response = await self._request("com.microsoft:peek-message", body)
        return _messages_of(response)

    async def search(
        self,
        filter: str | None = None,  # noqa: A002  # the word of Service Bus
        *,
        state: str | None = None,
        session_id: str | None = None,
        from_sequence_number: int = 0,
        max_count: int | None = None,
        include_body: bool = True,
    ) -> AsyncIterator[BrokeredMessage]:
        """Yield the messages for which an SQL filter is true (default: all), without locking them.

        The search covers the messages that a fragment has when the search reaches the fragment; messages that arrive
        later are left out. `state` is active, deferred or scheduled (default: all). With `include_body=False`, the
        messages have no bodies.
        """
        remaining = max_count
        pages = self.search_pages(
            filter,
            state=state,
            session_id=session_id,
            from_sequence_number=from_sequence_number,
            page_size=PAGE_SIZE if max_count is None else min(PAGE_SIZE, max_count),
            include_body=include_body,
        )
        if remaining is not None and remaining <= 0:
            return
        async for page in pages:
            for message in page.messages:
                yield message
                if remaining is not None:
                    remaining -= 1
                    if not remaining:
                        return

    async def search_pages(
        self,
        filter: str | None = None,  # noqa: A002
        *,
        state: str | None = None,
        session_id: str | None = None,
        from_sequence_number: int = 0,
        page_size: int = PAGE_SIZE,
        include_body: bool = True,
    ) -> AsyncIterator[SearchPage]:
        """Yield the pages of a search. Pages without messages are also yielded, to show how far the search has come."""
        if state is not None and state not in STATES:
            raise InvalidArgument(f"state is {state!r:.60}; it must be one of {', '.join(STATES)}")
        body: dict[str, object] = {"message-count": Int(page_size), "max-scanned": Int(MAX_SCANNED_PER_PAGE)}
        expression = _with_session(filter, session_id)
        if expression is not None:
            body["filter"] = expression
        if state is not None:
            body["state"] = state
        if not include_body:
            body["omit-message-body"] = True
        ends: dict[int, int] = {}
        position = from_sequence_number
        while True:
            response = await self._twinbus_request("twinbus:search", {**body, "from-sequence-number": position})
            fragment = max(position, 0) >> FRAGMENT_SHIFT
            end = ends.setdefault(fragment, _number(response, "end-sequence-number"))
            start, position = position, _number(response, "next-sequence-number")
            is_finished = response.body.get("is-finished") is True
            if position <= start and not is_finished:  # the search would never end
                raise UnknownAnswer(f"a search of '{self.path}' does not get beyond message {start}")
            if position >= end and position >> FRAGMENT_SHIFT == fragment and not is_finished:
                position = (fragment + 1) << FRAGMENT_SHIFT  # the fragment's other messages are too new
            messages = [message for message in _messages_of(response) if message.sequence_number < end]
            unavailable = response.body.get("unavailable-fragments")
            yield SearchPage(
                messages,
                _number(response, "scanned"),
                position,
                end,
                tuple(int(str(number)) for number in unavailable) if isinstance(unavailable, list) else (),
            )
            if is_finished:
                return

    async def end_positions(self) -> list[int]:
        """Return the sequence number that the next message gets, for each fragment of the entity."""
        ends: list[int] = []
        while True:
            after_all = (len(ends) << FRAGMENT_SHIFT) + _AFTER_ALL_MESSAGES
            response = await self._twinbus_request("twinbus:search", {"from-sequence-number": after_all})
            ends.append(_number(response, "end-sequence-number"))
            if response.body.get("is-finished") is True or len(ends) == FRAGMENT_COUNT:
                return ends

    async def summarize_dead_letters(
        self,
        max_count: int = DEFAULT_SUMMARY_SIZE,
        *,
        filter: str | None = None,  # noqa: A002
    ) -> DeadLetterSummary:
        """Count the first `max_count` dead letters by their reason; the inspector must be for a dead-letter queue."""
        counts: Counter[str | None] = Counter()
        first: dict[str | None, BrokeredMessage] = {}
        counted, is_complete = 0, True
        async for message in self.search(filter, include_body=False, max_count=max_count + 1):
            if counted == max_count:
                is_complete = False
                break
            counted += 1
            reason = _text(message.properties.get(REASON_PROPERTY))
            counts[reason] += 1
            first.setdefault(reason, message)
        reasons = [
            DeadLetterReason(
                reason,
                count,
                first[reason].sequence_number,
                _text(first[reason].properties.get("DeadLetterErrorDescription")),
            )
            for reason, count in counts.most_common()
        ]
        return DeadLetterSummary(reasons, counted, is_complete)

    # --- resubmitting, moving, deleting -------------------------------------------------------------------------------

    async def resubmit(
        self,
        sequence_numbers: Iterable[int] | None = None,
        *,
        filter: str | None = None,  # noqa: A002
        max_count: int | None = None,
        on_progress: OnProgress | None = None,
    ) -> BulkProgress:
        """Resubmit dead letters to their entity, by sequence number or by filter (default: all).

        The server removes each dead letter and makes it active in one step. `on_progress` is called after each request,
        so that the caller knows what was done if a later request fails; a repeated call resubmits the remaining
        messages.
        """

        async def resubmit_some(numbers: list[int]) -> None:
            body = {"sequence-numbers": Array(int, list(numbers))}
            await self._twinbus_request("twinbus:resubmit", body, other_path=self._entity_path)

        bulk = BulkOperation(self, resubmit_some, PAGE_SIZE, on_progress)
        return await bulk.run(sequence_numbers, filter, "active", max_count)

    async def resubmit_edited(self, sequence_number: int, message: BrokeredMessage) -> int:
        """Resubmit a dead letter with the content of `message`; return its new sequence number."""
        payload = message.encode(self.factory.settings.clock.wall_ms())
        response = await self._twinbus_request(
            "twinbus:resubmit",
            {"sequence-numbers": Array(int, [sequence_number]), "message": payload},
            other_path=self._entity_path,
        )
        numbers = _numbers(response)
        if len(numbers) != 1:
            raise UnknownAnswer(f"the response of '{self.path}' has no sequence number for the resubmitted message")
        return numbers[0]

    async def move(
        self,
        destination: str,
        sequence_numbers: Iterable[int] | None = None,
        *,
        filter: str | None = None,  # noqa: A002
        max_count: int | None = None,
        on_progress: OnProgress | None = None,
    ) -> BulkProgress:
        """Move active messages to another queue or topic, by sequence number or by filter (default: all).

        Each message is always in exactly one place: in the source, on its way, or at the destination. Messages that the
        destination refuses are in the transfer dead-letter queue of the source. See `resubmit` for `on_progress`.
        """

        async def move_some(numbers: list[int]) -> None:
            body = {"sequence-numbers": Array(int, list(numbers)), "destination": destination}
            await self._twinbus_request("twinbus:move", body, other_path=destination)

        bulk = BulkOperation(self, move_some, PAGE_SIZE, on_progress)
        return await bulk.run(sequence_numbers, filter, "active", max_count)

    async def delete(
        self,
        sequence_numbers: Iterable[int] | None = None,
        *,
        filter: str | None = None,  # noqa: A002
        state: str | None = None,
        max_count: int | None = None,
        on_progress: OnProgress | None = None,
    ) -> BulkProgress:
        """Delete unlocked messages, by sequence number (in any state) or by filter and state.

        Raise InvalidArgument if there are no sequence numbers, no filter and no state; use `purge` to delete all
        messages. See `resubmit` for `on_progress`.
        """
        if sequence_numbers is None and filter is None and state is None:
            raise InvalidArgument("delete needs sequence numbers, a filter or a state: purge deletes all messages")

        async def delete_some(numbers: list[int]) -> list[int]:
            response = await self._twinbus_request(
                "twinbus:delete-by-sequence-number", {"sequence-numbers": Array(int, list(numbers))}
            )
            deleted = set(_numbers(response))
            self.factory.events.publish(SettledInBulk(self.path, "deleted in bulk", len(deleted)))
            return [number for number in numbers if number not in deleted]

        bulk = BulkOperation(self, delete_some, DELETE_SIZE, on_progress)
        return await bulk.run(sequence_numbers, filter, state, max_count)

    async def purge(self, state: str = "active") -> BulkProgress:
        """Delete all messages in a state (active, deferred or scheduled), except locked ones."""
        response = await self._twinbus_request("twinbus:purge", {"state": state})
        progress = BulkProgress(_number(response, "removed"), skipped_count=_number(response, "skipped"))
        self.factory.events.publish(SettledInBulk(self.path, "deleted in bulk", progress.done_count))
        return progress

    # --- scheduled messages -------------------------------------------------------------------------------------------

    async def change_scheduled(
        self, sequence_number: int, *, when: dt.datetime | None = None, message: BrokeredMessage | None = None
    ) -> int:
        """Change the time or the content of a scheduled message; return its new sequence number.

        The new message is scheduled before the old one is cancelled, so that the message is never lost. If the old
        message became active in the meantime, the new one is cancelled, and MessageNotFound is raised.
        """
        found = [
            each
            async for each in self.search(state="scheduled", from_sequence_number=sequence_number, max_count=1)
            if each.sequence_number == sequence_number
        ]
        if not found:
            raise MessageNotFound(f"'{self.path}' has no scheduled message {sequence_number}")
        due = when or found[0].scheduled_enqueue_time_utc
        assert due is not None
        new_number = await self._sender.schedule(message or found[0], due)
        if not new_number:
            raise InvalidOperation(
                f"'{self.path}' detects duplicates, and dropped the changed message because of its message id: cancel "
                f"message {sequence_number}, and schedule a message with another id"
            )
        try:
            await self._sender.cancel_scheduled(sequence_number)
        except MessageNotFound as error:
            await self._sender.cancel_scheduled(new_number)
            raise MessageNotFound(
                f"message {sequence_number} of '{self.path}' became active before it was changed"
            ) from error
        except ServiceBusError as error:
            text = f"message {new_number} is scheduled, and message {sequence_number} may be, too: cancel one; {error}"
            raise error.copy_with(may_have_happened=True, text=text) from error
        return new_number

    async def cancel_scheduled(self, *sequence_numbers: int) -> None:
        """Cancel scheduled messages. Raise MessageNotFound, and cancel none, if one of them does not exist."""
        await self._sender.cancel_scheduled(*sequence_numbers)

    # --- requests -----------------------------------------------------------------------------------------------------

    async def _twinbus_request(
        self, operation: str, body: Mapping[str, object], *, other_path: str | None = None
    ) -> Response:
        """Send a request for an operation that only twinbus has."""
        try:
            return await self._request(operation, body, other_path=other_path)
        except (NotImplementedHere, UnknownAnswer) as error:
            raise NotImplementedHere(
                f"{self.factory.address} does not support {operation}, an operation of twinbus: {error}"
            ) from error

    async def _close(self) -> None:
        await self._sender.close()


def _with_session(expression: str | None, session_id: str | None) -> str | None:
    """Return a filter that is true only for messages of a session."""
    if session_id is None:
        return expression
    condition = "sys.SessionId = '{}'".format(session_id.replace("'", "''"))
    return condition if expression is None else f"({expression}) AND {condition}"


def _messages_of(response: Response) -> list[BrokeredMessage]:
    entries = response.body.get("messages")
    messages = []
    for entry in entries if isinstance(entries, list) else []:
        payload = entry.get("message") if isinstance(entry, dict) else None
        if not isinstance(payload, bytes):
            raise UnknownAnswer("a message in the response is not binary")
        messages.append(BrokeredMessage.decode(payload, is_peeked=True))
    return messages


def _number(response: Response, name: str) -> int:
    value = response.body.get(name)
    if not isinstance(value, int):
        raise UnknownAnswer(f"the response has no number {name!r}")
    return int(value)


def _numbers(response: Response) -> list[int]:
    values = response.body.get("sequence-numbers")
    return [int(number) for number in values.items if isinstance(number, int)] if isinstance(values, Array) else []


def _text(value: object) -> str | None:
    return None if value is None else str(value)
