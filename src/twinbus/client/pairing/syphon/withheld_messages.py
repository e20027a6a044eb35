"""Messages that a backlog queue withholds from its pump while their destination accepts nothing.

The queue skips them, so they stay in their places, and are neither received nor deferred nor charged while they wait.

Owns: which paths the queue is told to withhold, one request at a time (`Withholding`); and the messages of one
destination that are in hand meanwhile (`WithheldMessages`). A request names all paths, so the last one that is answered
holds, whatever became of those before. The queue forgets all paths when the pump's link ends.

Only twinbus can withhold messages: with another server, and for what cannot be withheld, messages are deferred.
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
"""Of each destination one message is kept to probe with, which takes some of the pump's credit. With more destinations
that accept nothing, messages of the others are deferred."""
RETRY_PAUSE_S: Final = 0.5
"""Between requests to deliver messages, until one succeeds."""


class WithheldPaths:
    """The paths that one backlog queue withholds."""

    def __init__(self, receiver: MessageReceiver, *, is_possible: bool) -> None:
        """`receiver` has the queue for itself. `is_possible`: the server may be able to withhold messages."""
        self._receiver = receiver
        self._is_possible = is_possible
        self._paths: set[str] = set()
        self._confirmed_paths: list[str] | None = []
        """What the queue withholds; None if that is not known."""
        self._has_withheld = False
        self._request_lock = asyncio.Lock()

    def can_add(self, path: str) -> bool:
        """Tell whether messages for a path can be withheld, too."""
        return self._is_possible and (path in self._paths or len(self._paths) < MAX_PATHS)

    async def add(self, path: str) -> bool:
        """Withhold messages for a path; False if the queue may not do so."""
        if not self.can_add(path):
            return False
        self._paths.add(path)
        return await self._send_paths() and path in self._paths

    async def remove(self, path: str) -> bool:
        """Have messages for a path delivered again; False if the queue may still withhold them."""
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
            )  # the server does not know the operation
        level = logging.WARNING if self._is_possible and lost_namespace(error) is None else logging.DEBUG
        log.log(level, "'%s' was not told which messages to withhold: %s", self._receiver.path, error)


class WithheldMessages:
    """The messages of one destination, while its backlog queue withholds them."""

    def __init__(self, source: BacklogSource, path: str) -> None:
        """None is withheld. `path` is the destination's: the queue compares paths without regard to case."""
        self.is_withholding = False
        """Messages are withheld, or will be in a moment; else they are deferred."""
        self.is_confirmed = False
        """The queue has confirmed that it withholds them."""
        self.received: list[DeliveredParkedMessage] = []
        """Messages that were received: only the oldest one, once the queue has confirmed."""
        self.may_be_withheld = False
        """The queue may withhold them: it was told to."""
        self._source = source
        self._path_key = canonical_key(path)
        self._releases: list[asyncio.Future[None]] = []

    @property
    def is_possible(self) -> bool:
        """The queue can withhold them, as far as is known."""
        return self._source.withheld_paths.can_add(self._path_key)

    def add(self, message: DeliveredParkedMessage) -> list[DeliveredParkedMessage]:
        """Keep a message, if none is older and the queue withholds the others. Returns those that were given back."""
        self.received.append(message)
        return self._release_all_but(1) if self.is_confirmed else []

    def take_oldest(self) -> list[DeliveredParkedMessage]:
        """The message to probe the destination with, if there is one."""
        self.received.sort(key=_sequence_number_of)
        oldest, self.received = self.received[:1], self.received[1:]
        return [parcel for parcel in oldest if self._source.restore_again(parcel)]  # it may have waited for long

    def take_all(self) -> list[DeliveredParkedMessage]:
        """The messages in hand, oldest first."""
        taken, self.received = sorted(self.received, key=_sequence_number_of), []
        return taken

    async def begin(self) -> list[DeliveredParkedMessage] | None:
        """Have messages withheld, and give back all but the oldest: those; None if the queue may not withhold them."""
        self.may_be_withheld = True
        if not await self._source.withheld_paths.add(self._path_key):
            self.is_withholding = False
            return None
        self.is_confirmed = True
        return self._release_all_but(1)

    async def release_all(self) -> list[DeliveredParkedMessage]:
        """Give back all messages, and wait until they are in their places: later ones would overtake them otherwise."""
        given_back: list[DeliveredParkedMessage] = []
        while self.received or self._releases:
            given_back += self._release_all_but(0)
            await asyncio.wait(self._releases)
            self._releases = [future for future in self._releases if not future.done()]
        return given_back

    async def end(self) -> None:
        """Have all messages delivered, in order."""
        self.is_withholding = self.is_confirmed = self.may_be_withheld = False
        while not await self._source.withheld_paths.remove(self._path_key):  # noqa: ASYNC110  # nobody tells when it would succeed
            await asyncio.sleep(RETRY_PAUSE_S)

    def _release_all_but(self, count: int) -> list[DeliveredParkedMessage]:
        """Release messages to their places, except the oldest so many."""
        if len(self.received) <= count:
            return []
        self.received.sort(key=_sequence_number_of)
        given_back, self.received = self.received[count:], self.received[:count]
        releases = self._source.release(given_back)
        for future in releases:
            # A message that was not released comes again when its lock is over, or its link.
            future.add_done_callback(ignore_failure)
        self._releases = [future for future in self._releases if not future.done()] + releases
        return given_back


def _sequence_number_of(message: DeliveredParkedMessage) -> int:
    return message.sequence_number
