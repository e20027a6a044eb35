"""A claim: one receiver that has an entity for itself.

Owns: who has it, and who may have it next. Claims have epochs: a receiver that shows a higher one than the holder, or
the same, takes its place; one that shows a lower one is refused. While there is a claim nobody else receives; looking
without taking is not receiving.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.model.errors import EntityClaimed, LinkStolen

if TYPE_CHECKING:
    from twinbus.broker.consumer import Consumer


class Claim:
    """The claim on one entity."""

    def __init__(self) -> None:
        """Nobody has it."""
        self.holder: Consumer | None = None
        self.epoch = 0

    def check_open(self, path: str) -> None:
        """EntityClaimed if someone has it."""
        if self.holder is not None:
            raise EntityClaimed(f"'{path}' is claimed by a receiver (epoch {self.epoch}): nobody else receives from it")

    def check(self, path: str, epoch: int, *, others: bool) -> None:
        """EntityClaimed if it cannot be had with this epoch; `others` receive now without a claim."""
        if self.holder is not None and epoch < self.epoch:
            raise EntityClaimed(f"'{path}' is claimed with epoch {self.epoch}: {epoch} is lower")
        if self.holder is None and others:
            raise EntityClaimed(f"'{path}' has receivers without a claim: end them first")

    def displace(self, path: str, epoch: int) -> None:
        """Whoever has it loses it to a newer claim, and what it had under locks is free."""
        displaced, self.holder = self.holder, None
        if displaced is not None:
            displaced.entity_gone(LinkStolen(f"a receiver of '{path}' with epoch {epoch} took the place of this one"))

    def take(self, consumer: Consumer, epoch: int) -> None:
        """It is this consumer's now."""
        self.holder, self.epoch = consumer, epoch

    def give_up(self, consumer: Consumer) -> None:
        """A consumer has gone."""
        if self.holder is consumer:
            self.holder = None
