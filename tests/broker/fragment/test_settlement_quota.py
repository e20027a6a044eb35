"""Properties that receivers add to messages count against the quota, and are refused on a full disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.broker.consumers import Results
from tests.broker.harness import BrokerHarness
from tests.broker.messages import property_of
from tests.support.parts import local_part
from twinbus.broker.entities.transaction import Transaction
from twinbus.broker.fragment.dead_lettering import DEAD_LETTER_SPARE_BYTES
from twinbus.broker.ports.settlement import Disposition
from twinbus.model.errors import MessageTooLarge, QuotaExceeded, ServerBusy, ServiceBusError, StoreUnavailable
from twinbus.model.limits import NamespaceLimits
from twinbus.model.queue import QueueDescription

if TYPE_CHECKING:
    from collections.abc import Mapping

LARGE: Mapping[str, object] = {"note": "x" * 600}
SMALL: Mapping[str, object] = {"DeadLetterReason": "broken", "DeadLetterErrorDescription": "x" * 300}
CHANGING = (Disposition.ABANDON, Disposition.DEFER, Disposition.DEAD_LETTER)


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> BrokerHarness:
    monkeypatch.setattr("twinbus.broker.entities.part.MEGABYTE", 1)  # so that the limit is 1,024 bytes
    harness = BrokerHarness()
    harness.send_stored(bytes(300), bytes(300))
    return harness


def settle(harness: BrokerHarness, how: Disposition, properties: Mapping[str, object]) -> ServiceBusError | None:
    consumer, results = harness.consumer(1), Results()
    assert harness.main_fragment.settlement.settle(how, consumer.lock_numbers(), results, properties) == []
    consumer.leave()
    harness.run_until_idle()
    (outcome,) = results
    return outcome


@pytest.mark.parametrize("how", CHANGING)
def test_properties_beyond_the_quota_are_refused_and_the_message_is_unchanged(
    harness: BrokerHarness, how: Disposition
) -> None:
    size = local_part(harness.queue).stored_bytes()
    refused = settle(harness, how, LARGE)
    assert isinstance(refused, QuotaExceeded)
    assert "'orders'" in str(refused)
    assert (local_part(harness.queue).stored_bytes(), harness.counts()) == (size, (2, 0, 0, 0))
    consumer = harness.consumer(5)
    assert [property_of(received, "note") for received in consumer.messages] == [None, None]


@pytest.mark.parametrize("how", [Disposition.COMPLETE, Disposition.RELEASE, *CHANGING])
def test_a_full_entity_allows_settlement_without_properties(harness: BrokerHarness, how: Disposition) -> None:
    object.__setattr__(harness.queue.description, "max_size_mb", 1)
    assert settle(harness, how, {}) is None


def test_messages_settled_together_are_checked_against_the_quota_together(harness: BrokerHarness) -> None:
    consumer, results = harness.consumer(2), Results()
    harness.main_fragment.settlement.abandon(consumer.lock_numbers(), results, {"note": "x" * 150})
    harness.run_until_idle()
    assert [type(result) for result in results] == [QuotaExceeded]
    assert settle(harness, Disposition.ABANDON, {"note": "x" * 150}) is None


def test_the_quota_applies_to_the_abandon_that_dead_letters_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twinbus.broker.entities.part.MEGABYTE", 1)
    limits = NamespaceLimits(max_properties_bytes=500)
    harness = BrokerHarness(QueueDescription(max_delivery_count=1), limits=limits)
    harness.send_stored(bytes(300))
    assert isinstance(settle(harness, Disposition.ABANDON, {"note": "x" * 700}), MessageTooLarge | QuotaExceeded)
    assert harness.counts() == (1, 0, 0, 0)
    assert settle(harness, Disposition.ABANDON, {"note": "x"}) is None
    assert harness.counts() == (0, 0, 0, 1)


@pytest.mark.parametrize("how", CHANGING)
def test_messages_cannot_grow_on_a_full_disk(harness: BrokerHarness, how: Disposition) -> None:
    harness.commit_log.disk_full_reason = "its disk is nearly full"
    assert isinstance(settle(harness, how, {"note": "x" * DEAD_LETTER_SPARE_BYTES}), StoreUnavailable)
    assert settle(harness, how, {}) is None


def test_a_short_dead_letter_reason_is_stored_even_if_queue_and_disk_are_full(harness: BrokerHarness) -> None:
    object.__setattr__(harness.queue.description, "max_size_mb", 1)
    harness.commit_log.disk_full_reason = "its disk is nearly full"
    assert settle(harness, Disposition.DEAD_LETTER, SMALL) is None
    dead = harness.consumer(1, of=harness.dead_letters)
    assert property_of(dead.messages[0], "DeadLetterReason") == "broken"


def test_dead_letters_do_not_grow_by_being_abandoned(harness: BrokerHarness) -> None:
    assert settle(harness, Disposition.DEAD_LETTER, {}) is None
    consumer, results = harness.consumer(1, of=harness.dead_letters), Results()
    harness.dead_letters.settlement.abandon(consumer.lock_numbers(), results, LARGE)
    harness.run_until_idle()
    assert [type(result) for result in results] == [QuotaExceeded]


@pytest.mark.parametrize("how", CHANGING)
def test_properties_beyond_the_quota_roll_back_a_transaction(harness: BrokerHarness, how: Disposition) -> None:
    consumer, results = harness.consumer(1), Results()
    transaction = Transaction(harness.namespace.intake)
    transaction.settle(harness.queue.parts[0], harness.main_fragment, consumer.lock_numbers(), how, LARGE)
    transaction.commit(results)
    harness.run_until_idle()
    assert [type(result) for result in results] == [QuotaExceeded]
    assert harness.main_fragment.settlement.is_lock_valid(consumer.lock_numbers()[0])


def test_the_lock_limit_applies_to_deferred_messages() -> None:
    harness = BrokerHarness(limits=NamespaceLimits(max_locks=2))
    harness.send_stored(b"1", b"2", b"3")
    for _ in range(3):
        assert settle(harness, Disposition.DEFER, {}) is None
    replies: list[list[tuple[bytes, bytes]] | ServiceBusError] = []
    harness.main_fragment.deferral.receive([1, 2], replies.append, receive_and_delete=False)
    harness.run_until_idle()
    with pytest.raises(ServerBusy, match="2 deferred messages are locked"):
        harness.main_fragment.deferral.receive([3], replies.append, receive_and_delete=False)
    assert isinstance(replies[0], list)
    token = replies[0][0][1]
    harness.main_fragment.settlement.complete(harness.main_fragment.lock_numbers([token]), Results())
    harness.run_until_idle()
    harness.main_fragment.deferral.receive([3], replies.append, receive_and_delete=False)
    harness.run_until_idle()
    assert len(replies) == 2
