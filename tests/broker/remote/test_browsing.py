"""Peeking and browsing fragments of another process."""

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
    """A link that browses."""

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


def start_browsing(harness: BrokerHarness, first: int = 0, last: int = LAST) -> FakeReader:
    reader, fragment = FakeReader(), harness.queue.parts[FRAGMENT].main
    assert isinstance(fragment, RemoteFragment)
    reader.browser = fragment.browser.browse(reader, first, last, ends_at_last=False, read_limiter=ReadLimiter())
    harness.run_until_idle()
    return reader


def grant(harness: BrokerHarness, reader: FakeReader, credit: int) -> None:
    reader.credit += credit
    reader.request_messages()
    harness.run_until_idle()


def test_a_peek_is_served_by_the_owner_of_the_fragment() -> None:
    harness = BrokerHarness(PARTITIONED, processes=2)
    harness.store_messages(*[message(b"%d" % number, key=KEY) for number in range(5)])
    pages: list[list[bytes] | ServiceBusError] = []
    harness.queue.parts[FRAGMENT].main.browser.peek(0, 3, 10_000, pages.append)
    harness.run_until_idle()
    assert isinstance(pages[0], list)
    assert [Message(payload).data[0] for payload in pages[0]] == [b"0", b"1", b"2"]


def test_the_owner_of_the_fragment_finds_a_message_by_time() -> None:
    harness = BrokerHarness(PARTITIONED, processes=2)
    harness.store_messages(message(key=KEY))
    harness.advance(10.0)
    harness.store_messages(message(key=KEY))
    replies: list[int | ServiceBusError] = []
    harness.queue.parts[FRAGMENT].main.browser.find_by_enqueued_time(harness.clock.wall_ms() - 5_000, replies.append)
    harness.run_until_idle()
    assert replies == [(FRAGMENT << 48) + 2]


def test_a_reader_sees_as_many_messages_as_its_credit_in_order() -> None:
    harness = BrokerHarness(PARTITIONED, processes=2)
    harness.store_messages(*[message(b"%d" % number, key=KEY) for number in range(10)])
    reader = start_browsing(harness)
    assert reader.seen == []
    grant(harness, reader, 4)
    assert reader.bodies == [b"0", b"1", b"2", b"3"]
    grant(harness, reader, 100)
    assert reader.bodies == [b"%d" % number for number in range(10)]
    harness.store_messages(message(b"10", key=KEY))
    assert reader.bodies[-1] == b"10"


def test_messages_a_reader_did_not_accept_are_sent_again() -> None:
    harness = BrokerHarness(PARTITIONED, processes=2)
    harness.store_messages(*[message(b"%d" % number, key=KEY) for number in range(6)])
    reader = start_browsing(harness)
    reader.credit = 6
    reader.request_messages()
    reader.credit = 2  # the credit was reduced while messages were in flight
    harness.run_until_idle()
    assert reader.bodies == [b"0", b"1"]
    grant(harness, reader, 10)
    assert reader.bodies == [b"%d" % number for number in range(6)]


def test_a_reader_continues_at_its_position_when_the_owner_is_back() -> None:
    harness = BrokerHarness(PARTITIONED, processes=2)
    harness.store_messages(*[message(b"%d" % number, key=KEY) for number in range(4)])
    reader = start_browsing(harness)
    grant(harness, reader, 2)
    harness.disconnect()
    harness.connect()
    grant(harness, reader, 10)
    assert reader.bodies == [b"0", b"1", b"2", b"3"]


def test_a_closed_reader_leaves_no_cursor() -> None:
    harness = BrokerHarness(PARTITIONED, processes=2)
    reader = start_browsing(harness)
    reader.browser.close()
    harness.run_until_idle()
    assert not harness.last_process.queue.parts[FRAGMENT].main.local.browse_cursors
