"""The blocking message inspector, a wrapper around `twinbus.client.inspector.message_inspector`."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from twinbus.client.inspector import message_inspector
from twinbus.client.inspector.message_inspector import DEFAULT_SUMMARY_SIZE, PAGE_SIZE
from twinbus.client.sync.background_loop import BlockingEntity, call_blocking, run_blocking

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator

    from twinbus.client.inspector.bulk_operation import BulkProgress, OnProgress
    from twinbus.client.inspector.message_inspector import DeadLetterSummary, SearchPage
    from twinbus.model.message import BrokeredMessage

T = TypeVar("T")


class MessageInspector(BlockingEntity[message_inspector.MessageInspector]):
    """Inspector of the messages in one queue, subscription or sub-queue; for a topic, of its scheduled messages."""

    # --- finding messages ---------------------------------------------------------------------------------------------

    def peek(
        self, max_count: int = PAGE_SIZE, *, from_sequence_number: int = 0, session_id: str | None = None
    ) -> list[BrokeredMessage]:
        """Return messages in any state, oldest first, without locking them. Other servers support this, too."""
        return run_blocking(
            lambda: self.inner.peek(max_count, from_sequence_number=from_sequence_number, session_id=session_id)
        )

    def search(
        self,
        filter: str | None = None,  # noqa: A002  # the word of Service Bus
        *,
        state: str | None = None,
        session_id: str | None = None,
        from_sequence_number: int = 0,
        max_count: int | None = None,
        include_body: bool = True,
    ) -> Iterator[BrokeredMessage]:
        """Yield the messages for which an SQL filter is true (default: all), without locking them."""
        remaining = max_count
        if remaining is not None and remaining <= 0:
            return
        for page in self.search_pages(
            filter,
            state=state,
            session_id=session_id,
            from_sequence_number=from_sequence_number,
            page_size=PAGE_SIZE if max_count is None else min(PAGE_SIZE, max_count),
            include_body=include_body,
        ):
            for message in page.messages:
                yield message
                if remaining is not None:
                    remaining -= 1
                    if not remaining:
                        return

    def search_pages(
        self,
        filter: str | None = None,  # noqa: A002
        *,
        state: str | None = None,
        session_id: str | None = None,
        from_sequence_number: int = 0,
        page_size: int = PAGE_SIZE,
        include_body: bool = True,
    ) -> Iterator[SearchPage]:
        """Yield the pages of a search. Pages without messages are also yielded, to show how far the search has come."""
        return _iterate(
            lambda: self.inner.search_pages(
                filter,
                state=state,
                session_id=session_id,
                from_sequence_number=from_sequence_number,
                page_size=page_size,
                include_body=include_body,
            )
        )

    def end_positions(self) -> list[int]:
        """Return the sequence number that the next message gets, for each fragment of the entity."""
        return run_blocking(self.inner.end_positions)

    def summarize_dead_letters(
        self,
        max_count: int = DEFAULT_SUMMARY_SIZE,
        *,
        filter: str | None = None,  # noqa: A002
    ) -> DeadLetterSummary:
        """Count the first `max_count` dead letters by their reason; the inspector must be for a dead-letter queue."""
        return run_blocking(lambda: self.inner.summarize_dead_letters(max_count, filter=filter))

    # --- resubmitting, moving, deleting -------------------------------------------------------------------------------

    def resubmit(
        self,
        sequence_numbers: Iterable[int] | None = None,
        *,
        filter: str | None = None,  # noqa: A002
        max_count: int | None = None,
        on_progress: OnProgress | None = None,
    ) -> BulkProgress:
        """Resubmit dead letters to their entity, by sequence number or by filter (default: all).

        `on_progress` is called on the client's own thread, and must not block.
        """
        return run_blocking(
            lambda: self.inner.resubmit(sequence_numbers, filter=filter, max_count=max_count, on_progress=on_progress)
        )

    def resubmit_edited(self, sequence_number: int, message: BrokeredMessage) -> int:
        """Resubmit a dead letter with the content of `message`; return its new sequence number."""
        return run_blocking(lambda: self.inner.resubmit_edited(sequence_number, message))

    def move(
        self,
        destination: str,
        sequence_numbers: Iterable[int] | None = None,
        *,
        filter: str | None = None,  # noqa: A002
        max_count: int | None = None,
        on_progress: OnProgress | None = None,
    ) -> BulkProgress:
        """Move active messages to another queue or topic, by sequence number or by filter (default: all).

        `on_progress` is called on the client's own thread, and must not block.
        """
        return run_blocking(
            lambda: self.inner.move(
                destination, sequence_numbers, filter=filter, max_count=max_count, on_progress=on_progress
            )
        )

    def delete(
        self,
        sequence_numbers: Iterable[int] | None = None,
        *,
        filter: str | None = None,  # noqa: A002
        state: str | None = None,
        max_count: int | None = None,
        on_progress: OnProgress | None = None,
    ) -> BulkProgress:
        """Delete unlocked messages, by sequence number (in any state) or by filter and state.

        `on_progress` is called on the client's own thread, and must not block.
        """
        return run_blocking(
            lambda: self.inner.delete(
                sequence_numbers, filter=filter, state=state, max_count=max_count, on_progress=on_progress
            )
        )

    def purge(self, state: str = "active") -> BulkProgress:
        """Delete all messages in a state (active, deferred or scheduled), except locked ones."""
        return run_blocking(lambda: self.inner.purge(state))

    # --- scheduled messages -------------------------------------------------------------------------------------------

    def change_scheduled(
        self, sequence_number: int, *, when: dt.datetime | None = None, message: BrokeredMessage | None = None
    ) -> int:
        """Change the time or the content of a scheduled message; return its new sequence number."""
        return run_blocking(lambda: self.inner.change_scheduled(sequence_number, when=when, message=message))

    def cancel_scheduled(self, *sequence_numbers: int) -> None:
        """Cancel scheduled messages. Raise MessageNotFound, and cancel none, if one of them does not exist."""
        run_blocking(lambda: self.inner.cancel_scheduled(*sequence_numbers))


def _iterate(start: Callable[[], AsyncIterator[T]]) -> Iterator[T]:
    """Yield the items of an asynchronous iterator, which runs on the background loop."""
    items = call_blocking(start)
    try:
        while True:
            try:
                item = run_blocking(items.__anext__)
            except StopAsyncIteration:
                return
            yield item
    finally:
        close = getattr(items, "aclose", None)
        if close is not None:
            run_blocking(close)
