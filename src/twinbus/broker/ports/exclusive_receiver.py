"""Exclusive receivers: receivers that claim an entity for themselves.

Owns the present holder of an entity, the rules for the next holder, and the locks given to each holder. A claim has an
epoch: a receiver with the same or a higher epoch displaces the holder, and a receiver with a lower epoch is refused.
While an entity is claimed, no other receiver can attach; browsing is still possible.

The next holder gets the messages that the previous holder had locked, including deferred messages, even if the previous
holder closed its link itself. Otherwise, the messages of a host that died would stay locked, and the host that takes
over the dead host's work would skip these messages. They are redelivered with a delivery count of at least 1
(`redelivery`), because the previous holder may have processed them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.model.errors import EntityClaimed, LinkStolen

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinbus.broker.ports.consumer import Consumer
    from twinbus.broker.ports.fragment import FragmentPort


class ExclusiveReceiver:
    """The claim of an exclusive receiver on one entity, if there is such a claim."""

    def __init__(self) -> None:
        """Create the state of an entity without an exclusive receiver."""
        self.holder: Consumer | None = None
        self.epoch = 0
        self._locks: dict[FragmentPort, ExclusiveLocks] = {}
        """Locks given to the present or last holder, by fragment. The next holder may use other fragments: a receiver
        in another process uses only the fragments in this process."""

    def check_free(self, path: str) -> None:
        """Raise EntityClaimed if the entity has an exclusive receiver."""
        if self.holder is not None:
            raise EntityClaimed(f"'{path}' is claimed by a receiver (epoch {self.epoch}): no other receiver can attach")

    def check_epoch(self, path: str, epoch: int, *, has_other_receivers: bool, only_if_free: bool = False) -> None:
        """Raise EntityClaimed if the entity cannot be claimed with this epoch.

        `has_other_receivers` means that non-exclusive receivers are attached. With `only_if_free`, no holder is
        displaced: a host that stopped responding must not use its higher epoch to take the entity back from the host
        that took over its work.
        """
        if self.holder is not None and only_if_free:
            raise EntityClaimed(f"'{path}' is not free: it is claimed by a receiver (epoch {self.epoch})")
        if self.holder is not None and epoch < self.epoch:
            raise EntityClaimed(f"'{path}' is claimed with epoch {self.epoch}: epoch {epoch} is lower")
        if self.holder is None and has_other_receivers:
            raise EntityClaimed(f"'{path}' has receivers that are not exclusive: close them first")

    def displace(self, path: str, epoch: int, fragments: Sequence[FragmentPort]) -> None:
        """Detach the holder for a newer claim, and requeue the messages locked by the present or last holder."""
        displaced = self.holder
        self._vacate()
        if displaced is not None:
            displaced.force_detach(LinkStolen(f"a receiver of '{path}' with epoch {epoch} displaced this receiver"))
        for fragment in fragments:
            locks = self._locks.get(fragment)
            if locks is not None:  # None if the fragment had no holder before
                locks.reclaim()

    def assign(self, consumer: Consumer, epoch: int, fragments: Sequence[FragmentPort]) -> None:
        """Make a consumer the holder, and record the locks that these fragments give to the holder from now on."""
        self.holder, self.epoch = consumer, epoch
        self._locks = {}
        for fragment in fragments:
            locks = fragment.track_exclusive_locks()
            if locks is not None:
                self._locks[fragment] = locks

    def release(self, consumer: Consumer) -> None:
        """End the claim of a consumer that has detached, if the consumer is the holder."""
        if self.holder is consumer:
            self._vacate()

    def _vacate(self) -> None:
        if self.holder is not None:
            for locks in self._locks.values():
                locks.close()
        self.holder = None


class ExclusiveLocks:
    """Locks that one fragment gave to an exclusive receiver; implemented by `broker.fragment`."""

    def close(self) -> None:
        """Stop recording: later locks belong to other receivers."""
        raise NotImplementedError

    def reclaim(self) -> None:
        """Requeue the messages that are still locked, because their receiver will not return."""
        raise NotImplementedError
