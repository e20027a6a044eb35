"""A browse link shows the messages of all fragments, in all processes."""

from __future__ import annotations

import pytest

from tests.broker.consumers import FakeConsumer
from tests.broker.harness import PARTITIONED, BrokerHarness
from tests.broker.messages import key_for_fragment, message
from tests.broker.remote.fake_links import attach_browser
from twinbus.amqp.message import Message
from twinbus.model.description import FRAGMENT_COUNT


class BrowsingClient:
    """A client that browses all fragments."""

    def __init__(self, harness: BrokerHarness, *fragments: int) -> None:
        self.bodies: list[bytes] = []
        self._harness = harness
        parts = harness.queue.parts
        chosen = [parts[number].main for number in fragments or range(len(parts))]
        self.link, self.browse_link = attach_browser(self._on_delivery, chosen, harness.deferred_calls.append)
        if not fragments:
            harness.run_until_idle()

    def _on_delivery(self, delivery: tuple[bytes, bytes]) -> None:
        self.bodies.append(Message(delivery[0]).data[0])

    def grant(self, credit: int, *, drain: bool = False) -> None:
        self.link.credit += credit
        self.link.drain_requested = drain
        self.browse_link.on_credit()
        self._harness.run_until_idle()


class RangeBrowsingClient(BrowsingClient):
    """A client that browses a range of one fragment and is notified at its end."""

    def __init__(self, harness: BrokerHarness, fragment: int, first: int, last: int) -> None:
        self.bodies = []
        self._harness = harness
        limits = {"twinbus:from-sequence-number": first, "twinbus:to-sequence-number": last}
        chosen = [harness.queue.parts[fragment].main]
        self.link, self.browse_link = attach_browser(self._on_delivery, chosen, harness.deferred_calls.append, limits)
        harness.run_until_idle()


def test_a_browser_sees_the_messages_of_all_fragments() -> None:
    harness = BrokerHarness(PARTITIONED, processes=2)
    harness.store_messages(*[message(b"%d" % number) for number in range(2 * FRAGMENT_COUNT)])
    client = BrowsingClient(harness)
    client.grant(100)
    assert sorted(map(int, client.bodies)) == list(range(2 * FRAGMENT_COUNT))


def test_a_drain_shows_the_messages_of_all_fragments_and_ends() -> None:
    for fragment in range(FRAGMENT_COUNT):
        harness = BrokerHarness(PARTITIONED, processes=2)
        harness.store_messages(message(b"one", key=key_for_fragment(fragment)))
        client = BrowsingClient(harness)
        client.grant(3, drain=True)
        assert (client.bodies, client.link.drains) == ([b"one"], 1)


def test_a_drain_delivers_no_more_than_the_credit() -> None:
    harness = BrokerHarness(PARTITIONED, processes=2)
    harness.store_messages(*[message(b"%d" % number) for number in range(2 * FRAGMENT_COUNT)])
    client = BrowsingClient(harness)
    client.grant(5, drain=True)
    assert (len(client.bodies), client.link.drains) == (5, 1)
    client.grant(100, drain=True)
    assert sorted(map(int, client.bodies)) == list(range(2 * FRAGMENT_COUNT))
    assert client.link.drains == 2


def test_a_drain_ends_while_a_process_does_not_respond() -> None:
    harness = BrokerHarness(PARTITIONED, processes=2)
    harness.store_messages(message(b"here", key=key_for_fragment(0)))
    client = BrowsingClient(harness)
    harness.silent_processes.add(1)
    client.grant(3, drain=True)
    harness.advance(0.1)
    assert (client.bodies, client.link.drains) == ([b"here"], 1)


def test_credit_returned_during_a_drain_is_used_by_local_fragments_first() -> None:
    harness = BrokerHarness(PARTITIONED, processes=2)
    harness.store_messages(message(b"there", key=key_for_fragment(3)))
    harness.stores[3].hang()
    client = BrowsingClient(harness)
    harness.silent_processes.add(1)
    client.grant(1)
    harness.store_messages(message(b"here", key=key_for_fragment(4)))
    client.grant(0, drain=True)
    assert client.browse_link.available_credit == 0, "all credit is reserved by fragment 1"
    harness.end_silence()
    assert client.bodies == [b"here"]
    harness.advance(0.1)
    assert client.link.drains == 1


def test_a_drain_requested_before_the_link_is_accepted_ends() -> None:
    harness = BrokerHarness(PARTITIONED, processes=2)
    harness.store_messages(message(b"one", key=key_for_fragment(1)))
    client = BrowsingClient(harness, 1)
    client.grant(3, drain=True)
    assert (client.bodies, client.link.drains) == ([b"one"], 1)


def test_a_range_ends_when_all_of_it_was_seen() -> None:
    for fragment in range(FRAGMENT_COUNT):
        harness = BrokerHarness(PARTITIONED, processes=2)
        first = (fragment << 48) + 1
        harness.store_messages(*[message(b"%d" % number, key=key_for_fragment(fragment)) for number in range(4)])
        client = RangeBrowsingClient(harness, fragment, first + 1, first + 2)
        client.grant(1)
        assert (client.bodies, client.link.errors) == ([b"1"], [])
        client.grant(100)
        assert client.bodies == [b"1", b"2"]
        assert [error.condition for error in client.link.errors] == ["twinbus:range-seen"]


def test_a_range_beyond_the_last_message_does_not_end() -> None:
    for fragment in range(FRAGMENT_COUNT):
        harness = BrokerHarness(PARTITIONED, processes=2)
        first = (fragment << 48) + 1
        harness.store_messages(message(b"0", key=key_for_fragment(fragment)))
        client = RangeBrowsingClient(harness, fragment, first, first + 1)
        client.grant(100)
        assert (client.bodies, client.link.errors) == ([b"0"], [])
        harness.store_messages(message(b"1", key=key_for_fragment(fragment)))
        harness.run_until_idle()
        assert client.bodies == [b"0", b"1"]
        assert [error.condition for error in client.link.errors] == ["twinbus:range-seen"]


@pytest.mark.parametrize("end", ["taken", "left", "lost"])
def test_a_browser_waits_for_messages_in_flight_to_a_receiver_of_another_process(end: str) -> None:
    """The message was deleted for the receiver. It comes back if the receiver detaches, not if the process is lost."""
    harness = BrokerHarness(PARTITIONED, processes=2)
    harness.store_messages(message(b"1", key=key_for_fragment(1)), message(b"2", key=key_for_fragment(1)))
    receiver = harness.start_consumer(FakeConsumer(harness.queue.parts[1].main, deletes=True))
    harness.silent_processes.add(0)
    receiver.grant(1)
    harness.run_until_idle()
    assert harness.counts_by_fragment()[1] == 1
    seen: list[bytes] = []
    link, browse_link = attach_browser(
        lambda delivery: seen.append(Message(delivery[0]).data[0]),
        harness.last_process.fragments[1:2],
        harness.deferred_calls.append,
    )
    link.credit = 10
    browse_link.on_credit()
    harness.run_until_idle()
    assert seen == []
    if end == "lost":
        harness.disconnect()
    else:
        if end == "left":
            receiver.leave()
        harness.end_silence()
    assert seen == ([b"1", b"2"] if end == "left" else [b"2"])
