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


class Witness:
    """Hears of everything, and makes nothing of it: a subclass takes what it needs."""

    def sent(
        self,
        path: str,
        messages: Sequence[BrokeredMessage],
        *,
        scheduled: Sequence[int] = (),
        transaction: str | None = None,
    ) -> None:
        """The entity has them: for later, under these numbers, or once the transaction is committed."""

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
