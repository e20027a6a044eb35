"""A batch of several keys is stored when the other process has said that its fragments can store their portions."""

from __future__ import annotations

import pytest

from tests.broker.consumers import Results
from tests.broker.harness import PARTITIONED, BrokerHarness
from tests.broker.messages import key_for_fragment, message
from tests.support.parts import local_part
from twinbus.amqp.message import Message, build
from twinbus.model.annotations import VIA_PARTITION_KEY
from twinbus.model.errors import FragmentUnavailable, PartlyStored, QuotaExceeded, ServerBusy
from twinbus.model.limits import NamespaceLimits

FULL = 2**30
NEAR, FAR = 0, 1
"""Fragments of the process that the sender is connected to, and of the other one."""


def part(number: int, body: bytes = b"x") -> bytes:
    return message(body, key=key_for_fragment(number), message_id=f"id-{number}")


def bodies(harness: BrokerHarness, number: int) -> list[bytes]:
    """Of the messages of a fragment of the near process, in their order."""
    found: list[list[bytes]] = []
    harness.queue.parts[number].main.browser.peek(0, 100, 100_000, lambda page: found.append(list(page)))  # type: ignore[arg-type]
    harness.run_until_idle()
    return [b"".join(Message(payload).data) for payload in found[0]]


@pytest.mark.parametrize("held", [FULL, FULL - 20])
def test_q27_nothing_is_stored_of_a_batch_that_a_fragment_of_another_process_has_no_room_for(held: int) -> None:
    rig = BrokerHarness(PARTITIONED, processes=2)
    rig.last_process.queue.parts[3].main.local.message_table.active_bytes = held
    (error,) = rig.send_and_wait(part(NEAR), part(FAR), part(3))
    assert isinstance(error, QuotaExceeded)
    assert "fragment 3:" in str(error)
    assert sum(rig.counts_by_fragment()) == 0
    assert rig.send_and_wait(part(NEAR), part(FAR)) == [None]
    assert rig.counts_by_fragment()[:4] == [1, 1, 0, 0]


def test_q27_nothing_is_stored_of_a_batch_if_a_process_does_not_answer_the_check() -> None:
    rig = BrokerHarness(PARTITIONED, processes=2)
    rig.silent_processes.add(1)
    answers = rig.send_and_wait(part(NEAR), part(FAR))
    for _ in range(11):
        rig.advance(1.0)
    (error,) = answers
    assert isinstance(error, FragmentUnavailable)
    rig.end_silence()
    assert sum(rig.counts_by_fragment()) == 0, "also when the process answers later"


def test_q27_nothing_is_stored_of_a_batch_if_a_process_ends_before_it_answers_the_check() -> None:
    rig = BrokerHarness(PARTITIONED, processes=2)
    answers = rig.send_messages(part(NEAR), part(FAR))
    rig.disconnect()
    (error,) = answers
    assert isinstance(error, FragmentUnavailable)
    assert sum(rig.counts_by_fragment()) == 0


def test_q27_if_a_process_ends_between_the_check_and_the_commit_the_stored_messages_are_named() -> None:
    rig = BrokerHarness(PARTITIONED, processes=2)
    answers = rig.send_messages(part(NEAR), part(FAR))
    while not rig.first_process.namespace.stores[1].pending_bytes:  # until its portion is on the way
        assert rig.step()  # the one moment that is meant
    rig.disconnect()
    (error,) = answers
    assert isinstance(error, PartlyStored)
    assert f"id-{NEAR}" in str(error)
    assert f"id-{FAR}" not in str(error)
    assert error.stored == [0]


def test_q27_nothing_is_stored_if_an_own_fragment_fills_up_while_the_other_process_is_asked() -> None:
    rig = BrokerHarness(PARTITIONED, processes=2)
    answers = rig.send_messages(part(NEAR), part(FAR))
    rig.queue.parts[NEAR].main.local.message_table.active_bytes = FULL
    rig.run_until_idle()
    (error,) = answers
    assert isinstance(error, QuotaExceeded)
    assert rig.counts_by_fragment()[FAR] == 0


def test_q27_of_two_batches_that_both_pass_the_check_the_second_names_the_messages_it_stored() -> None:
    rig = BrokerHarness(PARTITIONED, processes=2)
    rig.last_process.queue.parts[FAR].main.local.message_table.active_bytes = (
        FULL - 150
    )  # one such message has about 100 bytes
    first, second = rig.send_messages(part(NEAR), part(FAR)), rig.send_messages(part(2), part(FAR))
    rig.run_until_idle()
    assert first == [None]
    (error,) = second
    assert isinstance(error, PartlyStored)
    assert "id-2" in str(error)
    assert rig.counts_by_fragment()[:3] == [1, 1, 1]


def test_r113_later_sends_of_a_key_wait_behind_a_batch_that_is_checked_and_others_do_not() -> None:
    rig = BrokerHarness(PARTITIONED, processes=2)
    rig.silent_processes.add(1)
    batch = rig.send_and_wait(part(NEAR, b"first"), part(FAR, b"first"))
    later = [rig.send_and_wait(part(NEAR, b"%d" % number)) for number in range(3)]
    behind = rig.send_and_wait(part(NEAR, b"last"), part(2, b"last"))
    assert rig.send_and_wait(part(4)) == [None], "no message of that fragment waits"
    assert [*batch, *behind, *[answer for answers in later for answer in answers]] == []
    rig.end_silence()
    assert [*batch, *behind] == [None, None]
    assert later == [[None]] * 3
    assert bodies(rig, NEAR) == [b"first", b"0", b"1", b"2", b"last"]


def test_what_waits_for_a_check_is_bounded() -> None:
    rig = BrokerHarness(PARTITIONED, limits=NamespaceLimits(max_pending_bytes=1_000), processes=2)
    rig.silent_processes.add(1)
    waiting = [rig.send_messages(part(NEAR, b"x" * 600), part(FAR, b"x" * 600))]
    with pytest.raises(ServerBusy, match="wait to be sent to 'orders'"):
        rig.send_messages(part(NEAR), part(FAR))
    with pytest.raises(ServerBusy):
        rig.send_messages(part(NEAR))
    rig.end_silence()
    assert waiting == [[None]]
    assert rig.send_and_wait(part(NEAR), part(FAR)) == [None]


@pytest.mark.parametrize("payloads", [[part(FAR)], [part(FAR), part(FAR)], [message(b"no key")]])
def test_what_goes_to_one_fragment_is_not_checked_before(payloads: list[bytes]) -> None:
    rig = BrokerHarness(PARTITIONED, processes=2)
    rig.queue.partitioner._next_fragment = FAR  # noqa: SLF001  # the first without a key goes there
    rig.send_messages(*payloads)
    assert len(rig.peer_messages) == 1
    assert rig.first_process.namespace.stores[1].pending_bytes, "the messages are on their way already"


def test_nothing_is_sent_on_by_way_of_a_queue_that_a_fragment_of_another_process_has_no_room_for() -> None:
    rig = BrokerHarness(PARTITIONED, processes=2)
    rig.last_process.queue.parts[FAR].main.local.message_table.active_bytes = FULL
    answers, queue = Results(), rig.queue
    vias = [build(message_annotations={VIA_PARTITION_KEY: key_for_fragment(number)}) for number in (NEAR, FAR)]
    queue.send_via(rig.incoming_batch(*[via + message() for via in vias]).records, "elsewhere", answers)
    rig.run_until_idle()
    assert isinstance(answers[0], QuotaExceeded)
    assert local_part(queue, NEAR).transfers is None, "nothing was ever sent by way of it"
