"""What must be seen whenever nothing is left to do: whoever is hungry has what there is, and who has gone is forgotten.

Owns: what is known of a process from within; the rest of the simulation sees it from outside.
"""
# ruff: noqa: SLF001  # who waits for what is nobody else's business

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.cluster.receivers import SimulatedReceiver, SimulatedSessionReceiver
from tests.support.delivery_checker.problems import Violation
from twinbus.broker.message_record import session_id_of
from twinbus.broker.remote.fragment import RemoteFragment
from twinbus.broker.remote.part import RemoteTransaction
from twinbus.broker.store_keys import LAST_SEQUENCE, sequence_of_key
from twinbus.model.path import SubQueue
from twinbus.store.protocol import Table

if TYPE_CHECKING:
    from tests.simulation.cluster.browsers import SimulatedBrowser
    from tests.simulation.cluster.process import Process
    from tests.simulation.cluster.simulation import ClusterSimulation
    from twinbus.broker.fragment.fragment import Fragment
    from twinbus.broker.ports.fragment import FragmentPort
    from twinbus.broker.remote.peer_client import PeerClient

TIMEOUTS_S = (0.11, 0.15, 0.2)
"""Longer than all that is waited for where nobody is silent."""


def check_idle(simulation: ClusterSimulation) -> None:
    """Now."""
    simulation.run_until_idle()
    for taker in simulation.receivers:
        _check_delivered(simulation, taker)
    if simulation.is_complete:
        for process in simulation.running_processes:
            _check_answered(process)


def check_settled(simulation: ClusterSimulation) -> None:
    """... and when all time-outs are over that are shorter than a second."""
    check_idle(simulation)
    for seconds in TIMEOUTS_S:
        simulation.pass_time(seconds)
        simulation.run_until_idle()
    check_idle(simulation)
    if simulation.is_complete:
        for process in simulation.running_processes:
            for taker in process.receivers:
                _check_nothing_reserved(taker)
            for reader in process.browsers:
                _check_browsed(simulation, reader)
            _check_peers_trusted(process)
        _check_no_leaks(simulation)


def active_rows(simulation: ClusterSimulation, fragment: Fragment) -> list[tuple[int, bytes]]:
    """All active messages of a fragment that are on disk."""
    active, disk = fragment.message_table.active_prefix, simulation.disks[simulation.store_of(fragment.number)]
    found = disk.synced[Table.LOG].scan(active, active + LAST_SEQUENCE, 1_000_000, 1_000_000_000)
    return [(sequence_of_key(key), record) for key, record in found]


def _unlocked_rows(simulation: ClusterSimulation, fragment: Fragment) -> list[tuple[int, bytes]]:
    return [row for row in active_rows(simulation, fragment) if row[0] not in fragment.in_flight]


def _source(simulation: ClusterSimulation, process: Process, near: FragmentPort, *, is_dead: bool) -> Fragment | None:
    """The fragment itself, where what it has must reach a process now."""
    owner = simulation.owner_of(near.number)
    if owner is None or owner.is_silent or owner.has_overdue_timers or not near.can_deliver:
        return None
    wire = simulation.connection(process, owner)
    if owner is not process and (wire is None or wire.peer_server is None or wire.is_cut):
        return None
    fragment = owner.fragments(SubQueue.DEAD_LETTER if is_dead else SubQueue.MAIN)[near.number].local
    is_hanging = simulation.store_of(near.number) in owner.hanging
    return fragment if fragment.can_deliver and fragment.available_locks > 0 and not is_hanging else None


def _check_delivered(simulation: ClusterSimulation, receiver: SimulatedReceiver) -> None:
    if receiver.process.has_overdue_timers:
        return
    for near in receiver.gathering.fragments:
        fragment = _source(simulation, receiver.process, near, is_dead=receiver.is_for_dead_letters)
        is_drained = receiver.drain_until_s is not None and isinstance(near, RemoteFragment)
        if fragment is None or is_drained:
            continue  # of others a drain asks one after the other
        if isinstance(receiver, SimulatedSessionReceiver) and receiver.hold is None:
            _check_no_session(simulation, receiver, fragment)
        elif receiver.available_credit > 0:
            idle = _unlocked_rows(simulation, fragment)
            if receiver.session is not None:
                idle = [row for row in idle if session_id_of(row[1]) == receiver.session.encode()]
            if idle:
                raise Violation(f"fragment {near.number} has {len(idle)} messages for {receiver!r}, which waits")


def _check_no_session(simulation: ClusterSimulation, receiver: SimulatedSessionReceiver, fragment: Fragment) -> None:
    assert fragment.sessions is not None
    held = fragment.sessions.session_locks
    free = {session_id_of(record) for _, record in _unlocked_rows(simulation, fragment)} - held.keys()
    if receiver.requested_session is not None:
        free &= {receiver.requested_session.encode()}
    if free:
        raise Violation(f"fragment {fragment.number} has the sessions {free}, and {receiver!r} waits")


def _check_nothing_reserved(receiver: SimulatedReceiver) -> None:
    if receiver.reserved:
        raise Violation(f"something is lent or reserved, and nothing is on its way: {receiver!r}")


def _check_browsed(simulation: ClusterSimulation, reader: SimulatedBrowser) -> None:
    _check_browser_nothing_reserved(reader)
    for near in reader.process.fragments(SubQueue.MAIN):
        fragment = _source(simulation, reader.process, near, is_dead=False)
        if fragment is not None and reader.browse_link.available_credit > 0 and not reader.link.drain_requested:
            unseen = [
                number for number, _ in active_rows(simulation, fragment) if number > reader.seen.get(near.number, 0)
            ]
            if unseen:
                raise Violation(f"fragment {near.number} has {len(unseen)} messages that {reader!r} waits for")


def _check_browser_nothing_reserved(reader: SimulatedBrowser) -> None:
    if reader.browse_link._reserved_credit:
        raise Violation(f"room is lent, and nothing is on its way: {reader!r}")


def _check_answered(process: Process) -> None:
    for owner in process.peer_clients:
        if owner._pending:
            raise Violation(f"{process!r} waits for {len(owner._pending)} answers of {owner.name}")


def _check_peers_trusted(process: Process) -> None:
    """It knows that all others work."""
    for owner in process.peer_clients:
        if owner.is_suspect:
            raise Violation(f"{process!r} doubts {owner.name}")
        for number, store in owner.stores.items():
            if store.unavailable_reason is not None:
                raise Violation(f"{process!r} believes of store {number}: {store.unavailable_reason}")


def _check_no_leaks(simulation: ClusterSimulation) -> None:
    """Nobody is known to anyone who has gone."""
    for process in simulation.running_processes:
        here = {*process.receivers, *[reader.browse_link for reader in process.browsers]}
        for other in simulation.running_processes:
            if other is not process:
                _check_remote_consumers(process, process.peer_client(other.number), here)
                _check_peer_server(simulation, process, other)
        for fragment in (*process.fragments(SubQueue.MAIN), *process.fragments(SubQueue.DEAD_LETTER)):
            _check_dispatcher(process, fragment)


def _check_remote_consumers(process: Process, owner: PeerClient, here: set[object]) -> None:
    for guest in owner.notice_handlers.values():
        consumer = guest.consumer  # type: ignore[attr-defined]  # a loan
        if consumer not in here:
            raise Violation(f"{consumer!r} has gone from {process!r}, and is still a guest of {owner.name}")


def _check_peer_server(simulation: ClusterSimulation, process: Process, other: Process) -> None:
    wires = [wire for wire in simulation.connections if wire.caller is process and wire.owner is other]
    if len(wires) != 1 or wires[0].peer_server is None:
        raise Violation(f"{process!r} is connected to {other!r} {len(wires)} times")
    desk, guests = wires[0].peer_server, process.peer_client(other.number).notice_handlers
    if desk._consumers.keys() | desk._readers.keys() != guests.keys():
        known = sorted([*desk._consumers, *desk._readers])
        raise Violation(f"{other!r} knows {known} of {process!r}, and there are {sorted(guests)}")
    parties = [visitor for party in desk._groups.values() for visitor in party.consumers]
    if len(parties) != len(desk._consumers):
        raise Violation(f"{other!r} has parties of {len(parties)} visitors of {process!r}, not {len(desk._consumers)}")
    works = [deal.transaction._part_transaction for deal in process.open_transactions]
    remote = [work for work in works if isinstance(work, RemoteTransaction)]
    open_ones = {work.number for work in remote if work._peer is process.peer_client(other.number)}
    left = desk._transactions.keys() - open_ones
    if left:
        raise Violation(f"{other!r} has the transactions {left} of {process!r}, which are over")


def _check_dispatcher(process: Process, fragment: FragmentPort) -> None:
    for consumer in fragment.dispatcher.consumers:
        if isinstance(consumer, SimulatedReceiver) and consumer not in process.receivers:
            raise Violation(f"{consumer!r} has gone, and is still at fragment {fragment.number}")
        if consumer.is_closed:
            raise Violation(f"{consumer!r} is gone, and is still at fragment {fragment.number} of {process!r}")
