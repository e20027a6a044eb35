"""Find messages at the end of a run: at destinations, in backlog and dead-letter queues, and refused by the spool."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.simulation.pair.messages import DUPLICATE_MARK, PARKED_AT, FoundCopy, changes
from twinbus.client.pairing.spool.record import FoundRecord, scan
from twinbus.client.pairing.spool.spool_sender import messages_of
from twinbus.model.times import milliseconds_of

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterable
    from pathlib import Path

    from tests.simulation.pair.settings import EntityPlan
    from tests.simulation.pair.simulation import PairSimulation
    from twinbus.client import BrokeredMessage

DEAD_LETTERS: Final = "$DeadLetterQueue"


async def find_arrivals(simulation: PairSimulation, plan: EntityPlan, incarnation: int) -> list[FoundCopy]:
    """Return all messages of an entity in the primary. A message that expires meanwhile is returned once."""
    before = _found_copies(
        simulation, await simulation.primary.messages(plan.receive_path), "arrived", plan.receive_path, incarnation
    )
    dead = await simulation.primary.messages(f"{plan.receive_path}/{DEAD_LETTERS}")
    expired = _found_copies(simulation, dead, "expired", plan.receive_path, incarnation)
    left = {message.sequence_number for message in await simulation.primary.messages(plan.receive_path)}
    ids = {copy.id for copy in expired}
    return [copy for copy in before if copy.order[1] in left or copy.id not in ids] + expired


async def find_parked(simulation: PairSimulation) -> list[FoundCopy]:
    """Return all messages that are still parked: late, but not lost."""
    copies: list[FoundCopy] = []
    for path in simulation.backlog_paths:
        copies += _found_copies(simulation, await simulation.secondary.messages(path), "parked", path)
    return copies


async def find_dead_letters(simulation: PairSimulation) -> list[FoundCopy]:
    """Return all messages that pumps have dead-lettered."""
    copies: list[FoundCopy] = []
    for path in simulation.backlog_paths:
        dead = await simulation.secondary.messages(f"{path}/{DEAD_LETTERS}")
        copies += _found_copies(simulation, dead, "backlog", path)
    return copies


def find_refused(folder: Path) -> list[FoundCopy]:
    """Return all messages that a spool has refused."""
    copies: list[FoundCopy] = []
    for file in sorted(folder.rglob("refused/*.spool")):
        reason = file.with_suffix(".txt").read_text()
        for part in scan(file.read_bytes(), file.name):
            if isinstance(part, FoundRecord):
                copies += [
                    FoundCopy(
                        str(message.message_id),
                        "refused",
                        "the spool",
                        (0, 0),
                        part.record.may_have_arrived,
                        reason=reason,
                    )
                    for message in messages_of(part.record)
                ]
    return copies


def _found_copies(
    simulation: PairSimulation, messages: Iterable[BrokeredMessage], where: str, destination: str, incarnation: int = 0
) -> list[FoundCopy]:
    return [_found_copy(simulation, message, where, destination, incarnation) for message in messages]


def _found_copy(
    simulation: PairSimulation, message: BrokeredMessage, where: str, destination: str, incarnation: int
) -> FoundCopy:
    name = str(message.message_id)
    sent = simulation.checker.messages_sent.get(name)
    properties = message.properties
    reason = ""
    if where != "arrived":
        reason = f"{message.dead_letter_reason}: {message.dead_letter_error_description}"
    parked_at: dt.datetime | None = properties.get(PARKED_AT)  # type: ignore[assignment]
    differences: tuple[str, ...] = ()
    if sent is not None and where in ("arrived", "expired"):
        differences = changes(sent, message, deducts=simulation.settings.deducts_parked_time)
    return FoundCopy(
        name,
        where,
        destination,
        (incarnation, message.sequence_number),
        bool(properties.get(DUPLICATE_MARK)),
        None if parked_at is None else milliseconds_of(parked_at),
        reason,
        differences,
    )
