"""Final checks of a run: pass all found copies to the checker.

The guarantees are those of `tests.support.delivery_checker.pair_checker`; the kinds of problems are in capitals here. A
message may be dead-lettered in a backlog queue because it has expired: its time to live also runs while it is parked if
`deduct_parked_time` is on.

Other problems are found during a run: DIED (a task or callback raised), ERROR (a send raised another exception than
ServiceBusError), LATE (a send outlasted its time-out), STUCK (messages were not drained, or a program was not closed,
in time after the last outage).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.pair.messages import Outcome

if TYPE_CHECKING:
    from tests.simulation.pair.messages import FoundCopy, SimulatedMessage
    from tests.simulation.pair.simulation import PairSimulation


def check_all(simulation: PairSimulation) -> None:
    """Report all problems with the copies that were found."""
    checker = simulation.checker
    for message in checker.messages_sent.values():
        message.record.may_be_missing = message.may_be_deleted or _is_pending(simulation, message)
        if message.outcome is Outcome.PENDING:
            simulation.add_problem("STUCK", f"the send of {message} has not ended")
    for copies in checker.found_copies.values():
        for copy in copies:
            _find(simulation, copy)
    for problem in checker.finish():
        kind, _, text = problem.partition(": ")
        simulation.add_problem(kind.upper(), text)
    checker.path_counts["extra copies"] += checker.duplicates.total()
    checker.path_counts["marks on the only copy"] += checker.marked_single_count
    checker.path_counts["order compared"] += checker.order_checks


def _find(simulation: PairSimulation, copy: FoundCopy) -> None:
    checker, message = simulation.checker, simulation.checker.messages_sent.get(copy.id)
    checker.path_counts["arrived from a backlog queue"] += copy.parked_at_ms is not None
    if copy.found_in == "parked":
        checker.found_parked(copy.id, copy.entity, is_marked_duplicate=copy.is_marked_duplicate)
    elif copy.found_in in ("backlog", "refused"):
        checker.path_counts["dead-lettered or put aside"] += 1
        is_excused = copy.found_in == "backlog" and message is not None and _has_expired(simulation, message, copy)
        checker.found_dead_lettered(
            copy.id,
            copy.entity,
            copy.reason,
            is_marked_duplicate=copy.is_marked_duplicate,
            is_expired_excused=is_excused,
        )
    else:
        incarnation, sequence_number = copy.order
        checker.found_at_destination(
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
    """Whether a topic still holds a message, which was scheduled by a clock that was far ahead."""
    plan = next(plan for plan in simulation.settings.entities if plan.path == message.path)
    return plan.is_topic and message.due_ms is not None and message.due_ms > simulation.primary.clock.wall_ms()


def _has_expired(simulation: PairSimulation, message: SimulatedMessage, copy: FoundCopy) -> bool:
    """Whether a message can have expired while it was parked, on the secondary's clock."""
    if message.ttl_s is None or not simulation.settings.deducts_parked_time or not copy.reason.startswith("TTLExpired"):
        return False
    # If the backlog queue has not confirmed a message, the sender does not know when it was stored.
    parked_ms = message.parked_at_ms or message.send_began_ms
    return max(message.due_ms or 0, parked_ms) + 1000 * message.ttl_s <= simulation.latest_secondary_ms
