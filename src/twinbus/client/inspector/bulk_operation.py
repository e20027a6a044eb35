"""Bulk operations: resubmit, move or delete many messages, in requests of limited size.

Owns the size of the requests, the search for messages that cannot be handled, and the progress. If a request fails, the
messages of earlier requests have been handled, and a repeated operation continues with the remaining messages.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from twinbus.model.description import FRAGMENT_SHIFT
from twinbus.model.errors import InvalidArgument, MessageNotFound

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable
    from typing import TypeAlias

    from twinbus.client.inspector.message_inspector import MessageInspector

    OnProgress: TypeAlias = "Callable[[BulkProgress], None]"
    RunSome: TypeAlias = Callable[[list[int]], Awaitable[list[int] | None]]


@dataclass(slots=True)
class BulkProgress:
    """What a long operation has done so far."""

    done_count: int = 0
    """Messages that were resubmitted, moved or deleted."""
    scanned_count: int = 0
    """Messages that were searched; 0 if the operation got sequence numbers."""
    skipped: list[int] = field(default_factory=list)
    """Sequence numbers of messages that a receiver has locked, or that do not exist in the expected state."""
    skipped_count: int = 0
    """Number of skipped messages."""
    unavailable_fragments: set[int] = field(default_factory=set)
    """Fragments that were not searched."""

    def skip(self, sequence_numbers: Iterable[int]) -> None:
        """Add skipped messages."""
        numbers = list(sequence_numbers)
        self.skipped += numbers
        self.skipped_count += len(numbers)


class BulkOperation:
    """An operation on many messages, in requests of limited size."""

    def __init__(
        self,
        inspector: MessageInspector,
        run_some: RunSome,
        request_size: int,
        on_progress: OnProgress | None,
    ) -> None:
        """Create an operation; `run_some` handles the messages of one request, and may return skipped messages."""
        self._inspector = inspector
        self._run_some = run_some
        self._request_size = request_size
        self._on_progress = on_progress
        self._progress = BulkProgress()

    async def run(
        self, sequence_numbers: Iterable[int] | None, expression: str | None, state: str | None, max_count: int | None
    ) -> BulkProgress:
        """Run the operation on these messages, or on at most `max_count` messages that a search finds."""
        progress = self._progress
        if sequence_numbers is not None:
            if expression is not None:
                raise InvalidArgument("give sequence numbers or a filter, not both")
            await self._run_all(list(dict.fromkeys(sequence_numbers))[:max_count])
            return progress
        remaining = max_count
        async for page in self._inspector.search_pages(expression, state=state, include_body=False):
            numbers = [message.sequence_number for message in page.messages][:remaining]
            progress.scanned_count += page.scanned_count
            progress.unavailable_fragments.update(page.unavailable_fragments)
            await self._run_all(numbers)
            if not numbers:
                self._report()
            if remaining is not None:
                remaining -= len(numbers)
                if remaining <= 0:
                    break
        return progress

    async def _run_all(self, sequence_numbers: list[int]) -> None:
        """Handle messages fragment by fragment: within a fragment, a request handles all of its messages or none."""
        by_fragment: dict[int, list[int]] = {}
        for number in sequence_numbers:
            by_fragment.setdefault(number >> FRAGMENT_SHIFT, []).append(number)
        for numbers in by_fragment.values():
            for start in range(0, len(numbers), self._request_size):
                await self._run_request(numbers[start : start + self._request_size])
                self._report()

    async def _run_request(self, numbers: list[int]) -> None:
        try:
            skipped = await self._run_some(numbers) or []
        except MessageNotFound:
            if len(numbers) == 1:
                self._progress.skip(numbers)
                return
            middle = len(numbers) // 2  # split the request, to find the messages that are locked or gone
            await self._run_request(numbers[:middle])
            await self._run_request(numbers[middle:])
            return
        self._progress.skip(skipped)
        self._progress.done_count += len(numbers) - len(skipped)

    def _report(self) -> None:
        if self._on_progress is not None:
            self._on_progress(self._progress)
