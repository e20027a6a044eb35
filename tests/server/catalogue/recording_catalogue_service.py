"""A keeper of a catalogue on disk, whose changes are written down, and whose stores fail as a test wants."""

from __future__ import annotations

from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

from twinbus.model.limits import NamespaceLimits
from twinbus.server.catalogue.service import CatalogueService
from twinbus.server.runtime.system_clock import SystemClock
from twinbus.store.catalogue import Catalogue

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from twinbus.server.catalogue.changes import Change

STORES = 4


class RecordingCatalogueService(CatalogueService):
    """A keeper that remembers what it published."""

    def __init__(self, limits: NamespaceLimits) -> None:
        self.changes: list[Change] = []
        self.unavailable_reasons: dict[int, str] = {}
        """Of stores, by their numbers."""
        trouble = self.unavailable_reasons.get
        super().__init__(limits, SystemClock(), store_count=STORES, unavailable_reason=trouble, publish=self._record)

    async def _record(self, change: Change) -> None:
        self.changes.append(change)


@asynccontextmanager
async def open_catalogue_service(folder: Path, **limits: int) -> AsyncIterator[RecordingCatalogueService]:
    """From its opening to its closing."""
    keeper = RecordingCatalogueService(NamespaceLimits(**limits))
    await keeper.open(partial(Catalogue, folder / "catalogue.db"), STORES)
    yield keeper
    await keeper.close()
