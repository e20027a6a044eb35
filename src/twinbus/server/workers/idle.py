"""Entities that delete themselves when nobody uses them, where several processes serve.

Owns: when one is deleted. Each worker knows for how long nobody used an entity by way of it; one that all of them say
so of is idle. While a worker is down nothing is deleted: who used an entity by way of it is about to come back.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from twinbus.model.description import FOREVER_MS
from twinbus.model.errors import ServiceBusError
from twinbus.server.entities import IDLE_LOOK_S

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from twinbus.server.keeper import Keeper

log: Final = logging.getLogger(__name__)


async def delete_idle(keeper: Keeper, ask: Callable[[], Awaitable[list[dict[int, float]] | None]]) -> None:
    """Look again and again, for ever. `ask` gets what each worker tells, by the ids of entities."""
    while True:
        await asyncio.sleep(IDLE_LOOK_S)
        await look_once(keeper, ask)


async def look_once(keeper: Keeper, ask: Callable[[], Awaitable[list[dict[int, float]] | None]]) -> None:
    """Delete those that are idle now."""
    limits_s = {
        known.row.id: known.description.auto_delete_on_idle_ms / 1000
        for known in keeper.entities.values()
        if known.description.auto_delete_on_idle_ms < FOREVER_MS
    }
    answers = await ask() if limits_s else None
    if answers is None:
        return
    for known in list(keeper.entities.values()):
        row, limit_s = known.row, limits_s.get(known.row.id)
        if limit_s is None or min(answer.get(row.id, 0.0) for answer in answers) < limit_s:
            continue
        try:
            await keeper.delete(row.path)
        except ServiceBusError as error:  # with its topic, or then at a later look
            log.debug("an idle entity was not deleted: %s", error, extra={"path": row.path})
        else:
            log.info("%s was deleted: it was idle", row.kind, extra={"path": row.path, "idle_s": limit_s})
