"""What must be seen whenever nothing is left to do: whoever is hungry has what there is, and who has gone is forgotten.

Owns: what is known of a process from within; the rest of the simulation sees it from outside.
"""
# ruff: noqa: SLF001  # who waits for what is nobody else's business

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.ledger.problems import Violation
from tests.simulation.processes.takers import SessionTaker, Taker
from twinbus.broker.keys import LAST_SEQUENCE, sequence_of
from twinbus.broker.record import session_of
from twinbus.broker.remote.fragment import RemoteFragment
from twinbus.broker.remote.part import RemoteTransaction
from twinbus.model.path import SubQueue
from twinbus.store.protocol import Table

if TYPE_CHECKING:
    from tests.simulation.processes.process import Process
    from tests.simulation.processes.readers import Reader
    from tests.simulation.processes.world import World
    from twinbus.broker.fragment import Fragment
    from twinbus.broker.ports.fragment import FragmentPort
    from twinbus.broker.remote.owner import Owner

TIME_OUTS_S = (0.11, 0.15, 0.2)
"""Longer than all that is waited for where nobody is silent."""


def look(world: World) -> None:
    """Now."""
    world.work_all()
    for taker in world.takers:
        _check_fed(world, taker)
    if world.is_whole:
        for process in world.living:
            _check_answered(process)


def look_well(world: World) -> None:
    """... and when all time-outs are over that are shorter than a second."""
    look(world)
    for seconds in TIME_OUTS_S:
        world.pass_time(seconds)
        world.work_all()
    look(world)
    if world.is_whole:
        for process in world.living:
            for taker in process.takers:
                _check_idle(taker)
            for reader in process.readers:
                _check_shown(world, reader)
            _check_confident(process)
        _check_forgotten(world)


def rows(world: World, fragment: Fragment) -> list[tuple[int, bytes]]:
    """All active messages of a fragment that are on disk."""
    active, disk = fragment.holdings.active, world.disks[world.store_of(fragment.number)]
    found = disk.synced[Table.LOG].scan(active, active + LAST_SEQUENCE, 1_000_000, 1_000_000_000)
    return [(sequence_of(key), record) for key, record in found]


def _idle(world: World, fragment: Fragment) -> list[tuple[int, bytes]]:
    return [row for row in rows(world, fragment) if row[0] not in fragment.out]


def _source(world: World, process: Process, near: FragmentPort, *, is_dead: bool) -> Fragment | None:
    """The fragment itself, where what it has must reach a process now."""
    owner = world.owner_of(near.number)
    if owner is None or owner.is_silent or owner.is_late or not near.may_hand_out:
        return None
    wire = world.wire(process, owner)
    if owner is not process and (wire is None or wire.desk is None or wire.is_cut):
        return None
    fragment = owner.fragments(SubQueue.DEAD_LETTER if is_dead else SubQueue.MAIN)[near.number].local
    is_hanging = world.store_of(near.number) in owner.hanging
    return fragment if fragment.may_hand_out and fragment.free_locks > 0 and not is_hanging else None


def _check_fed(world: World, taker: Taker) -> None:
    if taker.process.is_late:
        return
    for near in taker.gathering.fragments:
        fragment = _source(world, taker.process, near, is_dead=taker.is_of_dead)
        is_drained = taker.drain_until_s is not None and isinstance(near, RemoteFragment)
        if fragment is None or is_drained:
            continue  # of others a drain asks one after the other
        if isinstance(taker, SessionTaker) and taker.hold is None:
            _check_no_session(world, taker, fragment)
        elif taker.room > 0:
            idle = _idle(world, fragment)
            if taker.session is not None:
                idle = [row for row in idle if session_of(row[1]) == taker.session.encode()]
            if idle:
                raise Violation(f"fragment {near.number} has {len(idle)} messages for {taker!r}, which waits")


def _check_no_session(world: World, taker: SessionTaker, fragment: Fragment) -> None:
    assert fragment.sessions is not None
    held = fragment.sessions.holds
    free = {session_of(record) for _, record in _idle(world, fragment)} - held.keys()
    if taker.wanted is not None:
        free &= {taker.wanted.encode()}
    if free:
        raise Violation(f"fragment {fragment.number} has the sessions {free}, and {taker!r} waits")


def _check_idle(taker: Taker) -> None:
    if taker.reserved:
        raise Violation(f"something is lent or reserved, and nothing is on its way: {taker!r}")


def _check_shown(world: World, reader: Reader) -> None:
    _check_lent_nothing(reader)
    for near in reader.process.fragments(SubQueue.MAIN):
        fragment = _source(world, reader.process, near, is_dead=False)
        if fragment is not None and reader.use.room > 0 and not reader.link.drain_requested:
            unseen = [number for number, _ in rows(world, fragment) if number > reader.seen.get(near.number, 0)]
            if unseen:
                raise Violation(f"fragment {near.number} has {len(unseen)} messages that {reader!r} waits for")


def _check_lent_nothing(reader: Reader) -> None:
    if reader.use._reserved:
        raise Violation(f"room is lent, and nothing is on its way: {reader!r}")


def _check_answered(process: Process) -> None:
    for owner in process.owners:
        if owner._waiting:
            raise Violation(f"{process!r} waits for {len(owner._waiting)} answers of {owner.name}")


def _check_confident(process: Process) -> None:
    """It knows that all others work."""
    for owner in process.owners:
        if owner.is_doubted:
            raise Violation(f"{process!r} doubts {owner.name}")
        for number, store in owner.stores.items():
            if store.trouble is not None:
                raise Violation(f"{process!r} believes of store {number}: {store.trouble}")


def _check_forgotten(world: World) -> None:
    """Nobody is known to anyone who has gone."""
    for process in world.living:
        here = {*process.takers, *[reader.use for reader in process.readers]}
        for other in world.living:
            if other is not process:
                _check_guests(process, process.owner(other.number), here)
                _check_visitors(world, process, other)
        for fragment in (*process.fragments(SubQueue.MAIN), *process.fragments(SubQueue.DEAD_LETTER)):
            _check_line(process, fragment)


def _check_guests(process: Process, owner: Owner, here: set[object]) -> None:
    for guest in owner.guests.values():
        consumer = guest.consumer  # type: ignore[attr-defined]  # a loan
        if consumer not in here:
            raise Violation(f"{consumer!r} has gone from {process!r}, and is still a guest of {owner.name}")


def _check_visitors(world: World, process: Process, other: Process) -> None:
    wires = [wire for wire in world.wires if wire.asker is process and wire.asked is other]
    if len(wires) != 1 or wires[0].desk is None:
        raise Violation(f"{process!r} is connected to {other!r} {len(wires)} times")
    desk, guests = wires[0].desk, process.owner(other.number).guests
    if desk._visitors.keys() | desk._readers.keys() != guests.keys():
        known = sorted([*desk._visitors, *desk._readers])
        raise Violation(f"{other!r} knows {known} of {process!r}, and there are {sorted(guests)}")
    parties = [visitor for party in desk._parties.values() for visitor in party.visitors]
    if len(parties) != len(desk._visitors):
        raise Violation(f"{other!r} has parties of {len(parties)} visitors of {process!r}, not {len(desk._visitors)}")
    works = [deal.transaction._work for deal in process.deals]
    remote = [work for work in works if isinstance(work, RemoteTransaction)]
    open_ones = {work.number for work in remote if work._owner is process.owner(other.number)}
    left = desk._transactions.keys() - open_ones
    if left:
        raise Violation(f"{other!r} has the transactions {left} of {process!r}, which are over")


def _check_line(process: Process, fragment: FragmentPort) -> None:
    for consumer in fragment.line.consumers:
        if isinstance(consumer, Taker) and consumer not in process.takers:
            raise Violation(f"{consumer!r} has gone, and is still at fragment {fragment.number}")
        if consumer.is_gone:
            raise Violation(f"{consumer!r} is gone, and is still at fragment {fragment.number} of {process!r}")
