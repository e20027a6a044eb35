"""A queue read as a log: by sequence numbers, without taking anything.

    async with factory.create_message_browser("orders", from_sequence_number=1) as browser:
        async for message in browser: ...

Owns: the browse link. twinbus only: `docs/browse.md` says what holds.
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
    """Sees each active message of a range once, in order."""

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
        """Without `to_sequence_number` it goes on with what arrives."""
        super().__init__(factory, path, ReceiveMode.RECEIVE_AND_DELETE, prefetch=prefetch)
        self._first_number = self._next_number = from_sequence_number
        self._last_number = to_sequence_number
        self._fragment = fragment
        self._last_number_by_fragment: dict[int, int] = {}
        """The last number of each fragment that something was seen of."""
        self._is_range_finished = False

    async def __aiter__(self) -> AsyncIterator[BrokeredMessage]:
        """All messages up to the last that was asked for; without one, for as long as the browser is open."""
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
        timeout: dt.timedelta | float | None = None,  # noqa: ASYNC109  # how long a message is waited for
    ) -> list[BrokeredMessage]:
        """As a receiver's; what a new link shows again is left out. None, and at once, when the range is over."""
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
        """Whether a message was not seen before."""
        fragment = sequence_number >> FRAGMENT_SHIFT
        if sequence_number <= self._last_number_by_fragment.get(fragment, -1):
            return False
        self._last_number_by_fragment[fragment], self._next_number = sequence_number, sequence_number + 1
        return True

    def _source(self) -> Source:
        """A link that is lost is attached anew behind what was seen; of several fragments, at the beginning."""
        is_of_one = self._fragment is not None or self._last_number_by_fragment.keys() <= {0}
        limits: dict[str, object] = {
            "twinbus:from-sequence-number": self._next_number if is_of_one else self._first_number
        }
        if self._last_number is not None:
            limits["twinbus:to-sequence-number"] = self._last_number
        if self._fragment is not None:
            limits["twinbus:fragment"] = self._fragment
        return Source(address=self.path, distribution_mode=Symbol("copy"), filter=limits)

    def _link_properties(self) -> dict[str, object]:
        """Of the last messages of a range some may be gone: the namespace says when it is over."""
        return {} if self._last_number is None else {"twinbus:ends-with-range": True}

    async def positions(self) -> dict[str, int]:
        """What the entity said when the link was attached: its id, its lowest number and the next one."""
        link = await self._attached_link()
        names = ("entity-id", "low-sequence-number", "next-sequence-number")
        properties = link.attached.result().properties or {}
        return {name: int(str(properties.get(f"twinbus:{name}", 0))) for name in names}

    async def complete_up_to(
        self, sequence_number: int, *, epoch: int | None = None, entity_id: int | None = None
    ) -> tuple[int, int]:
        """Complete the active messages up to a number: how many were, and how many somebody has.

        With `entity_id` (`positions`) nothing is completed in another entity that has the path by now: EntityNotFound.
        """
        body: dict[str, object] = {"sequence-number": sequence_number}
        if self._fragment is not None:
            body["fragment"] = Int(self._fragment)
        if epoch is not None:
            body["epoch"] = epoch
        if entity_id is not None:
            body["entity-id"] = entity_id
        answer = await self._request("twinbus:complete-up-to", body)
        completed, skipped = int(str(answer.body.get("completed", 0))), int(str(answer.body.get("skipped", 0)))
        self.factory.events.publish(SettledInBulk(self.path, "completed in bulk", completed))
        return completed, skipped
