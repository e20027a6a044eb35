"""A catalogue service on disk that records its changes, and whose stores a test can make unavailable."""

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
    """A catalogue service that records the changes that it publishes."""

    def __init__(self, limits: NamespaceLimits) -> None:
        self.changes: list[Change] = []
        self.unavailable_reasons: dict[int, str] = {}
        """By store number."""
        unavailable_reason_of = self.unavailable_reasons.get
        super().__init__(
            limits, SystemClock(), store_count=STORES, unavailable_reason=unavailable_reason_of, publish=self._record
        )

    async def _record(self, change: Change) -> None:
        self.changes.append(change)


@asynccontextmanager
async def open_catalogue_service(folder: Path, **limits: int) -> AsyncIterator[RecordingCatalogueService]:
    """Open a catalogue service, and close it at the end."""
    service = RecordingCatalogueService(NamespaceLimits(**limits))
    await service.open(partial(Catalogue, folder / "catalogue.db"), STORES)
    yield service
    await service.close()
