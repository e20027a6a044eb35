"""A batch with several keys is stored after the other process has confirmed that its fragments have space for it."""

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
    """Return the bodies of the messages of a fragment in the near process, in order."""
    pages: list[list[bytes]] = []
    harness.queue.parts[number].main.browser.peek(0, 100, 100_000, lambda page: pages.append(list(page)))  # type: ignore[arg-type]
    harness.run_until_idle()
    return [b"".join(Message(payload).data) for payload in pages[0]]


@pytest.mark.parametrize("held", [FULL, FULL - 20])
def test_q27_nothing_is_stored_if_a_fragment_of_another_process_is_full(held: int) -> None:
    harness = BrokerHarness(PARTITIONED, processes=2)
    harness.last_process.queue.parts[3].main.local.message_table.active_bytes = held
    (error,) = harness.send_and_wait(part(NEAR), part(FAR), part(3))
    assert isinstance(error, QuotaExceeded)
    assert "fragment 3:" in str(error)
    assert sum(harness.counts_by_fragment()) == 0
    assert harness.send_and_wait(part(NEAR), part(FAR)) == [None]
    assert harness.counts_by_fragment()[:4] == [1, 1, 0, 0]


def test_q27_nothing_is_stored_if_a_process_does_not_respond_to_the_check() -> None:
    harness = BrokerHarness(PARTITIONED, processes=2)
    harness.silent_processes.add(1)
    results = harness.send_and_wait(part(NEAR), part(FAR))
    for _ in range(11):
        harness.advance(1.0)
    (error,) = results
    assert isinstance(error, FragmentUnavailable)
    harness.end_silence()
    assert sum(harness.counts_by_fragment()) == 0, "nothing is stored when the process responds later either"


def test_q27_nothing_is_stored_if_a_process_ends_before_it_responds_to_the_check() -> None:
    harness = BrokerHarness(PARTITIONED, processes=2)
    results = harness.send_messages(part(NEAR), part(FAR))
    harness.disconnect()
    (error,) = results
    assert isinstance(error, FragmentUnavailable)
    assert sum(harness.counts_by_fragment()) == 0


def test_q27_if_a_process_ends_after_the_check_the_error_names_the_stored_messages() -> None:
    harness = BrokerHarness(PARTITIONED, processes=2)
    results = harness.send_messages(part(NEAR), part(FAR))
    while not harness.first_process.namespace.stores[1].pending_bytes:  # until its portion has been sent
        assert harness.step()  # the moment between check and commit
    harness.disconnect()
    (error,) = results
    assert isinstance(error, PartlyStored)
    assert f"id-{NEAR}" in str(error)
    assert f"id-{FAR}" not in str(error)
    assert error.stored == [0]


def test_q27_nothing_is_stored_if_a_local_fragment_fills_up_during_the_check() -> None:
    harness = BrokerHarness(PARTITIONED, processes=2)
    results = harness.send_messages(part(NEAR), part(FAR))
    harness.queue.parts[NEAR].main.local.message_table.active_bytes = FULL
    harness.run_until_idle()
    (error,) = results
    assert isinstance(error, QuotaExceeded)
    assert harness.counts_by_fragment()[FAR] == 0


def test_q27_a_batch_refused_after_its_check_names_the_messages_it_stored() -> None:
    harness = BrokerHarness(PARTITIONED, processes=2)
    harness.last_process.queue.parts[FAR].main.local.message_table.active_bytes = (
        FULL - 150
    )  # each message has about 100 bytes
    first, second = harness.send_messages(part(NEAR), part(FAR)), harness.send_messages(part(2), part(FAR))
    harness.run_until_idle()
    assert first == [None]
    (error,) = second
    assert isinstance(error, PartlyStored)
    assert "id-2" in str(error)
    assert harness.counts_by_fragment()[:3] == [1, 1, 1]


def test_r113_sends_to_a_fragment_wait_for_an_earlier_batch_during_its_check() -> None:
    harness = BrokerHarness(PARTITIONED, processes=2)
    harness.silent_processes.add(1)
    batch = harness.send_and_wait(part(NEAR, b"first"), part(FAR, b"first"))
    later = [harness.send_and_wait(part(NEAR, b"%d" % number)) for number in range(3)]
    behind = harness.send_and_wait(part(NEAR, b"last"), part(2, b"last"))
    assert harness.send_and_wait(part(4)) == [None], "sends to other fragments do not wait"
    assert [*batch, *behind, *[result for results in later for result in results]] == []
    harness.end_silence()
    assert [*batch, *behind] == [None, None]
    assert later == [[None]] * 3
    assert bodies(harness, NEAR) == [b"first", b"0", b"1", b"2", b"last"]


def test_the_size_of_sends_that_wait_for_a_check_is_limited() -> None:
    harness = BrokerHarness(PARTITIONED, limits=NamespaceLimits(max_pending_bytes=1_000), processes=2)
    harness.silent_processes.add(1)
    waiting = [harness.send_messages(part(NEAR, b"x" * 600), part(FAR, b"x" * 600))]
    with pytest.raises(ServerBusy, match="sends to 'orders' are pending"):
        harness.send_messages(part(NEAR), part(FAR))
    with pytest.raises(ServerBusy):
        harness.send_messages(part(NEAR))
    harness.end_silence()
    assert waiting == [[None]]
    assert harness.send_and_wait(part(NEAR), part(FAR)) == [None]


@pytest.mark.parametrize("payloads", [[part(FAR)], [part(FAR), part(FAR)], [message(b"no key")]])
def test_a_send_to_one_fragment_needs_no_check(payloads: list[bytes]) -> None:
    harness = BrokerHarness(PARTITIONED, processes=2)
    harness.queue.partitioner._next_fragment = FAR  # noqa: SLF001  # the first message without a key goes there
    harness.send_messages(*payloads)
    assert len(harness.peer_messages) == 1
    assert harness.first_process.namespace.stores[1].pending_bytes, "the messages were sent at once"


def test_a_send_via_is_refused_if_a_fragment_of_another_process_is_full() -> None:
    harness = BrokerHarness(PARTITIONED, processes=2)
    harness.last_process.queue.parts[FAR].main.local.message_table.active_bytes = FULL
    results, queue = Results(), harness.queue
    vias = [build(message_annotations={VIA_PARTITION_KEY: key_for_fragment(number)}) for number in (NEAR, FAR)]
    queue.send_via(harness.incoming_batch(*[via + message() for via in vias]).records, "elsewhere", results)
    harness.run_until_idle()
    assert isinstance(results[0], QuotaExceeded)
    assert local_part(queue, NEAR).transfers is None, "nothing was ever sent via this part"
