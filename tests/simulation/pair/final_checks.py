"""The judgement at the end of a run: everything that is there is given to the ledger, with what excuses it.

The promises are those of `tests.support.delivery_checker.pair_checker`; their kinds are written in capitals here. A
message may be dead-lettered
in a backlog queue because its time to live is over: that time runs while it is parked if `deduct_parked_time` is on.

Other problems are found while a run lasts: DIED (a task or callback raised), ERROR (a send raised something that is no
ServiceBusError), LATE (a send outlasted its time-out), STUCK (messages were not drained, or a program not closed,
within a bounded time after the last outage).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.pair.messages import Outcome

if TYPE_CHECKING:
    from tests.simulation.pair.messages import FoundCopy, SimulatedMessage
    from tests.simulation.pair.simulation import PairSimulation


def check_all(simulation: PairSimulation) -> None:
    """Find all problems in what is there in the end."""
    ledger = simulation.checker
    for letter in ledger.messages_sent.values():
        letter.record.may_be_missing = letter.may_be_deleted or _is_pending(simulation, letter)
        if letter.outcome is Outcome.PENDING:
            simulation.add_problem("STUCK", f"the send of {letter} has not ended")
    for copies in ledger.found_copies.values():
        for copy in copies:
            _find(simulation, copy)
    for problem in ledger.finish():
        kind, _, text = problem.partition(": ")
        simulation.add_problem(kind.upper(), text)
    ledger.path_counts["extra copies"] += ledger.duplicates.total()
    ledger.path_counts["marks on the only copy"] += ledger.marked_single_count
    ledger.path_counts["order compared"] += ledger.order_checks


def _find(simulation: PairSimulation, copy: FoundCopy) -> None:
    ledger, letter = simulation.checker, simulation.checker.messages_sent.get(copy.id)
    ledger.path_counts["arrived from a backlog queue"] += copy.parked_at_ms is not None
    if copy.found_in == "parked":
        ledger.found_parked(copy.id, copy.entity, is_marked_duplicate=copy.is_marked_duplicate)
    elif copy.found_in in ("backlog", "refused"):
        ledger.path_counts["dead-lettered or put aside"] += 1
        is_excused = copy.found_in == "backlog" and letter is not None and _has_expired(simulation, letter, copy)
        ledger.found_dead_lettered(
            copy.id,
            copy.entity,
            copy.reason,
            is_marked_duplicate=copy.is_marked_duplicate,
            is_expired_excused=is_excused,
        )
    else:
        incarnation, sequence_number = copy.order
        ledger.found_at_destination(
            copy.id,
            copy.entity,
            sequence_number,
            is_marked_duplicate=copy.is_marked_duplicate,
            parked_at_ms=copy.parked_at_ms,
            incarnation=incarnation,
            is_expired=copy.found_in == "expired",
            differences=copy.changes,
        )


def _is_pending(simulation: PairSimulation, message: SimulatedMessage) -> bool:
    """A topic holds it, for its subscription to get it later: it was scheduled by a clock that was far ahead."""
    plan = next(plan for plan in simulation.settings.entities if plan.path == message.path)
    return plan.is_topic and message.due_ms is not None and message.due_ms > simulation.primary.clock.wall_ms()


def _has_expired(simulation: PairSimulation, message: SimulatedMessage, copy: FoundCopy) -> bool:
    """Whether its time can have been over while it was parked, by the one clock that counts: the secondary's."""
    if message.ttl_s is None or not simulation.settings.deducts_parked_time or not copy.reason.startswith("TTLExpired"):
        return False
    # No sender knows when a backlog queue stored a message that it did not confirm.
    parked_ms = message.parked_at_ms or message.send_began_ms
    return max(message.due_ms or 0, parked_ms) + 1000 * message.ttl_s <= simulation.latest_secondary_ms
