"""Who is told what became of messages: a journal, or metrics.

Owns: the questions that senders and receivers answer by themselves. A factory has a tuple of witnesses, usually empty;
each is called in the loop and must not wait, nor raise. What happens between the factories of a pair is told by the
pair's events.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from twinbus.model.message import BrokeredMessage

log: Final = logging.getLogger(__name__)

FROM_SPOOL: Final = "from the spool"
"""The reason for which a message is sent or parked that the application has sent before: then it was spooled."""


class Witness:
    """Hears of everything, and makes nothing of it: a subclass takes what it needs."""

    def sent(
        self,
        path: str,
        messages: Sequence[BrokeredMessage],
        *,
        scheduled: Sequence[int] = (),
        transaction: str | None = None,
        is_from_spool: bool = False,
    ) -> None:
        """The entity has them: for later, under these numbers, or once the transaction is committed.

        `is_from_spool`: the application has sent them before, and they were kept on the local disk.
        """

    def failed(self, path: str, messages: Sequence[BrokeredMessage], error: BaseException) -> None:
        """A send of them was given up."""

    def settled(
        self,
        path: str,
        message: BrokeredMessage,
        how: str,
        *,
        transaction: str | None = None,
        error: BaseException | None = None,
    ) -> None:
        """A receiver said what becomes of a message: completed, abandoned... and, with `error`, was not heard."""

    def receiving(self, path: str) -> None:
        """A receiver begins to take messages of an entity."""

    def deleted(self, path: str, how: str, count: int) -> None:
        """So many messages were deleted, or completed, without a word which."""

    def cancelled(self, path: str, sequence_numbers: Sequence[int]) -> None:
        """Scheduled messages were taken back."""

    def transaction_over(self, transaction: str, outcome: str) -> None:
        """What was sent and settled in it has happened, has not, or nobody knows."""


def tell(witnesses: Iterable[Witness], about: Callable[[Witness], None]) -> None:
    """Tell all of them. A witness's fault is its own: what it was told of has happened."""
    for witness in witnesses:
        try:
            about(witness)
        except Exception:
            log.exception("a witness failed: %r", witness)
