"""Invariants of an idle cluster: waiting receivers have got all available messages, and closed links are forgotten.

Only this module looks into the processes; the other checks see them as clients do.
"""
# ruff: noqa: SLF001  # pending requests and reservations are private

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
"""Longer than all time-outs between responsive processes."""


def check_idle(simulation: ClusterSimulation) -> None:
    """Run until idle, and check deliveries and pending requests."""
    simulation.run_until_idle()
    for receiver in simulation.receivers:
        _check_delivered(simulation, receiver)
    if simulation.is_complete:
        for process in simulation.running_processes:
            _check_answered(process)


def check_settled(simulation: ClusterSimulation) -> None:
    """Check also after all time-outs below a second, when all reservations must be returned."""
    check_idle(simulation)
    for seconds in TIMEOUTS_S:
        simulation.pass_time(seconds)
        simulation.run_until_idle()
    check_idle(simulation)
    if simulation.is_complete:
        for process in simulation.running_processes:
            for receiver in process.receivers:
                _check_nothing_reserved(receiver)
            for browser in process.browsers:
                _check_browsed(simulation, browser)
            _check_peers_trusted(process)
        _check_no_leaks(simulation)


def active_rows(simulation: ClusterSimulation, fragment: Fragment) -> list[tuple[int, bytes]]:
    """Return all active messages of a fragment on disk."""
    prefix, disk = fragment.message_table.active_prefix, simulation.disks[simulation.store_of(fragment.number)]
    rows = disk.synced[Table.LOG].scan(prefix, prefix + LAST_SEQUENCE, 1_000_000, 1_000_000_000)
    return [(sequence_of_key(key), record) for key, record in rows]


def _unlocked_rows(simulation: ClusterSimulation, fragment: Fragment) -> list[tuple[int, bytes]]:
    return [row for row in active_rows(simulation, fragment) if row[0] not in fragment.in_flight]


def _source(simulation: ClusterSimulation, process: Process, port: FragmentPort, *, is_dead: bool) -> Fragment | None:
    """Return the owner's fragment if its messages must reach a process now, otherwise None."""
    owner = simulation.owner_of(port.number)
    if owner is None or owner.is_silent or owner.has_overdue_timers or not port.can_deliver:
        return None
    connection = simulation.connection(process, owner)
    if owner is not process and (connection is None or connection.peer_server is None or connection.is_cut):
        return None
    fragment = owner.fragments(SubQueue.DEAD_LETTER if is_dead else SubQueue.MAIN)[port.number].local
    is_hanging = simulation.store_of(port.number) in owner.hanging
    return fragment if fragment.can_deliver and fragment.available_locks > 0 and not is_hanging else None


def _check_delivered(simulation: ClusterSimulation, receiver: SimulatedReceiver) -> None:
    if receiver.process.has_overdue_timers:
        return
    for port in receiver.gathering.fragments:
        fragment = _source(simulation, receiver.process, port, is_dead=receiver.is_for_dead_letters)
        is_drained = receiver.drain_until_s is not None and isinstance(port, RemoteFragment)
        if fragment is None or is_drained:
            continue  # a drain asks remote fragments one after the other
        if isinstance(receiver, SimulatedSessionReceiver) and receiver.hold is None:
            _check_no_session(simulation, receiver, fragment)
        elif receiver.available_credit > 0:
            available = _unlocked_rows(simulation, fragment)
            if receiver.session is not None:
                available = [row for row in available if session_id_of(row[1]) == receiver.session.encode()]
            if available:
                raise Violation(f"fragment {port.number} has {len(available)} messages for {receiver!r}, which waits")


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
        raise Violation(f"credit is reserved, but no message is on its way: {receiver!r}")


def _check_browsed(simulation: ClusterSimulation, browser: SimulatedBrowser) -> None:
    _check_browser_nothing_reserved(browser)
    for port in browser.process.fragments(SubQueue.MAIN):
        fragment = _source(simulation, browser.process, port, is_dead=False)
        if fragment is not None and browser.browse_link.available_credit > 0 and not browser.link.drain_requested:
            unseen = [
                number for number, _ in active_rows(simulation, fragment) if number > browser.seen.get(port.number, 0)
            ]
            if unseen:
                raise Violation(f"fragment {port.number} has {len(unseen)} messages that {browser!r} waits for")


def _check_browser_nothing_reserved(browser: SimulatedBrowser) -> None:
    if browser.browse_link._reserved_credit:
        raise Violation(f"credit is reserved, but no message is on its way: {browser!r}")


def _check_answered(process: Process) -> None:
    for owner in process.peer_clients:
        if owner._pending:
            raise Violation(f"{process!r} waits for {len(owner._pending)} answers of {owner.name}")


def _check_peers_trusted(process: Process) -> None:
    """Check that a process knows that all others work."""
    for owner in process.peer_clients:
        if owner.is_suspect:
            raise Violation(f"{process!r} suspects {owner.name}")
        for number, store in owner.stores.items():
            if store.unavailable_reason is not None:
                raise Violation(f"{process!r} believes of store {number}: {store.unavailable_reason}")


def _check_no_leaks(simulation: ClusterSimulation) -> None:
    """Check that no process keeps closed links of itself or of others."""
    for process in simulation.running_processes:
        open_links = {*process.receivers, *[browser.browse_link for browser in process.browsers]}
        for other in simulation.running_processes:
            if other is not process:
                _check_remote_consumers(process, process.peer_client(other.number), open_links)
                _check_peer_server(simulation, process, other)
        for fragment in (*process.fragments(SubQueue.MAIN), *process.fragments(SubQueue.DEAD_LETTER)):
            _check_dispatcher(process, fragment)


def _check_remote_consumers(process: Process, owner: PeerClient, open_links: set[object]) -> None:
    for handler in owner.notice_handlers.values():
        consumer = handler.consumer  # type: ignore[attr-defined]  # a credit reservation
        if consumer not in open_links:
            raise Violation(f"{consumer!r} has gone from {process!r}, and is still a consumer of {owner.name}")


def _check_peer_server(simulation: ClusterSimulation, process: Process, other: Process) -> None:
    connections = [
        connection
        for connection in simulation.connections
        if connection.caller is process and connection.owner is other
    ]
    if len(connections) != 1 or connections[0].peer_server is None:
        raise Violation(f"{process!r} is connected to {other!r} {len(connections)} times")
    peer_server, handlers = connections[0].peer_server, process.peer_client(other.number).notice_handlers
    if peer_server._consumers.keys() | peer_server._readers.keys() != handlers.keys():
        known = sorted([*peer_server._consumers, *peer_server._readers])
        raise Violation(f"{other!r} knows {known} of {process!r}, and there are {sorted(handlers)}")
    grouped_consumers = [consumer for group in peer_server._groups.values() for consumer in group.consumers]
    if len(grouped_consumers) != len(peer_server._consumers):
        raise Violation(
            f"{other!r} has groups of {len(grouped_consumers)} consumers of {process!r}, "
            f"not {len(peer_server._consumers)}"
        )
    part_transactions = [transaction.transaction._part_transaction for transaction in process.open_transactions]
    remote = [
        part_transaction for part_transaction in part_transactions if isinstance(part_transaction, RemoteTransaction)
    ]
    open_numbers = {
        part_transaction.number
        for part_transaction in remote
        if part_transaction._peer is process.peer_client(other.number)
    }
    left = peer_server._transactions.keys() - open_numbers
    if left:
        raise Violation(f"{other!r} has the transactions {left} of {process!r}, which are over")


def _check_dispatcher(process: Process, fragment: FragmentPort) -> None:
    for consumer in fragment.dispatcher.consumers:
        if isinstance(consumer, SimulatedReceiver) and consumer not in process.receivers:
            raise Violation(f"{consumer!r} has gone, and is still at fragment {fragment.number}")
        if consumer.is_closed:
            raise Violation(f"{consumer!r} is gone, and is still at fragment {fragment.number} of {process!r}")
