"""Who receives from fragments of several processes lends each what it has room for, and no more than that in all."""

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
    rig = BrokerHarness(PARTITIONED, processes=2)
    rig.store_messages(*[message(b"%d" % number) for number in range(40)])
    receiver = rig.consumer(100)
    assert sorted(map(int, receiver.bodies)) == list(range(40))
    assert receiver.available_credit == 60


def test_what_comes_later_is_received_too() -> None:
    rig = BrokerHarness(PARTITIONED, processes=2)
    receiver = rig.consumer(100)
    rig.store_messages(*[message(b"%d" % number) for number in range(40)], by=rig.last_process)
    assert sorted(map(int, receiver.bodies)) == list(range(40))


def test_q29_no_more_is_locked_than_there_is_credit_for() -> None:
    rig = BrokerHarness(PARTITIONED, processes=2)
    rig.store_messages(*[message() for _ in range(4 * FRAGMENT_COUNT)])
    receiver = rig.consumer(5)
    assert len(receiver.deliveries) == 5
    owners = [(rig.first_process, rig.last_process)[number % 2] for number in range(FRAGMENT_COUNT)]
    out = [len(owner.queue.parts[number].main.local.in_flight.locks) for number, owner in enumerate(owners)]
    assert sum(out) == 5
    assert receiver.available_credit == 0


def test_q29_a_drain_finds_a_message_wherever_it_lies() -> None:
    for fragment in range(FRAGMENT_COUNT):
        rig = BrokerHarness(PARTITIONED, processes=2)
        receiver = rig.consumer()
        rig.store_messages(message(key=key_for_fragment(fragment)))
        receiver.drain(1)
        rig.run_until_idle()
        assert len(receiver.deliveries) == 1
        assert receiver.drain_count == 1


def test_an_empty_drain_is_answered_with_all_credit_back() -> None:
    rig = BrokerHarness(PARTITIONED, processes=2)
    receiver = rig.consumer()
    receiver.drain(10)
    rig.run_until_idle()
    assert (receiver.drain_count, receiver.reserved, receiver.deliveries) == (1, 0, [])


def test_a_drain_gives_what_is_here_while_another_process_is_silent() -> None:
    rig = BrokerHarness(PARTITIONED, processes=2)
    receiver = rig.consumer()
    rig.silent_processes.add(1)
    receiver.grant(1)
    rig.run_until_idle()
    rig.store_messages(message(b"here", key=key_for_fragment(0)))
    receiver.drain(1)
    rig.advance(0.1)
    assert (receiver.bodies, receiver.drain_count) == ([b"here"], 1)


def test_q29_credit_that_comes_back_during_a_drain_is_for_what_is_here_before_a_slow_disk_of_another_process() -> None:
    rig = BrokerHarness(PARTITIONED, processes=2)
    rig.store_messages(message(b"there", key=key_for_fragment(3)))
    rig.stores[3].hang()
    receiver = rig.consumer()
    rig.silent_processes.add(1)
    receiver.grant(1)
    rig.store_messages(message(b"here", key=key_for_fragment(0)))
    receiver.drain()
    assert receiver.available_credit == 0, "all is lent to fragment 1"
    rig.end_silence()
    assert (receiver.bodies, receiver.drain_count) == ([b"here"], 1)


def test_q29_credit_that_comes_back_after_the_time_of_a_drain_is_for_all_fragments() -> None:
    rig = BrokerHarness(PARTITIONED, processes=2)
    rig.store_messages(message(b"there", key=key_for_fragment(3)))
    rig.stores[3].hang()
    receiver = rig.consumer()
    rig.silent_processes.add(1)
    receiver.drain(2)
    rig.advance(0.06)
    rig.end_silence()
    rig.advance(0.05)
    assert (receiver.drain_count, receiver.reserved) == (1, 2), "fragment 3 was asked later than the drain began"
    receiver.grant(2)
    rig.store_messages(message(b"here", key=key_for_fragment(0)))
    rig.stores[3].resume()
    rig.run_until_idle()
    assert receiver.bodies == [b"there", b"here"]


def test_who_leaves_during_a_drain_is_not_told_of_it_and_lends_nothing_more() -> None:
    rig = BrokerHarness(PARTITIONED, processes=2)
    receiver = rig.consumer()
    rig.silent_processes.add(1)
    receiver.drain(10)
    rig.run_until_idle()
    assert (receiver.drain_count, receiver.reserved) == (0, 10)
    receiver.leave()
    rig.advance(1.0)
    assert (receiver.drain_count, receiver.reserved) == (0, 0)


def test_what_was_received_is_completed_where_it_lies() -> None:
    rig = BrokerHarness(PARTITIONED, processes=2)
    rig.store_messages(*[message() for _ in range(3 * FRAGMENT_COUNT)])
    receiver, answers = rig.consumer(100), Results()
    receiver.complete(answers)
    rig.run_until_idle()
    assert set(answers) == {None}
    assert sum(rig.counts_by_fragment()) == 0


def test_a_lost_lock_is_told_beside_those_that_were_settled() -> None:
    rig = BrokerHarness(PARTITIONED, processes=2)
    rig.store_messages(message(key=key_for_fragment(1)), message(key=key_for_fragment(1)))
    receiver, answers = rig.consumer(2), Results()
    fragment = rig.queue.parts[1].main
    first, second = fragment.lock_numbers([tag for _, tag in receiver.deliveries])
    fragment.settlement.complete([first], answers)
    rig.run_until_idle()
    fragment.settlement.complete([first, second], answers)
    rig.run_until_idle()
    assert answers[0] is None
    assert isinstance(answers[1], SomeLocksLost)
    assert answers[1].lock_numbers == [first]
    assert rig.counts_by_fragment()[1] == 0


def test_messages_are_received_and_deleted_from_both_processes() -> None:
    rig = BrokerHarness(PARTITIONED, processes=2)
    rig.store_messages(*[message() for _ in range(2 * FRAGMENT_COUNT)])
    receiver = rig.consumer(100, deletes=True)
    assert len(receiver.deliveries) == 2 * FRAGMENT_COUNT
    assert (receiver.reserved, sum(rig.counts_by_fragment())) == (0, 0)


def test_what_was_deleted_for_a_receiver_that_takes_it_not_comes_back() -> None:
    rig = BrokerHarness(PARTITIONED, processes=2)
    rig.store_messages(message(b"kept", key=key_for_fragment(1)))
    receiver = rig.consumer(deletes=True)
    receiver.deliver = lambda deliveries: len(deliveries[:0])  # type: ignore[method-assign]
    receiver.grant(1)
    rig.run_until_idle()
    assert rig.counts_by_fragment()[1] == 1
    receiver.leave()
    assert rig.consumer(1).bodies == [b"kept"]


def test_what_cannot_come_back_because_the_store_has_failed_does_not_confuse_it() -> None:
    rig = BrokerHarness(PARTITIONED, processes=2)
    rig.store_messages(message(b"gone", key=key_for_fragment(1)))
    receiver = rig.consumer(deletes=True)
    receiver.deliver = lambda deliveries: len(deliveries[:0])  # type: ignore[method-assign]
    rig.silent_processes.add(0)
    receiver.grant(1)
    rig.run_until_idle()
    rig.fail_stores(1)
    rig.end_silence()
    rig.recover()
    rig.store_messages(message(key=key_for_fragment(1)), message(key=key_for_fragment(1)))
    assert rig.counts_by_fragment()[1] == 2


@pytest.mark.parametrize("deletes", [False, True])
def test_what_is_on_its_way_to_a_receiver_that_leaves_is_free_at_once_and_uncounted(deletes: bool) -> None:  # noqa: FBT001
    rig = BrokerHarness(PARTITIONED, processes=2)
    rig.store_messages(*[message(b"%d" % number, key=key_for_fragment(1)) for number in range(3)])
    receiver = rig.start_consumer(FakeConsumer(rig.queue.parts[1].main, deletes=deletes), 1)
    rig.silent_processes.add(0)
    receiver.grant(2)
    rig.run_until_idle()
    receiver.leave()
    rig.end_silence()
    assert receiver.bodies == [b"0"]
    other = rig.consumer(10, by=rig.last_process)
    assert other.bodies == [b"1", b"2"]
    assert all(read_delivery(payload).delivered == 0 for payload, _ in other.deliveries)


def test_a_receiver_that_goes_leaves_nothing_behind() -> None:
    rig = BrokerHarness(PARTITIONED, processes=2)
    receiver = rig.consumer(10)
    receiver.leave()
    rig.run_until_idle()
    assert not rig.first_process.peer_client.notice_handlers
    assert not any(part.main.dispatcher.consumers for part in rig.last_process.queue.parts)


def test_credit_lent_to_a_silent_process_is_written_off_and_its_late_messages_are_free_uncounted() -> None:
    rig = BrokerHarness(PARTITIONED, processes=2)
    rig.store_messages(message(b"late", key=key_for_fragment(1)))
    receiver = rig.consumer()
    rig.silent_processes.add(1)
    receiver.grant(1)
    rig.run_until_idle()
    assert receiver.available_credit == 0
    rig.advance(0.3)
    assert receiver.available_credit == 1
    rig.store_messages(message(b"here", key=key_for_fragment(2)))
    assert receiver.bodies == [b"here"]
    rig.end_silence()
    assert receiver.bodies == [b"here"]
    receiver.grant(1)
    rig.run_until_idle()
    assert receiver.bodies == [b"here", b"late"]


def test_what_is_received_and_deleted_comes_also_from_a_disk_that_is_slow() -> None:
    rig = BrokerHarness(PARTITIONED, processes=2)
    rig.store_messages(*[message(b"%d" % number, key=key_for_fragment(1)) for number in range(3)])
    receiver, disk = rig.consumer(deletes=True), rig.stores[1]
    disk.hang()
    receiver.grant(3)
    for _ in range(20):
        for _ in range(3):
            rig.advance(0.1)
        disk.resume()
        while disk.has_work:
            disk.step()
        disk.hang()
        rig.run_until_idle()
    assert receiver.bodies == [b"0", b"1", b"2"]


def test_who_asked_while_a_process_was_in_doubt_gets_what_it_has_when_it_speaks() -> None:
    rig = BrokerHarness(PARTITIONED, processes=2)
    rig.store_messages(*[message(b"%d" % number, key=key_for_fragment(1)) for number in range(3)])
    first, second = rig.consumer(), rig.consumer()
    rig.silent_processes.add(1)
    first.grant(1)
    rig.advance(0.3)
    second.grant(2)
    rig.run_until_idle()
    rig.end_silence()
    assert len(second.bodies) == 2


def test_a_process_in_doubt_is_asked_for_a_word_and_so_does_not_stay_in_doubt() -> None:
    rig = BrokerHarness(PARTITIONED, processes=2)
    rig.store_messages(message(b"one", key=key_for_fragment(1)))
    fragments = [rig.queue.parts[1].main]
    first, second = rig.start_consumer(FakeConsumer(*fragments)), rig.start_consumer(FakeConsumer(*fragments))
    rig.silent_processes.add(1)
    first.grant(1)
    rig.advance(0.3)
    first.leave()
    second.grant(1)
    rig.run_until_idle()
    rig.end_silence()
    assert second.bodies == [b"one"]


def test_who_asked_while_a_store_did_not_work_gets_what_it_has_when_it_does() -> None:
    rig = BrokerHarness(PARTITIONED, processes=2)
    rig.store_messages(message(b"one", key=key_for_fragment(1)))
    rig.first_process.peer_client.receive(0, StoreHealth({1: ("it failed", None)}))
    receiver = rig.consumer(1)
    assert receiver.bodies == []
    rig.first_process.peer_client.receive(0, StoreHealth({1: (None, None)}))
    rig.run_until_idle()
    assert receiver.bodies == [b"one"]


def test_who_leaves_while_something_is_lent_casts_no_doubt_on_the_process_that_had_it() -> None:
    rig = BrokerHarness(PARTITIONED, processes=2)
    receiver, other = rig.consumer(), rig.consumer()
    receiver.credit = 1
    receiver.request_messages()
    receiver.leave()
    rig.run_until_idle()
    rig.advance(1.0)
    other.grant(1)
    rig.store_messages(message(b"one", key=key_for_fragment(1)))
    assert other.bodies == [b"one"]


def test_a_receiver_is_there_again_when_its_owner_is() -> None:
    rig = BrokerHarness(PARTITIONED, processes=2)
    receiver = rig.consumer(10)
    rig.disconnect()
    assert receiver.reserved == 0
    rig.store_messages(message(b"near", key=key_for_fragment(0)))
    assert receiver.bodies == [b"near"]
    rig.connect()
    rig.store_messages(message(b"far", key=key_for_fragment(1)), by=rig.last_process)
    assert receiver.bodies == [b"near", b"far"]


def test_a_process_that_goes_takes_its_receivers_from_the_fragments_of_others() -> None:
    rig = BrokerHarness(PARTITIONED, processes=2)
    rig.store_messages(message(b"one", key=key_for_fragment(1)))
    rig.consumer(10)
    rig.disconnect()
    assert not any(part.main.dispatcher.consumers for part in rig.last_process.queue.parts[1::2])
    rig.advance(100.0)
    assert rig.consumer(10, by=rig.last_process).bodies == [b"one"]


def test_who_comes_while_a_process_is_silent_receives_from_others_and_from_it_when_it_speaks() -> None:
    rig = BrokerHarness(PARTITIONED, processes=2)
    rig.silent_processes.add(1)
    receiver = rig.consumer(10)
    answers = rig.send_and_wait(message(b"late", key=key_for_fragment(1)))
    for _ in range(11):
        rig.advance(1.0)
    assert isinstance(answers[0], StoreUnavailable)
    assert not receiver.errors
    rig.store_messages(message(b"here", key=key_for_fragment(0)))
    assert receiver.bodies == [b"here"]
    rig.end_silence()
    assert receiver.bodies == [b"here", b"late"]
