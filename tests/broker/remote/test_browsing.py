"""Messages that another process has are peeked, and read as a log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.broker.harness import PARTITIONED, BrokerHarness
from tests.broker.messages import key_for_fragment, message
from twinbus.amqp.message import Message
from twinbus.broker.ports.consumer import ReceiverIdentity
from twinbus.broker.ports.read_limiter import ReadLimiter
from twinbus.broker.remote.fragment import RemoteFragment

if TYPE_CHECKING:
    from twinbus.broker.ports.consumer import Delivery
    from twinbus.broker.ports.fragment import BrowseCursorPort
    from twinbus.model.errors import ServiceBusError

FRAGMENT = 1
KEY = key_for_fragment(FRAGMENT)
LAST = 2**63 - 1


class FakeReader:
    """A link that looks."""

    receive_and_delete = False
    is_closed = False

    def __init__(self) -> None:
        self.receiver_identity = ReceiverIdentity()
        self.credit = self.reserved = 0
        self.seen: list[Delivery] = []
        self.errors: list[ServiceBusError] = []
        self.browser: BrowseCursorPort

    @property
    def available_credit(self) -> int:
        return self.credit - self.reserved

    def reserve_credit(self, count: int) -> None:
        self.reserved += count

    def deliver(self, deliveries: list[Delivery]) -> int:
        taken = deliveries[: self.credit]
        self.credit -= len(taken)
        self.seen += taken
        return len(taken)

    def request_messages(self) -> None:
        self.browser.advance()

    deliver_browsed = deliver

    @property
    def wants_messages(self) -> bool:
        return self.credit > 0

    def on_admitted(self) -> None:
        pass

    def force_detach(self, error: ServiceBusError) -> None:
        self.errors.append(error)

    on_session_lock_lost = force_detach

    @property
    def bodies(self) -> list[bytes]:
        return [Message(payload).data[0] for payload, _ in self.seen]


def begun(harness: BrokerHarness, first: int = 0, last: int = LAST) -> FakeReader:
    reader, fragment = FakeReader(), harness.queue.parts[FRAGMENT].main
    assert isinstance(fragment, RemoteFragment)
    reader.browser = fragment.browser.browse(reader, first, last, ends_at_last=False, read_limiter=ReadLimiter())
    harness.run_until_idle()
    return reader


def grant(harness: BrokerHarness, reader: FakeReader, credit: int) -> None:
    reader.credit += credit
    reader.request_messages()
    harness.run_until_idle()


def test_a_page_of_a_peek_comes_from_the_owner() -> None:
    rig = BrokerHarness(PARTITIONED, processes=2)
    rig.store_messages(*[message(b"%d" % number, key=KEY) for number in range(5)])
    pages: list[list[bytes] | ServiceBusError] = []
    rig.queue.parts[FRAGMENT].main.browser.peek(0, 3, 10_000, pages.append)
    rig.run_until_idle()
    assert isinstance(pages[0], list)
    assert [Message(payload).data[0] for payload in pages[0]] == [b"0", b"1", b"2"]


def test_a_time_is_found_by_the_owner() -> None:
    rig = BrokerHarness(PARTITIONED, processes=2)
    rig.store_messages(message(key=KEY))
    rig.advance(10.0)
    rig.store_messages(message(key=KEY))
    found: list[int | ServiceBusError] = []
    rig.queue.parts[FRAGMENT].main.browser.find_by_enqueued_time(rig.clock.wall_ms() - 5_000, found.append)
    rig.run_until_idle()
    assert found == [(FRAGMENT << 48) + 2]


def test_a_reader_sees_as_much_as_it_has_room_for_and_then_the_rest_in_order() -> None:
    rig = BrokerHarness(PARTITIONED, processes=2)
    rig.store_messages(*[message(b"%d" % number, key=KEY) for number in range(10)])
    reader = begun(rig)
    assert reader.seen == []
    grant(rig, reader, 4)
    assert reader.bodies == [b"0", b"1", b"2", b"3"]
    grant(rig, reader, 100)
    assert reader.bodies == [b"%d" % number for number in range(10)]
    rig.store_messages(message(b"10", key=KEY))
    assert reader.bodies[-1] == b"10"


def test_what_a_reader_did_not_see_it_is_shown_again() -> None:
    rig = BrokerHarness(PARTITIONED, processes=2)
    rig.store_messages(*[message(b"%d" % number, key=KEY) for number in range(6)])
    reader = begun(rig)
    reader.credit = 6
    reader.request_messages()
    reader.credit = 2  # it took some back while they were on their way
    rig.run_until_idle()
    assert reader.bodies == [b"0", b"1"]
    grant(rig, reader, 10)
    assert reader.bodies == [b"%d" % number for number in range(6)]


def test_a_reader_goes_on_where_it_was_when_the_owner_is_back() -> None:
    rig = BrokerHarness(PARTITIONED, processes=2)
    rig.store_messages(*[message(b"%d" % number, key=KEY) for number in range(4)])
    reader = begun(rig)
    grant(rig, reader, 2)
    rig.disconnect()
    rig.connect()
    grant(rig, reader, 10)
    assert reader.bodies == [b"0", b"1", b"2", b"3"]


def test_a_reader_that_leaves_is_forgotten() -> None:
    rig = BrokerHarness(PARTITIONED, processes=2)
    reader = begun(rig)
    reader.browser.close()
    rig.run_until_idle()
    assert not rig.last_process.queue.parts[FRAGMENT].main.local.browse_cursors
