"""A receiver of fragments in several processes reserves credit for each, never more than it has in total."""

from __future__ import annotations

import pytest

from tests.broker.consumers import FakeConsumer, Results
from tests.broker.harness import PARTITIONED, BrokerHarness
from tests.broker.messages import key_for_fragment, message
from tests.simulation.broker.payloads import read_delivery
from twinbus.broker.ports.peer_protocol import StoreHealth
from twinbus.broker.ports.settlement import SomeLocksLost
from twinbus.model.description import FRAGMENT_COUNT
from twinbus.model.errors import StoreUnavailable


def test_messages_of_both_processes_are_received_by_one_receiver() -> None:
    harness = BrokerHarness(PARTITIONED, processes=2)
    harness.store_messages(*[message(b"%d" % number) for number in range(40)])
    receiver = harness.consumer(100)
    assert sorted(map(int, receiver.bodies)) == list(range(40))
    assert receiver.available_credit == 60


def test_messages_sent_later_are_received() -> None:
    harness = BrokerHarness(PARTITIONED, processes=2)
    receiver = harness.consumer(100)
    harness.store_messages(*[message(b"%d" % number) for number in range(40)], by=harness.last_process)
    assert sorted(map(int, receiver.bodies)) == list(range(40))


def test_q29_no_more_messages_are_locked_than_there_is_credit() -> None:
    harness = BrokerHarness(PARTITIONED, processes=2)
    harness.store_messages(*[message() for _ in range(4 * FRAGMENT_COUNT)])
    receiver = harness.consumer(5)
    assert len(receiver.deliveries) == 5
    owners = [(harness.first_process, harness.last_process)[number % 2] for number in range(FRAGMENT_COUNT)]
    lock_counts = [len(owner.queue.parts[number].main.local.in_flight.locks) for number, owner in enumerate(owners)]
    assert sum(lock_counts) == 5
    assert receiver.available_credit == 0


def test_q29_a_drain_finds_a_message_in_any_fragment() -> None:
    for fragment in range(FRAGMENT_COUNT):
        harness = BrokerHarness(PARTITIONED, processes=2)
        receiver = harness.consumer()
        harness.store_messages(message(key=key_for_fragment(fragment)))
        receiver.drain(1)
        harness.run_until_idle()
        assert len(receiver.deliveries) == 1
        assert receiver.drain_count == 1


def test_a_drain_without_messages_returns_all_credit() -> None:
    harness = BrokerHarness(PARTITIONED, processes=2)
    receiver = harness.consumer()
    receiver.drain(10)
    harness.run_until_idle()
    assert (receiver.drain_count, receiver.reserved, receiver.deliveries) == (1, 0, [])


def test_a_drain_delivers_local_messages_while_another_process_does_not_respond() -> None:
    harness = BrokerHarness(PARTITIONED, processes=2)
    receiver = harness.consumer()
    harness.silent_processes.add(1)
    receiver.grant(1)
    harness.run_until_idle()
    harness.store_messages(message(b"here", key=key_for_fragment(0)))
    receiver.drain(1)
    harness.advance(0.1)
    assert (receiver.bodies, receiver.drain_count) == ([b"here"], 1)


def test_q29_credit_returned_during_a_drain_is_used_by_local_fragments_first() -> None:
    harness = BrokerHarness(PARTITIONED, processes=2)
    harness.store_messages(message(b"there", key=key_for_fragment(3)))
    harness.stores[3].hang()
    receiver = harness.consumer()
    harness.silent_processes.add(1)
    receiver.grant(1)
    harness.store_messages(message(b"here", key=key_for_fragment(0)))
    receiver.drain()
    assert receiver.available_credit == 0, "all credit is reserved by fragment 1"
    harness.end_silence()
    assert (receiver.bodies, receiver.drain_count) == ([b"here"], 1)


def test_q29_credit_returned_after_a_drain_timed_out_is_for_all_fragments() -> None:
    harness = BrokerHarness(PARTITIONED, processes=2)
    harness.store_messages(message(b"there", key=key_for_fragment(3)))
    harness.stores[3].hang()
    receiver = harness.consumer()
    harness.silent_processes.add(1)
    receiver.drain(2)
    harness.advance(0.06)
    harness.end_silence()
    harness.advance(0.05)
    assert (receiver.drain_count, receiver.reserved) == (1, 2), "fragment 3 reserved credit after the drain began"
    receiver.grant(2)
    harness.store_messages(message(b"here", key=key_for_fragment(0)))
    harness.stores[3].resume()
    harness.run_until_idle()
    assert receiver.bodies == [b"there", b"here"]


def test_a_receiver_that_detaches_during_a_drain_reserves_no_credit() -> None:
    harness = BrokerHarness(PARTITIONED, processes=2)
    receiver = harness.consumer()
    harness.silent_processes.add(1)
    receiver.drain(10)
    harness.run_until_idle()
    assert (receiver.drain_count, receiver.reserved) == (0, 10)
    receiver.leave()
    harness.advance(1.0)
    assert (receiver.drain_count, receiver.reserved) == (0, 0)


def test_received_messages_are_completed_by_their_owners() -> None:
    harness = BrokerHarness(PARTITIONED, processes=2)
    harness.store_messages(*[message() for _ in range(3 * FRAGMENT_COUNT)])
    receiver, results = harness.consumer(100), Results()
    receiver.complete(results)
    harness.run_until_idle()
    assert set(results) == {None}
    assert sum(harness.counts_by_fragment()) == 0


def test_a_settlement_reports_which_locks_were_lost() -> None:
    harness = BrokerHarness(PARTITIONED, processes=2)
    harness.store_messages(message(key=key_for_fragment(1)), message(key=key_for_fragment(1)))
    receiver, results = harness.consumer(2), Results()
    fragment = harness.queue.parts[1].main
    first, second = fragment.lock_numbers([tag for _, tag in receiver.deliveries])
    fragment.settlement.complete([first], results)
    harness.run_until_idle()
    fragment.settlement.complete([first, second], results)
    harness.run_until_idle()
    assert results[0] is None
    assert isinstance(results[1], SomeLocksLost)
    assert results[1].lock_numbers == [first]
    assert harness.counts_by_fragment()[1] == 0


def test_messages_are_received_and_deleted_from_both_processes() -> None:
    harness = BrokerHarness(PARTITIONED, processes=2)
    harness.store_messages(*[message() for _ in range(2 * FRAGMENT_COUNT)])
    receiver = harness.consumer(100, deletes=True)
    assert len(receiver.deliveries) == 2 * FRAGMENT_COUNT
    assert (receiver.reserved, sum(harness.counts_by_fragment())) == (0, 0)


def test_a_deleted_message_that_the_receiver_does_not_accept_comes_back() -> None:
    harness = BrokerHarness(PARTITIONED, processes=2)
    harness.store_messages(message(b"kept", key=key_for_fragment(1)))
    receiver = harness.consumer(deletes=True)
    receiver.deliver = lambda deliveries: len(deliveries[:0])  # type: ignore[method-assign]
    receiver.grant(1)
    harness.run_until_idle()
    assert harness.counts_by_fragment()[1] == 1
    receiver.leave()
    assert harness.consumer(1).bodies == [b"kept"]


def test_a_deleted_message_that_cannot_come_back_leaves_the_counters_correct() -> None:
    harness = BrokerHarness(PARTITIONED, processes=2)
    harness.store_messages(message(b"gone", key=key_for_fragment(1)))
    receiver = harness.consumer(deletes=True)
    receiver.deliver = lambda deliveries: len(deliveries[:0])  # type: ignore[method-assign]
    harness.silent_processes.add(0)
    receiver.grant(1)
    harness.run_until_idle()
    harness.fail_stores(1)
    harness.end_silence()
    harness.recover()
    harness.store_messages(message(key=key_for_fragment(1)), message(key=key_for_fragment(1)))
    assert harness.counts_by_fragment()[1] == 2


@pytest.mark.parametrize("deletes", [False, True])
def test_messages_in_flight_to_a_detached_receiver_return_at_once_uncounted(deletes: bool) -> None:  # noqa: FBT001
    harness = BrokerHarness(PARTITIONED, processes=2)
    harness.store_messages(*[message(b"%d" % number, key=key_for_fragment(1)) for number in range(3)])
    receiver = harness.start_consumer(FakeConsumer(harness.queue.parts[1].main, deletes=deletes), 1)
    harness.silent_processes.add(0)
    receiver.grant(2)
    harness.run_until_idle()
    receiver.leave()
    harness.end_silence()
    assert receiver.bodies == [b"0"]
    other = harness.consumer(10, by=harness.last_process)
    assert other.bodies == [b"1", b"2"]
    assert all(read_delivery(payload).delivered == 0 for payload, _ in other.deliveries)


def test_a_detached_receiver_leaves_no_consumers_or_handlers() -> None:
    harness = BrokerHarness(PARTITIONED, processes=2)
    receiver = harness.consumer(10)
    receiver.leave()
    harness.run_until_idle()
    assert not harness.first_process.peer_client.notice_handlers
    assert not any(part.main.dispatcher.consumers for part in harness.last_process.queue.parts)


def test_credit_reserved_by_an_unresponsive_process_is_released() -> None:
    harness = BrokerHarness(PARTITIONED, processes=2)
    harness.store_messages(message(b"late", key=key_for_fragment(1)))
    receiver = harness.consumer()
    harness.silent_processes.add(1)
    receiver.grant(1)
    harness.run_until_idle()
    assert receiver.available_credit == 0
    harness.advance(0.3)
    assert receiver.available_credit == 1
    harness.store_messages(message(b"here", key=key_for_fragment(2)))
    assert receiver.bodies == [b"here"]
    harness.end_silence()
    assert receiver.bodies == [b"here"]
    receiver.grant(1)
    harness.run_until_idle()
    assert receiver.bodies == [b"here", b"late"]


def test_receive_and_delete_works_with_a_slow_disk() -> None:
    harness = BrokerHarness(PARTITIONED, processes=2)
    harness.store_messages(*[message(b"%d" % number, key=key_for_fragment(1)) for number in range(3)])
    receiver, disk = harness.consumer(deletes=True), harness.stores[1]
    disk.hang()
    receiver.grant(3)
    for _ in range(20):
        for _ in range(3):
            harness.advance(0.1)
        disk.resume()
        while disk.has_work:
            disk.step()
        disk.hang()
        harness.run_until_idle()
    assert receiver.bodies == [b"0", b"1", b"2"]


def test_credit_granted_while_a_process_is_suspect_is_used_when_it_responds() -> None:
    harness = BrokerHarness(PARTITIONED, processes=2)
    harness.store_messages(*[message(b"%d" % number, key=key_for_fragment(1)) for number in range(3)])
    first, second = harness.consumer(), harness.consumer()
    harness.silent_processes.add(1)
    first.grant(1)
    harness.advance(0.3)
    second.grant(2)
    harness.run_until_idle()
    harness.end_silence()
    assert len(second.bodies) == 2


def test_a_suspect_process_is_probed_and_recovers() -> None:
    harness = BrokerHarness(PARTITIONED, processes=2)
    harness.store_messages(message(b"one", key=key_for_fragment(1)))
    fragments = [harness.queue.parts[1].main]
    first, second = harness.start_consumer(FakeConsumer(*fragments)), harness.start_consumer(FakeConsumer(*fragments))
    harness.silent_processes.add(1)
    first.grant(1)
    harness.advance(0.3)
    first.leave()
    second.grant(1)
    harness.run_until_idle()
    harness.end_silence()
    assert second.bodies == [b"one"]


def test_credit_granted_while_a_store_is_unavailable_is_used_when_it_recovers() -> None:
    harness = BrokerHarness(PARTITIONED, processes=2)
    harness.store_messages(message(b"one", key=key_for_fragment(1)))
    harness.first_process.peer_client.receive(0, StoreHealth({1: ("it failed", None)}))
    receiver = harness.consumer(1)
    assert receiver.bodies == []
    harness.first_process.peer_client.receive(0, StoreHealth({1: (None, None)}))
    harness.run_until_idle()
    assert receiver.bodies == [b"one"]


def test_a_receiver_that_detaches_with_reserved_credit_does_not_make_a_process_suspect() -> None:
    harness = BrokerHarness(PARTITIONED, processes=2)
    receiver, other = harness.consumer(), harness.consumer()
    receiver.credit = 1
    receiver.request_messages()
    receiver.leave()
    harness.run_until_idle()
    harness.advance(1.0)
    other.grant(1)
    harness.store_messages(message(b"one", key=key_for_fragment(1)))
    assert other.bodies == [b"one"]


def test_a_receiver_is_attached_again_when_the_owner_reconnects() -> None:
    harness = BrokerHarness(PARTITIONED, processes=2)
    receiver = harness.consumer(10)
    harness.disconnect()
    assert receiver.reserved == 0
    harness.store_messages(message(b"near", key=key_for_fragment(0)))
    assert receiver.bodies == [b"near"]
    harness.connect()
    harness.store_messages(message(b"far", key=key_for_fragment(1)), by=harness.last_process)
    assert receiver.bodies == [b"near", b"far"]


def test_the_receivers_of_a_disconnected_process_are_removed_from_other_processes() -> None:
    harness = BrokerHarness(PARTITIONED, processes=2)
    harness.store_messages(message(b"one", key=key_for_fragment(1)))
    harness.consumer(10)
    harness.disconnect()
    assert not any(part.main.dispatcher.consumers for part in harness.last_process.queue.parts[1::2])
    harness.advance(100.0)
    assert harness.consumer(10, by=harness.last_process).bodies == [b"one"]


def test_a_receiver_attached_while_a_process_does_not_respond_gets_its_messages_later() -> None:
    harness = BrokerHarness(PARTITIONED, processes=2)
    harness.silent_processes.add(1)
    receiver = harness.consumer(10)
    results = harness.send_and_wait(message(b"late", key=key_for_fragment(1)))
    for _ in range(11):
        harness.advance(1.0)
    assert isinstance(results[0], StoreUnavailable)
    assert not receiver.errors
    harness.store_messages(message(b"here", key=key_for_fragment(0)))
    assert receiver.bodies == [b"here"]
    harness.end_silence()
    assert receiver.bodies == [b"here", b"late"]
