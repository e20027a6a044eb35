"""A client that looks at an entity sees what the fragments of all processes have."""

from __future__ import annotations

import pytest

from tests.broker.consumers import FakeConsumer
from tests.broker.harness import PARTITIONED, BrokerHarness
from tests.broker.messages import key_for_fragment, message
from tests.broker.remote.fake_links import attach_browser
from twinbus.amqp.message import Message
from twinbus.model.description import FRAGMENT_COUNT


class BrowsingClient:
    """Looks at all fragments."""

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
    """Looks at a range of one fragment, and wants to know when it is over."""

    def __init__(self, harness: BrokerHarness, fragment: int, first: int, last: int) -> None:
        self.bodies = []
        self._harness = harness
        limits = {"twinbus:from-sequence-number": first, "twinbus:to-sequence-number": last}
        chosen = [harness.queue.parts[fragment].main]
        self.link, self.browse_link = attach_browser(self._on_delivery, chosen, harness.deferred_calls.append, limits)
        harness.run_until_idle()


def test_what_is_in_all_fragments_is_seen() -> None:
    rig = BrokerHarness(PARTITIONED, processes=2)
    rig.store_messages(*[message(b"%d" % number) for number in range(2 * FRAGMENT_COUNT)])
    client = BrowsingClient(rig)
    client.grant(100)
    assert sorted(map(int, client.bodies)) == list(range(2 * FRAGMENT_COUNT))


def test_a_drain_shows_what_is_in_all_fragments_and_is_answered() -> None:
    for fragment in range(FRAGMENT_COUNT):
        rig = BrokerHarness(PARTITIONED, processes=2)
        rig.store_messages(message(b"one", key=key_for_fragment(fragment)))
        client = BrowsingClient(rig)
        client.grant(3, drain=True)
        assert (client.bodies, client.link.drains) == ([b"one"], 1)


def test_a_drain_takes_no_more_than_there_is_credit_for() -> None:
    rig = BrokerHarness(PARTITIONED, processes=2)
    rig.store_messages(*[message(b"%d" % number) for number in range(2 * FRAGMENT_COUNT)])
    client = BrowsingClient(rig)
    client.grant(5, drain=True)
    assert (len(client.bodies), client.link.drains) == (5, 1)
    client.grant(100, drain=True)
    assert sorted(map(int, client.bodies)) == list(range(2 * FRAGMENT_COUNT))
    assert client.link.drains == 2


def test_a_drain_is_answered_while_a_process_is_silent() -> None:
    rig = BrokerHarness(PARTITIONED, processes=2)
    rig.store_messages(message(b"here", key=key_for_fragment(0)))
    client = BrowsingClient(rig)
    rig.silent_processes.add(1)
    client.grant(3, drain=True)
    rig.advance(0.1)
    assert (client.bodies, client.link.drains) == ([b"here"], 1)


def test_room_that_comes_back_during_a_drain_shows_what_is_here_before_a_slow_disk_of_another_process_answers() -> None:
    rig = BrokerHarness(PARTITIONED, processes=2)
    rig.store_messages(message(b"there", key=key_for_fragment(3)))
    rig.stores[3].hang()
    client = BrowsingClient(rig)
    rig.silent_processes.add(1)
    client.grant(1)
    rig.store_messages(message(b"here", key=key_for_fragment(4)))
    client.grant(0, drain=True)
    assert client.browse_link.available_credit == 0, "all is lent to fragment 1"
    rig.end_silence()
    assert client.bodies == [b"here"]
    rig.advance(0.1)
    assert client.link.drains == 1


def test_a_drain_that_is_asked_for_before_the_link_is_accepted_is_answered() -> None:
    rig = BrokerHarness(PARTITIONED, processes=2)
    rig.store_messages(message(b"one", key=key_for_fragment(1)))
    client = BrowsingClient(rig, 1)
    client.grant(3, drain=True)
    assert (client.bodies, client.link.drains) == ([b"one"], 1)


def test_a_range_is_over_when_all_of_it_was_seen() -> None:
    for fragment in range(FRAGMENT_COUNT):
        rig = BrokerHarness(PARTITIONED, processes=2)
        first = (fragment << 48) + 1
        rig.store_messages(*[message(b"%d" % number, key=key_for_fragment(fragment)) for number in range(4)])
        client = RangeBrowsingClient(rig, fragment, first + 1, first + 2)
        client.grant(1)
        assert (client.bodies, client.link.errors) == ([b"1"], [])
        client.grant(100)
        assert client.bodies == [b"1", b"2"]
        assert [error.condition for error in client.link.errors] == ["twinbus:range-seen"]


def test_a_range_that_reaches_beyond_what_is_there_is_not_over() -> None:
    for fragment in range(FRAGMENT_COUNT):
        rig = BrokerHarness(PARTITIONED, processes=2)
        first = (fragment << 48) + 1
        rig.store_messages(message(b"0", key=key_for_fragment(fragment)))
        client = RangeBrowsingClient(rig, fragment, first, first + 1)
        client.grant(100)
        assert (client.bodies, client.link.errors) == ([b"0"], [])
        rig.store_messages(message(b"1", key=key_for_fragment(fragment)))
        rig.run_until_idle()
        assert client.bodies == [b"0", b"1"]
        assert [error.condition for error in client.link.errors] == ["twinbus:range-seen"]


@pytest.mark.parametrize("end", ["taken", "left", "lost"])
def test_a_reader_waits_for_what_is_on_its_way_to_a_receiver_in_another_process(end: str) -> None:
    """The message was deleted for the receiver. It comes back if that has left; nobody knows of it if that is lost."""
    rig = BrokerHarness(PARTITIONED, processes=2)
    rig.store_messages(message(b"1", key=key_for_fragment(1)), message(b"2", key=key_for_fragment(1)))
    receiver = rig.start_consumer(FakeConsumer(rig.queue.parts[1].main, deletes=True))
    rig.silent_processes.add(0)
    receiver.grant(1)
    rig.run_until_idle()
    assert rig.counts_by_fragment()[1] == 1
    seen: list[bytes] = []
    link, use = attach_browser(
        lambda delivery: seen.append(Message(delivery[0]).data[0]),
        rig.last_process.fragments[1:2],
        rig.deferred_calls.append,
    )
    link.credit = 10
    use.on_credit()
    rig.run_until_idle()
    assert seen == []
    if end == "lost":
        rig.disconnect()
    else:
        if end == "left":
            receiver.leave()
        rig.end_silence()
    assert seen == ([b"1", b"2"] if end == "left" else [b"2"])
