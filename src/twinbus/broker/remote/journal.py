"""A store that another process owns: what this process knows of its state, and how much is on its way to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.broker.journal import StoreState
from twinbus.broker.remote.owner import AWAY

if TYPE_CHECKING:
    from twinbus.broker.remote.owner import Owner


class RemoteStore(StoreState):
    """What one process knows of another one's store."""

    def __init__(self, name: str, number: int, owner: Owner, *, max_pending_bytes: int) -> None:
        """Unavailable until its owner is connected. `number` is the store's."""
        super().__init__(name, max_pending_bytes)
        self.owner = owner
        self.trouble = None if owner.is_there else AWAY
        self.reported: str | None = None
        """Why the store does not work, as its owner said last."""
        owner.stores[number] = self
