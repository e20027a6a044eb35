"""A claim: one receiver that has an entity for itself.

Owns: who has it, who may have it next, and which locks are of its time. Claims have epochs: a receiver that shows a
higher one than the holder, or the same, takes its place; one that shows a lower one is refused. While there is a claim
nobody else receives; looking without taking is not receiving.

Who takes a place gets what the one before it had under locks, deferred messages too, and also if that one has gone
by itself: a host that died must not keep messages from the next one, which would go through the queue without them.
These messages come with a delivery count of at least 1 (`redelivery`): the receiver before may have worked on them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.model.errors import EntityClaimed, LinkStolen

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinbus.broker.ports.consumer import Consumer
    from twinbus.broker.ports.fragment import FragmentPort


class ExclusiveReceiver:
    """The claim on one entity."""

    def __init__(self) -> None:
        """Nobody has it."""
        self.holder: Consumer | None = None
        self.epoch = 0
        self._locks: dict[FragmentPort, ExclusiveLocks] = {}
        """The locks of its time, of each fragment. Who has it next may have more fragments, or less: a receiver of
        another process has those that are here."""

    def check_free(self, path: str) -> None:
        """EntityClaimed if someone has it."""
        if self.holder is not None:
            raise EntityClaimed(f"'{path}' is claimed by a receiver (epoch {self.epoch}): nobody else receives from it")

    def check_epoch(self, path: str, epoch: int, *, has_other_receivers: bool, only_if_free: bool = False) -> None:
        """EntityClaimed if it cannot be had with this epoch; `others` receive now without a claim.

        With `if_free` it can be had from nobody: a host that had it and fell silent must not take it back, by its
        higher epoch, from the host that went on with its work.
        """
        if self.holder is not None and only_if_free:
            raise EntityClaimed(f"'{path}' is claimed by a receiver (epoch {self.epoch}): it is not free")
        if self.holder is not None and epoch < self.epoch:
            raise EntityClaimed(f"'{path}' is claimed with epoch {self.epoch}: {epoch} is lower")
        if self.holder is None and has_other_receivers:
            raise EntityClaimed(f"'{path}' has receivers without a claim: end them first")

    def displace(self, path: str, epoch: int, fragments: Sequence[FragmentPort]) -> None:
        """Whoever has it loses it to a newer claim. What it, or the last one that had it, had under locks is free."""
        displaced = self.holder
        self._vacate()
        if displaced is not None:
            displaced.force_detach(LinkStolen(f"a receiver of '{path}' with epoch {epoch} took the place of this one"))
        for fragment in fragments:
            span = self._locks.get(fragment)
            if span is not None:  # else nobody had it before
                span.reclaim()

    def assign(self, consumer: Consumer, epoch: int, fragments: Sequence[FragmentPort]) -> None:
        """It is this consumer's now, and so are the locks that are given from now on."""
        self.holder, self.epoch = consumer, epoch
        self._locks = {}
        for fragment in fragments:
            span = fragment.track_exclusive_locks()
            if span is not None:
                self._locks[fragment] = span

    def release(self, consumer: Consumer) -> None:
        """A consumer has gone."""
        if self.holder is consumer:
            self._vacate()

    def _vacate(self) -> None:
        if self.holder is not None:
            for span in self._locks.values():
                span.close()
        self.holder = None


class ExclusiveLocks:
    """The locks that one fragment gave while it had an exclusive receiver; the fragment implements it."""

    def close(self) -> None:
        """End it: later locks are not of it."""
        raise NotImplementedError

    def reclaim(self) -> None:
        """Return the messages of locks that are still there: their receiver is gone for good."""
        raise NotImplementedError
