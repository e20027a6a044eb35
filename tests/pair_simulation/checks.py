"""What has to be so in the end.

The promise (docs/pairing.md), one check each:

LOST        A letter whose send returned has arrived; or it was dead-lettered for a fault of its own, or because its
            time to live was over, which counts as long as messages are parked where `deduct_parked_time` is on.
UNTRUE      A letter whose send failed with an error that says "not sent" (`may_have_happened` is False) is nowhere.
UNMARKED    Of all copies of a letter at most one has no mark: the first, which nobody could know not to be alone.
TWICE       Where duplicates are detected, a letter is there once.
ORDER       A letter that the primary confirmed to its sender is there before everything that the same flow sends later.
            Letters of one session that one backlog queue confirmed come back in the order in which they were sent. That
            is all that is promised: a letter that was parked may be overtaken by one that went to another backlog
            queue, or straight to the primary (Q18, R074). A letter with several parked copies is left out: one of them
            may have gone through another backlog queue, without an answer to its sender. So is one that was moved from
            several backlog queues: its destination has kept the first copy, and dropped the others as duplicates.
BURIED      Only letters with a fault of their own, or whose time was over, are dead-lettered by a pump or put aside by
            the spool (Q19).
CHANGED     Body, ids, properties, time to live and schedule are as they were sent.

Others are found while a run lasts: DIED (a task or callback raised), ERROR (a send raised something that is no
ServiceBusError), LATE (a send outlasted its time-out), STUCK (messages were not drained, or a program not closed,
within a bounded time after the last outage).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING

from tests.pair_simulation.letters import Outcome

if TYPE_CHECKING:
    from tests.pair_simulation.letters import Copy, Letter
    from tests.pair_simulation.world import World


def check(world: World) -> None:
    """Find all problems in what is there in the end."""
    ledger = world.ledger
    ledger.sort()
    for name in ledger.copies:
        if name not in ledger.letters:
            world.problem("CHANGED", f"{name} is there, and was never sent")
    for letter in ledger.letters.values():
        copies = ledger.copies.get(letter.id, [])
        _check_outcome(world, letter, copies)
        _check_copies(world, letter, copies)
        for copy in copies:
            if copy.changes:
                world.problem("CHANGED", f"{letter}: {'; '.join(copy.changes)}")
    _check_order(world)


def _check_outcome(world: World, letter: Letter, copies: list[Copy]) -> None:
    if letter.outcome is Outcome.RETURNED and not copies and not letter.is_doomed and not _is_to_come(world, letter):
        world.problem("LOST", f"{letter} is nowhere")
    if letter.outcome is Outcome.REFUSED and copies:
        world.problem("UNTRUE", f"{letter} is there all the same: {_places(copies)}")
    if letter.outcome is Outcome.PENDING:
        world.problem("STUCK", f"the send of {letter} has not ended")


def _is_to_come(world: World, letter: Letter) -> bool:
    """A topic holds it, for its subscription to get it later: it was scheduled by a clock that was far ahead."""
    plan = next(plan for plan in world.settings.entities if plan.path == letter.path)
    return plan.is_topic and letter.due_ms is not None and letter.due_ms > world.primary.clock.wall_ms()


def _check_copies(world: World, letter: Letter, copies: list[Copy]) -> None:
    counts = world.ledger.counts
    unmarked = [copy for copy in copies if not copy.is_marked]
    if len(unmarked) > 1:
        world.problem("UNMARKED", f"{letter} is there {len(copies)} times: {_places(copies)}")
    if len(copies) > 1:
        counts["extra copies"] += len(copies) - 1
    elif copies and copies[0].is_marked:
        counts["marks on the only copy"] += 1
    counts["arrived from a backlog queue"] += sum(copy.was_parked for copy in copies)
    plan = next(plan for plan in world.settings.entities if plan.path == letter.path)
    if plan.detects_duplicates:
        _check_once(world, letter, copies)
    for copy in copies:
        if copy.where in ("backlog", "refused"):
            counts["buried"] += 1
            _check_burial(world, letter, copy)


def _check_once(world: World, letter: Letter, copies: list[Copy]) -> None:
    """An entity that was deleted and made again does not know what it had before."""
    lives = Counter(copy.order[0] for copy in copies if copy.where in ("arrived", "expired"))
    if any(count > 1 for count in lives.values()):
        world.problem("TWICE", f"{letter} is there several times: {_places(copies)}")


def _check_burial(world: World, letter: Letter, copy: Copy) -> None:
    if letter.own_fault is not None:
        return
    is_expired = copy.where == "backlog" and copy.reason.startswith("TTLExpired")
    if is_expired and world.settings.deducts and _may_have_expired(world, letter):
        return
    world.problem("BURIED", f"{letter} has no fault of its own, and is in the {copy.where}: {copy.reason:.300}")


def _may_have_expired(world: World, letter: Letter) -> bool:
    """Whether its time can have been over while it was parked, by the one clock that counts: the secondary's."""
    if letter.ttl_s is None:
        return False
    # No sender knows when a backlog queue stored a message that it did not confirm.
    parked_ms = letter.parked_at_ms or letter.begun_ms
    return max(letter.due_ms or 0, parked_ms) + 1000 * letter.ttl_s <= world.latest_secondary_ms


def _check_order(world: World) -> None:
    flows: dict[tuple[str, str], list[Letter]] = defaultdict(list)
    for letter in world.ledger.letters.values():
        if letter.session is not None and letter.due_ms is None:
            flows[letter.path, letter.session].append(letter)
    for letters in flows.values():
        letters.sort(key=lambda letter: letter.number)
        _check_direct(world, letters)
        _check_parked(world, letters)


def _first(world: World, letter: Letter, *, parked: bool = False) -> tuple[int, int] | None:
    found = [
        copy.order
        for copy in world.ledger.copies.get(letter.id, ())
        if copy.where == "arrived" and (copy.was_parked or not parked)
    ]
    return min(found, default=None)


def _check_direct(world: World, letters: list[Letter]) -> None:
    """What the primary has confirmed to a sender is before all that is sent later."""
    last: tuple[tuple[int, int], Letter] | None = None
    for letter in letters:
        first = _first(world, letter)
        if first is None or _has_expired(world, letter):
            continue
        if last is not None and first < last[0]:
            world.problem("ORDER", f"{letter} is before {last[1]}, which was sent before it")
        if letter.is_direct and not letter.parked_in:
            world.ledger.counts["order compared"] += 1
            last = max(last, (first, letter), key=lambda one: one[0]) if last is not None else (first, letter)


def _check_parked(world: World, letters: list[Letter]) -> None:
    """What one backlog queue has confirmed comes back in the order in which it was sent."""
    lines: dict[str, list[tuple[tuple[int, int], Letter]]] = defaultdict(list)
    for letter in letters:
        first = _first(world, letter, parked=True)
        copies = [copy for copy in world.ledger.copies.get(letter.id, ()) if copy.was_parked]
        if first is not None and len(copies) == 1 and len(letter.parked_in) == 1 and len(letter.moved_from) <= 1:
            lines[letter.parked_in[0]].append((first, letter))
    for queue, line in lines.items():
        world.ledger.counts["order compared"] += max(0, len(line) - 1)
        for (before, earlier), (after, later) in pairwise(line):
            if after < before:
                world.problem("ORDER", f"{later} came before {earlier}, both through backlog queue {queue}")


def _has_expired(world: World, letter: Letter) -> bool:
    """Some copy of it is among the dead letters, where it has another number."""
    return any(copy.where == "expired" for copy in world.ledger.copies.get(letter.id, ()))


def _places(copies: list[Copy]) -> str:
    return ", ".join(
        f"{copy.where} {copy.order[0]}/{copy.order[1]}{' (parked)' if copy.was_parked else ''}"
        f"{' (marked)' if copy.is_marked else ''}{f' because {copy.reason:.80}' if copy.reason else ''}"
        for copy in copies
    )
