"""Blocking transactions. What they do is in `twinbus.client.transaction`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from twinbus.client.sync.background import wait

if TYPE_CHECKING:
    from types import TracebackType

    from twinbus.client import transaction
    from twinbus.client.transaction import TransactionState


class Transaction:
    """One transaction. It is declared with its first operation; leaving its block commits, an exception rolls back."""

    def __init__(self, inner: transaction.Transaction) -> None:
        """Made by a factory."""
        self.inner = inner

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        wait(lambda: self.inner.__aexit__(kind, error, traceback))

    @property
    def state(self) -> TransactionState:
        """What became of it."""
        return self.inner.state

    def commit(self) -> None:
        """All of it, now; TransactionRolledBack, and nothing of it, if that cannot be."""
        wait(self.inner.commit)

    def rollback(self) -> None:
        """Nothing of it: what was settled in it is locked as before."""
        wait(self.inner.rollback)


def inner_of(given: Transaction | None) -> transaction.Transaction | None:
    """The one that does the work."""
    return None if given is None else given.inner
