"""At the limit of connections, the least valuable connection is dropped in favour of a new one."""

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


class AdmissionHarness:
    """An admission with a fake clock, and the connections that it dropped."""

    def __init__(self, max_connections: int, max_unauthenticated: int = 1_000) -> None:
        self.now_s = 0.0
        self.admission = Admission(
            max_connections=max_connections, max_unauthenticated=max_unauthenticated, clock=lambda: self.now_s
        )
        self.dropped: list[Slot] = []

    def connect(self, host: str = HERE) -> Slot | None:
        """Admit a connection that closes as soon as it is dropped; None if it is refused."""
        slot = self.admission.admit(host)
        if slot is not None:
            slot.drop = self._dropper(slot)
        return slot

    def fill_spare(self) -> None:
        """Open as many connections above the limit as are allowed."""
        for number in range(SPARE_CONNECTIONS):
            self.must_connect(f"2001:db8:{number:x}::1").busy()

    def must_connect(self, host: str = HERE) -> Slot:
        slot = self.connect(host)
        assert slot is not None
        return slot

    def _dropper(self, slot: Slot) -> Callable[[], None]:
        def drop() -> None:
            self.dropped.append(slot)
            slot.release()

        return drop


def test_the_connection_that_was_silent_longest_is_dropped() -> None:
    harness = AdmissionHarness(4)
    first, second, _, _ = [harness.must_connect(host) for host in (HERE, THERE, HERE, THERE)]
    first.busy()
    assert harness.connect("203.0.113.1") is not None
    assert harness.dropped == [second]
    assert harness.admission.count == 4


def test_a_handshake_within_its_grace_is_kept_and_the_new_connection_refused() -> None:
    harness = AdmissionHarness(2)
    first, second = harness.must_connect(), harness.must_connect(THERE)
    first.busy()
    second.busy()
    harness.fill_spare()
    harness.now_s += HANDSHAKE_GRACE_S - 0.1
    assert harness.connect("203.0.113.1") is None
    harness.now_s += 0.1
    assert harness.connect("203.0.113.1") is not None
    assert harness.dropped == [first]


def test_an_authenticated_connection_is_never_dropped() -> None:
    harness = AdmissionHarness(2)
    for host in (HERE, THERE):
        slot = harness.must_connect(host)
        slot.busy()
        slot.authenticated()
    harness.now_s += 1_000_000
    harness.fill_spare()
    assert harness.connect() is None
    assert harness.dropped == []


def test_a_full_server_still_accepts_unauthenticated_requests() -> None:
    harness = AdmissionHarness(2)
    clients = [harness.must_connect(host) for host in (HERE, THERE)]
    for client in clients:
        client.authenticated()
    check = harness.must_connect("203.0.113.1")
    check.busy()
    late = harness.must_connect("203.0.113.2")
    late.busy()
    late.authenticated()
    assert harness.dropped == [late]
    clients[0].release()
    check.authenticated()
    assert check.is_authenticated
    assert harness.admission.count == 2


def test_an_idle_authenticated_connection_is_dropped_after_unauthenticated_ones() -> None:
    harness = AdmissionHarness(3)
    idle, idle_longer, stranger = [harness.must_connect(f"203.0.113.{number}") for number in range(3)]
    for slot in (idle_longer, idle):
        slot.authenticated()
        slot.idle()
        harness.now_s += 1
    for number in range(3):
        harness.must_connect(f"198.51.100.{number}").authenticated()
    assert harness.dropped == [stranger, idle_longer, idle]


def test_a_new_request_makes_an_idle_connection_busy_again() -> None:
    harness = AdmissionHarness(1)
    slot = harness.must_connect()
    slot.authenticated()
    slot.idle()
    slot.busy()
    harness.fill_spare()
    assert harness.connect() is None
    assert slot not in harness.dropped


def test_unauthenticated_connections_of_one_address_are_limited() -> None:
    harness = AdmissionHarness(100, 3)
    mine = [harness.must_connect() for _ in range(3)]
    other = harness.must_connect(THERE)
    mine[0].authenticated()
    assert harness.connect() is not None  # the authenticated connection does not count
    assert harness.dropped == []
    assert harness.connect() is not None
    assert harness.dropped == [mine[1]]
    assert other not in harness.dropped


def test_one_address_gets_at_most_half_of_all_connections_unauthenticated() -> None:
    assert AdmissionHarness(10).admission.max_unauthenticated == 5
    assert AdmissionHarness(1).admission.max_unauthenticated == 1
    assert AdmissionHarness(10, 2).admission.max_unauthenticated == 2


def test_unread_bytes_are_checked_before_a_connection_is_dropped() -> None:
    harness = AdmissionHarness(2)
    first, second = harness.must_connect(), harness.must_connect(THERE)

    def read_pending() -> bool:
        first.check_readable = None
        first.busy()
        return True

    first.check_readable = read_pending
    assert harness.connect("203.0.113.1") is not None
    assert harness.dropped == [second]


def test_sockets_that_are_still_closing_are_limited_too() -> None:
    harness = AdmissionHarness(4)
    for number in range(4 + MAX_CLOSING_CONNECTIONS + SPARE_CONNECTIONS):
        assert harness.admission.admit(f"203.0.113.{number}") is not None  # its socket is never closed
    assert harness.admission.admit(HERE) is None
    assert harness.admission.count == 4 + MAX_CLOSING_CONNECTIONS + SPARE_CONNECTIONS


def test_releasing_a_slot_twice_has_no_effect() -> None:
    harness = AdmissionHarness(4)
    for _ in range(10):
        slot = harness.must_connect()
        slot.release()
        slot.release()
        slot.busy()
        slot.authenticated()
    assert harness.admission.count == 0
    assert not harness.admission._unauthenticated  # noqa: SLF001  # no address is left


def test_a_flood_does_not_flood_the_log(caplog: pytest.LogCaptureFixture) -> None:
    harness = AdmissionHarness(4)
    with caplog.at_level(logging.WARNING):
        for _ in range(1_000):
            harness.must_connect()
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


def test_garbage_is_collected_after_a_number_of_closed_connections() -> None:
    collected: list[int] = []
    admission = Admission(collect_garbage=lambda: collected.append(1))
    for _ in range(2 * CONNECTIONS_PER_COLLECTION):
        slot = admission.admit("192.0.2.7")
        assert slot is not None
        slot.release()
    assert len(collected) == 2
