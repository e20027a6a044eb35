"""Messages that a backlog queue withholds from its pump while their destination accepts no messages.

The queue delivers no messages for the paths of these destinations. Withheld messages keep their places in the queue and
are not deferred. While they are withheld, they cause no billed operations.

Owns: the requests that name the withheld paths to the queue (`WithheldPaths`), and the messages for one destination
that the pump had received when the queue began to withhold the later messages (`WithheldMessages`). Only one request is
in flight at a time. A request names all paths, so the last confirmed request is valid, whatever the outcome of earlier
requests. The queue forgets all paths when the pump's link ends.

Only twinbus can withhold messages. With other servers, and if the queue cannot withhold more paths, messages are
deferred instead.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from twinbus.client.pairing.failover.namespace_outages import lost_namespace
from twinbus.client.retry import ignore_failure
from twinbus.model.annotations import PATH
from twinbus.model.errors import FailureClass, ServiceBusError
from twinbus.model.path import canonical_key

if TYPE_CHECKING:
    from twinbus.client.pairing.syphon.deferral import BacklogSource
    from twinbus.client.pairing.syphon.parked_message import DeliveredParkedMessage
    from twinbus.client.receiver import MessageReceiver

log: Final = logging.getLogger(__name__)

WITHHOLD_OPERATION: Final = "twinbus:withhold"
MAX_PATHS: Final = 200
"""The maximum number of withheld paths. For each path, the pump keeps one received message to probe the destination,
and each of these messages uses up one credit of the pump's link. Messages for further destinations are deferred."""
RETRY_PAUSE_S: Final = 0.5
"""The pause between attempts to tell the queue that it should deliver the messages for a path again."""


class WithheldPaths:
    """The paths that one backlog queue withholds."""

    def __init__(self, receiver: MessageReceiver, *, is_possible: bool) -> None:
        """Create an empty set of paths; `receiver` is the pump's exclusive receiver for the queue.

        `is_possible` means that the server may support withholding.
        """
        self._receiver = receiver
        self._is_possible = is_possible
        self._paths: set[str] = set()
        self._confirmed_paths: list[str] | None = []
        """The paths that the queue withholds; None if unknown."""
        self._has_withheld = False
        self._request_lock = asyncio.Lock()

    def can_add(self, path: str) -> bool:
        """Return whether the queue can withhold the messages for this path in addition to the current paths."""
        return self._is_possible and (path in self._paths or len(self._paths) < MAX_PATHS)

    async def add(self, path: str) -> bool:
        """Ask the queue to withhold the messages for a path; return whether the queue has confirmed the request."""
        if not self.can_add(path):
            return False
        self._paths.add(path)
        return await self._send_paths() and path in self._paths

    async def remove(self, path: str) -> bool:
        """Ask the queue to deliver the messages for a path again; return False if it may still withhold them."""
        self._paths.discard(path)
        return await self._send_paths()

    async def _send_paths(self) -> bool:
        async with self._request_lock:
            paths = sorted(self._paths)
            if self._confirmed_paths == paths:
                return True
            self._confirmed_paths = None
            factory = self._receiver.factory
            body: dict[str, object] = {"property": PATH, "values": [*paths]}
            try:
                await factory.request(
                    self._receiver.path, WITHHOLD_OPERATION, body, timeout_s=factory.settings.operation_timeout_s
                )
            except ServiceBusError as error:
                self._note_failure(error)
                return False
            self._confirmed_paths, self._has_withheld = paths, True
            return True

    def _note_failure(self, error: ServiceBusError) -> None:
        if error.failure_class is FailureClass.CALLER and not self._has_withheld:
            self._is_possible, self._paths, self._confirmed_paths = (
                False,
                set(),
                [],
            )  # the server does not support the operation
        level = logging.WARNING if self._is_possible and lost_namespace(error) is None else logging.DEBUG
        log.log(level, "the request to withhold messages of '%s' failed: %s", self._receiver.path, error)


class WithheldMessages:
    """The messages for one destination while its backlog queue withholds them."""

    def __init__(self, source: BacklogSource, path: str) -> None:
        """Create the state of a destination without withheld messages.

        `path` is the path of the destination; the queue compares paths case-insensitively.
        """
        self.is_withholding = False
        """Whether messages are withheld, or a request to withhold them will follow; otherwise they are deferred."""
        self.is_confirmed = False
        """Whether the queue has confirmed that it withholds the messages."""
        self.received: list[DeliveredParkedMessage] = []
        """Received messages that are kept locked; only the oldest message after the queue has confirmed the request."""
        self.may_be_withheld = False
        """Whether a request to withhold the messages was sent."""
        self._source = source
        self._path_key = canonical_key(path)
        self._releases: list[asyncio.Future[None]] = []

    @property
    def is_possible(self) -> bool:
        """Whether the queue can withhold the messages, as far as is known."""
        return self._source.withheld_paths.can_add(self._path_key)

    def add(self, message: DeliveredParkedMessage) -> list[DeliveredParkedMessage]:
        """Keep a received message, and return the messages that this call has released.

        After the queue has confirmed that it withholds messages, only the oldest message is kept.
        """
        self.received.append(message)
        return self._release_all_but(1) if self.is_confirmed else []

    def take_oldest(self) -> list[DeliveredParkedMessage]:
        """Take the oldest received message, for a probe; return an empty list if there is none or it has expired."""
        self.received.sort(key=_sequence_number_of)
        oldest, self.received = self.received[:1], self.received[1:]
        return [message for message in oldest if self._source.restore_again(message)]  # False for an expired message

    def take_all(self) -> list[DeliveredParkedMessage]:
        """Take all received messages, oldest first."""
        messages, self.received = sorted(self.received, key=_sequence_number_of), []
        return messages

    async def begin(self) -> list[DeliveredParkedMessage] | None:
        """Ask the queue to withhold the messages, and release all received messages but the oldest.

        Return the released messages, or None if the queue does not confirm that it withholds messages.
        """
        self.may_be_withheld = True
        if not await self._source.withheld_paths.add(self._path_key):
            self.is_withholding = False
            return None
        self.is_confirmed = True
        return self._release_all_but(1)

    async def release_all(self) -> list[DeliveredParkedMessage]:
        """Release all received messages and wait for the confirmations, so that later messages do not overtake them."""
        released: list[DeliveredParkedMessage] = []
        while self.received or self._releases:
            released += self._release_all_but(0)
            await asyncio.wait(self._releases)
            self._releases = [future for future in self._releases if not future.done()]
        return released

    async def end(self) -> None:
        """Let the queue deliver all messages again, in order."""
        self.is_withholding = self.is_confirmed = self.may_be_withheld = False
        while not await self._source.withheld_paths.remove(self._path_key):  # noqa: ASYNC110  # no event signals when a retry would succeed
            await asyncio.sleep(RETRY_PAUSE_S)

    def _release_all_but(self, count: int) -> list[DeliveredParkedMessage]:
        """Release received messages to their places in the queue, except the `count` oldest messages."""
        if len(self.received) <= count:
            return []
        self.received.sort(key=_sequence_number_of)
        released, self.received = self.received[count:], self.received[:count]
        releases = self._source.release(released)
        for future in releases:
            # A message that was not released is redelivered when its lock expires or its link ends.
            future.add_done_callback(ignore_failure)
        self._releases = [future for future in self._releases if not future.done()] + releases
        return released


def _sequence_number_of(message: DeliveredParkedMessage) -> int:
    return message.sequence_number
