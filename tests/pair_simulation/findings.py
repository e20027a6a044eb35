"""Where messages are found in the end: at their destinations, in dead-letter queues, and in what a spool put aside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.pair_simulation.letters import MARK, PARKED_AT, Copy, changes
from twinbus.client.pairing.spool_record import Found, scan
from twinbus.client.pairing.unspooling import messages_of
from twinbus.model.times import milliseconds_of

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterable
    from pathlib import Path

    from tests.pair_simulation.settings import EntityPlan
    from tests.pair_simulation.world import World
    from twinbus.client import BrokeredMessage

DEAD_LETTERS: Final = "$DeadLetterQueue"


async def arrivals(world: World, plan: EntityPlan, incarnation: int) -> list[Copy]:
    """All messages that an entity of the primary holds. One that expires meanwhile is found once."""
    before = _copies(world, await world.primary.messages(plan.source), "arrived", plan.source, incarnation)
    dead = await world.primary.messages(f"{plan.source}/{DEAD_LETTERS}")
    expired = _copies(world, dead, "expired", plan.source, incarnation)
    left = {message.sequence_number for message in await world.primary.messages(plan.source)}
    ids = {copy.id for copy in expired}
    return [copy for copy in before if copy.order[1] in left or copy.id not in ids] + expired


async def left_behind(world: World) -> list[Copy]:
    """All messages that are still parked: late, but not lost."""
    found: list[Copy] = []
    for path in world.backlog_paths:
        found += _copies(world, await world.secondary.messages(path), "parked", path)
    return found


async def dead_letters(world: World) -> list[Copy]:
    """All messages that pumps have dead-lettered."""
    found: list[Copy] = []
    for path in world.backlog_paths:
        dead = await world.secondary.messages(f"{path}/{DEAD_LETTERS}")
        found += _copies(world, dead, "backlog", path)
    return found


def refused(folder: Path) -> list[Copy]:
    """All messages that a spool has put aside."""
    found: list[Copy] = []
    for file in sorted(folder.rglob("refused/*.spool")):
        reason = file.with_suffix(".txt").read_text()
        for part in scan(file.read_bytes(), file.name):
            if isinstance(part, Found):
                found += [
                    Copy(
                        str(one.message_id), "refused", "the spool", (0, 0), part.record.may_have_arrived, reason=reason
                    )
                    for one in messages_of(part.record)
                ]
    return found


def _copies(
    world: World, messages: Iterable[BrokeredMessage], where: str, home: str, incarnation: int = 0
) -> list[Copy]:
    return [_copy(world, message, where, home, incarnation) for message in messages]


def _copy(world: World, message: BrokeredMessage, where: str, home: str, incarnation: int) -> Copy:
    name = str(message.message_id)
    letter = world.ledger.letters.get(name)
    properties = message.properties
    reason = ""
    if where != "arrived":
        reason = f"{message.dead_letter_reason}: {message.dead_letter_error_description}"
    parked_at: dt.datetime | None = properties.get(PARKED_AT)  # type: ignore[assignment]
    told: tuple[str, ...] = ()
    if letter is not None and where in ("arrived", "expired"):
        told = changes(letter, message, deducts=world.settings.deducts)
    return Copy(
        name,
        where,
        home,
        (incarnation, message.sequence_number),
        bool(properties.get(MARK)),
        None if parked_at is None else milliseconds_of(parked_at),
        reason,
        told,
    )
