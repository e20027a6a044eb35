"""A summary of the reports from paired clients, for each primary.

Owns the sums. The reports themselves are in `server.paired_clients`; their fields beyond the required ones may be
missing or have any type, because other clients may report, too.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import msgspec

from twinbus.model.path import canonical_key
from twinbus.model.status import PairingStatus

if TYPE_CHECKING:
    from collections.abc import Mapping

    from twinbus.server.paired_clients.report_store import PairingReports

PAGE_SIZE: Final = 500


class _Sum:
    def __init__(self, primary: str) -> None:
        self.primary = primary
        self.clients = self.unprotected = self.failed_over = self.spooled = 0

    def add(self, report: Mapping[str, Any]) -> None:
        self.clients += 1
        self.unprotected += report.get("is_protected") is False
        entities = report.get("entities")
        for entity in entities if isinstance(entities, list) else []:
            self.failed_over += isinstance(entity, dict) and entity.get("state") == "failed over"
        spool = report.get("spool")
        count = spool.get("count") if isinstance(spool, dict) else None
        self.spooled += count if isinstance(count, int) and count > 0 else 0


async def summarise(pairing_reports: PairingReports) -> list[PairingStatus]:
    """Return the summaries, in order of primary."""
    sums: dict[str, _Sum] = {}
    skip: int | None = 0
    while skip is not None:
        page = await pairing_reports.read(lambda _: True, skip=skip, top=PAGE_SIZE)
        for content in page.reports:
            report = msgspec.json.decode(content)
            primary = str(report.get("primary"))
            sums.setdefault(canonical_key(primary), _Sum(primary)).add(report)
        skip = page.next
        await asyncio.sleep(0)  # let other work run between pages, because a report may have 64 KB
    return [
        PairingStatus(
            primary=one.primary,
            clients=one.clients,
            unprotected_clients=one.unprotected,
            failed_over_entities=one.failed_over,
            spooled_messages=one.spooled,
        )
        for _, one in sorted(sums.items())
    ]
