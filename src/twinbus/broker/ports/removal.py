"""Messages to be deleted in bulk, and what became of that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from twinbus.broker.record import enqueued_of, session_of
from twinbus.model.errors import ServiceBusError

READ_TOGETHER: Final = 100
"""Records that are read at once: of the largest, they are 25 MB. Dead letters that are resubmitted together are read
together, so there can be no more of them."""
FAR: Final = 2**63


class Wanted:
    """Which messages are to go."""

    __slots__ = ("before_ms", "most", "session", "up_to")

    def __init__(
        self, *, most: int = FAR, up_to: int = FAR, before_ms: int = FAR, session: bytes | None = None
    ) -> None:
        """So many at most, up to this sequence number, enqueued before this time, of this session."""
        self.most = most
        self.up_to = up_to
        self.before_ms = before_ms
        self.session = session

    def includes(self, record: bytes) -> bool:
        """This message is to go."""
        if self.session is not None and session_of(record) != self.session:
            return False
        return enqueued_of(record) < self.before_ms


class Outcome:
    """What became of it."""

    __slots__ = ("removed", "skipped")

    def __init__(self) -> None:
        """Nothing yet."""
        self.removed = 0
        self.skipped = 0
        """Those that someone has."""


Done: TypeAlias = Callable[[Outcome | ServiceBusError], None]
