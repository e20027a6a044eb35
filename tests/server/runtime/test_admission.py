"""At a limit of connections, the one that is least missed makes room for the next."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from twinbus.server.runtime.admission import (
    HANDSHAKE_GRACE_S,
    MAX_CLOSING_CONNECTIONS,
    SPARE_CONNECTIONS,
    Admission,
    Slot,
    network_of,
)
from twinbus.server.runtime.interpreter import CONNECTIONS_PER_COLLECTION

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = "192.0.2.1"
THERE = "198.51.100.7"


class Door:
    """An admission with a clock of its own, and the connections that it has dropped."""

    def __init__(self, max_connections: int, max_unauthenticated: int = 1_000) -> None:
        self.now_s = 0.0
        self.admission = Admission(
            max_connections=max_connections, max_unauthenticated=max_unauthenticated, clock=lambda: self.now_s
        )
        self.dropped: list[Slot] = []

    def come(self, host: str = HERE) -> Slot | None:
        """A connection that is closed as soon as it is dropped."""
        slot = self.admission.admit(host)
        if slot is not None:
            slot.drop = self._dropper(slot)
        return slot

    def fill_spare(self) -> None:
        """Have as many connections above the cap as there may be."""
        for number in range(SPARE_CONNECTIONS):
            self.get(f"2001:db8:{number:x}::1").busy()

    def get(self, host: str = HERE) -> Slot:
        slot = self.come(host)
        assert slot is not None
        return slot

    def _dropper(self, slot: Slot) -> Callable[[], None]:
        def drop() -> None:
            self.dropped.append(slot)
            slot.release()

        return drop


def test_the_connection_that_was_silent_longest_makes_room() -> None:
    door = Door(4)
    first, second, _, _ = [door.get(host) for host in (HERE, THERE, HERE, THERE)]
    first.busy()
    assert door.come("203.0.113.1") is not None
    assert door.dropped == [second]
    assert door.admission.count == 4


def test_a_connection_in_its_handshake_has_its_grace_and_the_newest_is_refused() -> None:
    door = Door(2)
    first, second = door.get(), door.get(THERE)
    first.busy()
    second.busy()
    door.fill_spare()
    door.now_s += HANDSHAKE_GRACE_S - 0.1
    assert door.come("203.0.113.1") is None
    door.now_s += 0.1
    assert door.come("203.0.113.1") is not None
    assert door.dropped == [first]


def test_an_authenticated_connection_is_never_dropped() -> None:
    door = Door(2)
    for host in (HERE, THERE):
        slot = door.get(host)
        slot.busy()
        slot.authenticated()
    door.now_s += 1_000_000
    door.fill_spare()
    assert door.come() is None
    assert door.dropped == []


def test_a_server_full_of_clients_still_answers_whoever_needs_no_key() -> None:
    door = Door(2)
    clients = [door.get(host) for host in (HERE, THERE)]
    for client in clients:
        client.authenticated()
    check = door.get("203.0.113.1")
    check.busy()
    late = door.get("203.0.113.2")
    late.busy()
    late.authenticated()
    assert door.dropped == [late]
    clients[0].release()
    check.authenticated()
    assert check.is_authenticated
    assert door.admission.count == 2


def test_an_authenticated_one_between_two_requests_is_dropped_after_the_strangers() -> None:
    door = Door(3)
    idle, idle_longer, stranger = [door.get(f"203.0.113.{number}") for number in range(3)]
    for slot in (idle_longer, idle):
        slot.authenticated()
        slot.idle()
        door.now_s += 1
    for number in range(3):
        door.get(f"198.51.100.{number}").authenticated()
    assert door.dropped == [stranger, idle_longer, idle]


def test_a_request_that_begins_makes_a_connection_busy_again() -> None:
    door = Door(1)
    slot = door.get()
    slot.authenticated()
    slot.idle()
    slot.busy()
    door.fill_spare()
    assert door.come() is None
    assert slot not in door.dropped


def test_one_address_has_no_more_than_its_share_of_unauthenticated_connections() -> None:
    door = Door(100, 3)
    mine = [door.get() for _ in range(3)]
    other = door.get(THERE)
    mine[0].authenticated()
    assert door.come() is not None  # the authenticated one does not count
    assert door.dropped == []
    assert door.come() is not None
    assert door.dropped == [mine[1]]
    assert other not in door.dropped


def test_unauthenticated_connections_of_one_address_leave_half_of_all_to_others() -> None:
    assert Door(10).admission.max_unauthenticated == 5
    assert Door(1).admission.max_unauthenticated == 1
    assert Door(10, 2).admission.max_unauthenticated == 2


def test_bytes_that_have_arrived_unread_are_seen_before_a_connection_is_dropped() -> None:
    door = Door(2)
    first, second = door.get(), door.get(THERE)

    def look() -> bool:
        first.check_readable = None
        first.busy()
        return True

    first.check_readable = look
    assert door.come("203.0.113.1") is not None
    assert door.dropped == [second]


def test_sockets_that_are_still_being_closed_are_limited_too() -> None:
    door = Door(4)
    for number in range(4 + MAX_CLOSING_CONNECTIONS + SPARE_CONNECTIONS):
        assert door.admission.admit(f"203.0.113.{number}") is not None  # whose socket nobody closes
    assert door.admission.admit(HERE) is None
    assert door.admission.count == 4 + MAX_CLOSING_CONNECTIONS + SPARE_CONNECTIONS


def test_what_is_released_is_forgotten_however_often_that_is_said() -> None:
    door = Door(4)
    for _ in range(10):
        slot = door.get()
        slot.release()
        slot.release()
        slot.busy()
        slot.authenticated()
    assert door.admission.count == 0
    assert not door.admission._unauthenticated  # noqa: SLF001  # no address is kept


def test_a_flood_does_not_flood_the_log(caplog: pytest.LogCaptureFixture) -> None:
    door = Door(4)
    with caplog.at_level(logging.WARNING):
        for _ in range(1_000):
            door.get()
    (record,) = caplog.records
    assert record.getMessage() == (
        "limit of 2 unauthenticated connections of 192.0.2.1 reached: dropped a connection of 192.0.2.1 (quiet for "
        "0.0 s)"
    )


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::1", "::1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::1", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
    ],
)
def test_an_address_is_an_ipv4_address_or_an_ipv6_network(host: str, network: str) -> None:
    assert network_of(host) == network


def test_what_ended_connections_leave_behind_is_collected_from_time_to_time() -> None:
    collected: list[int] = []
    admission = Admission(collect_garbage=lambda: collected.append(1))
    for _ in range(2 * CONNECTIONS_PER_COLLECTION):
        slot = admission.admit("192.0.2.7")
        assert slot is not None
        slot.release()
    assert len(collected) == 2
