"""The judgement at the end of a run: everything that is there is given to the ledger, with what excuses it.

The promises are those of `tests.ledger.pair`; their kinds are written in capitals here. A message may be dead-lettered
in a backlog queue because its time to live is over: that time runs while it is parked if `deduct_parked_time` is on.

Other problems are found while a run lasts: DIED (a task or callback raised), ERROR (a send raised something that is no
ServiceBusError), LATE (a send outlasted its time-out), STUCK (messages were not drained, or a program not closed,
within a bounded time after the last outage).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.pair_simulation.letters import Outcome

if TYPE_CHECKING:
    from tests.pair_simulation.letters import Copy, Letter
    from tests.pair_simulation.world import World


def check(world: World) -> None:
    """Find all problems in what is there in the end."""
    ledger = world.ledger
    for letter in ledger.letters.values():
        letter.record.may_be_missing = letter.is_doomed or _is_to_come(world, letter)
        if letter.outcome is Outcome.PENDING:
            world.problem("STUCK", f"the send of {letter} has not ended")
    for copies in ledger.places.values():
        for copy in copies:
            _find(world, copy)
    for problem in ledger.close():
        kind, _, text = problem.partition(": ")
        world.problem(kind.upper(), text)
    ledger.paths["extra copies"] += ledger.duplicates.total()
    ledger.paths["marks on the only copy"] += ledger.marked_alone
    ledger.paths["order compared"] += ledger.ordered


def _find(world: World, copy: Copy) -> None:
    ledger, letter = world.ledger, world.ledger.letters.get(copy.id)
    ledger.paths["arrived from a backlog queue"] += copy.parked_at_ms is not None
    if copy.where == "parked":
        ledger.find_parked(copy.id, copy.home, is_marked=copy.is_marked)
    elif copy.where in ("backlog", "refused"):
        ledger.paths["dead-lettered or put aside"] += 1
        is_excused = copy.where == "backlog" and letter is not None and _has_expired(world, letter, copy)
        ledger.find_dead(copy.id, copy.home, copy.reason, is_marked=copy.is_marked, is_excused=is_excused)
    else:
        incarnation, sequence_number = copy.order
        ledger.find(
            copy.id,
            copy.home,
            sequence_number,
            is_marked=copy.is_marked,
            parked_at_ms=copy.parked_at_ms,
            incarnation=incarnation,
            is_expired=copy.where == "expired",
            differences=copy.changes,
        )


def _is_to_come(world: World, letter: Letter) -> bool:
    """A topic holds it, for its subscription to get it later: it was scheduled by a clock that was far ahead."""
    plan = next(plan for plan in world.settings.entities if plan.path == letter.path)
    return plan.is_topic and letter.due_ms is not None and letter.due_ms > world.primary.clock.wall_ms()


def _has_expired(world: World, letter: Letter, copy: Copy) -> bool:
    """Whether its time can have been over while it was parked, by the one clock that counts: the secondary's."""
    if letter.ttl_s is None or not world.settings.deducts or not copy.reason.startswith("TTLExpired"):
        return False
    # No sender knows when a backlog queue stored a message that it did not confirm.
    parked_ms = letter.parked_at_ms or letter.begun_ms
    return max(letter.due_ms or 0, parked_ms) + 1000 * letter.ttl_s <= world.latest_secondary_ms
