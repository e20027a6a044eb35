"""A hold: the lock of one receiver on one session."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from twinbus.broker.ports.consumer import Consumer


class Hold:
    """A session that a receiver has, as the receiver knows it."""

    def __init__(self, session: bytes, consumer: Consumer, until_ms: int = 0) -> None:
        """`until_ms` is the time on the wall clock until when it is locked."""
        self.session = session
        self.consumer = consumer
        self.until_ms = until_ms
        self.is_over = False
        """The receiver does not have it any more."""
