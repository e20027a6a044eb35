"""Browsing: reading an entity as a log, by sequence numbers, without locking or deleting messages.

    async with factory.create_message_browser("orders", from_sequence_number=1) as browser:
        async for message in browser: ...

Owns the browse link and the position in each fragment. Only twinbus supports browsing; `docs/browse.md` lists the
guarantees.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from twinbus.amqp.terminus import Source
from twinbus.amqp.types import Int, Symbol
from twinbus.client.events import SettledInBulk
from twinbus.client.receiver import MessageReceiver, ReceiveMode
from twinbus.model.description import FRAGMENT_SHIFT
from twinbus.model.errors import RangeSeen
from twinbus.model.times import duration_s

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import AsyncIterator

    from twinbus.client.factory import MessagingFactory
    from twinbus.model.message import BrokeredMessage

_DEFAULT_PREFETCH: int = 500


class MessageBrowser(MessageReceiver):
    """Receiver that sees each active message in a range once, in order."""

    consumes_messages = False

    def __init__(
        self,
        factory: MessagingFactory,
        path: str,
        *,
        from_sequence_number: int = 0,
        to_sequence_number: int | None = None,
        fragment: int | None = None,
        prefetch: int = _DEFAULT_PREFETCH,
    ) -> None:
        """Create a browser. Without `to_sequence_number`, the browser also returns messages that arrive later."""
        super().__init__(factory, path, ReceiveMode.RECEIVE_AND_DELETE, prefetch=prefetch)
        self._first_number = self._next_number = from_sequence_number
        self._last_number = to_sequence_number
        self._fragment = fragment
        self._last_number_by_fragment: dict[int, int] = {}
        """Last sequence number seen in each fragment."""
        self._is_range_finished = False

    async def __aiter__(self) -> AsyncIterator[BrokeredMessage]:
        """Yield messages up to `to_sequence_number`, or until the browser is closed if `to_sequence_number` is None."""
        while (
            not self.is_closed
            and not self._is_range_finished
            and (self._last_number is None or self._next_number <= self._last_number)
        ):
            message = await self.receive()
            if message is not None:
                yield message

    async def receive_batch(
        self,
        max_count: int,
        timeout: dt.timedelta | float | None = None,  # noqa: ASYNC109  # how long to wait for a message
    ) -> list[BrokeredMessage]:
        """Return up to `max_count` new messages; return an empty list at once when the range is finished.

        Messages that are delivered again after the link was reattached are left out.
        """
        limit_s = self.factory.settings.operation_timeout_s if timeout is None else duration_s(timeout)
        deadline_s = asyncio.get_running_loop().time() + limit_s
        while True:
            left_s = max(0.0, deadline_s - asyncio.get_running_loop().time())
            try:
                page = await super().receive_batch(max_count, left_s)
            except RangeSeen:
                self._is_range_finished = True
                return []
            fresh = [message for message in page if self._record_number(message.sequence_number)]
            if fresh or not page:
                return fresh

    def _record_number(self, sequence_number: int) -> bool:
        """Record a sequence number; return False if it was recorded before."""
        fragment = sequence_number >> FRAGMENT_SHIFT
        if sequence_number <= self._last_number_by_fragment.get(fragment, -1):
            return False
        self._last_number_by_fragment[fragment], self._next_number = sequence_number, sequence_number + 1
        return True

    def _source(self) -> Source:
        """Return the source of a new link, which starts after the last message seen.

        With several fragments the link starts at the first number again; `receive_batch` drops repeated messages.
        """
        is_single_fragment = self._fragment is not None or self._last_number_by_fragment.keys() <= {0}
        limits: dict[str, object] = {
            "twinbus:from-sequence-number": self._next_number if is_single_fragment else self._first_number
        }
        if self._last_number is not None:
            limits["twinbus:to-sequence-number"] = self._last_number
        if self._fragment is not None:
            limits["twinbus:fragment"] = self._fragment
        return Source(address=self.path, distribution_mode=Symbol("copy"), filter=limits)

    def _link_properties(self) -> dict[str, object]:
        """Ask the namespace to report the end of the range, since the last messages in the range may be gone."""
        return {} if self._last_number is None else {"twinbus:ends-with-range": True}

    async def positions(self) -> dict[str, int]:
        """Return the entity's id, lowest and next sequence number, as reported when the link was attached."""
        link = await self._attached_link()
        names = ("entity-id", "low-sequence-number", "next-sequence-number")
        properties = link.attached.result().properties or {}
        return {name: int(str(properties.get(f"twinbus:{name}", 0))) for name in names}

    async def complete_up_to(
        self, sequence_number: int, *, epoch: int | None = None, entity_id: int | None = None
    ) -> tuple[int, int]:
        """Complete the active messages up to a sequence number; return how many were completed and how many are locked.

        With `entity_id` (from `positions`), raise EntityNotFound if the path now belongs to another entity.
        """
        body: dict[str, object] = {"sequence-number": sequence_number}
        if self._fragment is not None:
            body["fragment"] = Int(self._fragment)
        if epoch is not None:
            body["epoch"] = epoch
        if entity_id is not None:
            body["entity-id"] = entity_id
        response = await self._request("twinbus:complete-up-to", body)
        completed, skipped = int(str(response.body.get("completed", 0))), int(str(response.body.get("skipped", 0)))
        self.factory.events.publish(SettledInBulk(self.path, "completed in bulk", completed))
        return completed, skipped
