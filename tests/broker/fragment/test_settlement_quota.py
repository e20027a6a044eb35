"""Properties that receivers add to messages count against the quota, and are refused on a full disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.broker.consumers import Results
from tests.broker.harness import BrokerHarness
from tests.broker.messages import property_of
from tests.support.parts import local_part
from twinbus.broker.entities.transaction import Transaction
from twinbus.broker.fragment.settlement import DEAD_LETTER_SPARE_BYTES
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
    monkeypatch.setattr("twinbus.broker.entities.part.MEGABYTE", 1)  # so that its 1,024 are bytes
    rig = BrokerHarness()
    rig.send_stored(bytes(300), bytes(300))
    return rig


def settle(harness: BrokerHarness, how: Disposition, properties: Mapping[str, object]) -> ServiceBusError | None:
    consumer, answers = harness.consumer(1), Results()
    assert harness.main_fragment.settlement.settle(how, consumer.lock_numbers(), answers, properties) == []
    consumer.leave()
    harness.run_until_idle()
    (outcome,) = answers
    return outcome


@pytest.mark.parametrize("how", CHANGING)
def test_properties_that_do_not_fit_are_refused_and_the_message_stays_as_it_was(
    harness: BrokerHarness, how: Disposition
) -> None:
    size = local_part(harness.queue).stored_bytes()
    refused = settle(harness, how, LARGE)
    assert isinstance(refused, QuotaExceeded)
    assert "'orders'" in str(refused)
    assert (local_part(harness.queue).stored_bytes(), harness.counts()) == (size, (2, 0, 0, 0))
    consumer = harness.consumer(5)
    assert [property_of(found, "note") for found in consumer.messages] == [None, None]


@pytest.mark.parametrize("how", [Disposition.COMPLETE, Disposition.RELEASE, *CHANGING])
def test_a_full_entity_lets_receivers_settle_without_properties(harness: BrokerHarness, how: Disposition) -> None:
    object.__setattr__(harness.queue.description, "max_size_mb", 1)
    assert settle(harness, how, {}) is None


def test_several_messages_that_grow_together_are_weighed_together(harness: BrokerHarness) -> None:
    consumer, answers = harness.consumer(2), Results()
    harness.main_fragment.settlement.abandon(consumer.lock_numbers(), answers, {"note": "x" * 150})
    harness.run_until_idle()
    assert [type(one) for one in answers] == [QuotaExceeded]
    assert settle(harness, Disposition.ABANDON, {"note": "x" * 150}) is None


def test_the_last_abandon_before_a_message_is_dead_lettered_is_no_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twinbus.broker.entities.part.MEGABYTE", 1)
    limits = NamespaceLimits(max_properties_bytes=500)
    rig = BrokerHarness(QueueDescription(max_delivery_count=1), limits=limits)
    rig.send_stored(bytes(300))
    assert isinstance(settle(rig, Disposition.ABANDON, {"note": "x" * 700}), MessageTooLarge | QuotaExceeded)
    assert rig.counts() == (1, 0, 0, 0)
    assert settle(rig, Disposition.ABANDON, {"note": "x"}) is None
    assert rig.counts() == (0, 0, 0, 1)


@pytest.mark.parametrize("how", CHANGING)
def test_on_a_full_disk_messages_do_not_grow(harness: BrokerHarness, how: Disposition) -> None:
    harness.commit_log.disk_full_reason = "its disk is nearly full"
    assert isinstance(settle(harness, how, {"note": "x" * DEAD_LETTER_SPARE_BYTES}), StoreUnavailable)
    assert settle(harness, how, {}) is None


def test_a_short_reason_to_dead_letter_is_noted_whatever_is_full(harness: BrokerHarness) -> None:
    object.__setattr__(harness.queue.description, "max_size_mb", 1)
    harness.commit_log.disk_full_reason = "its disk is nearly full"
    assert settle(harness, Disposition.DEAD_LETTER, SMALL) is None
    dead = harness.consumer(1, of=harness.dead_letters)
    assert property_of(dead.messages[0], "DeadLetterReason") == "broken"


def test_dead_letters_do_not_grow_by_being_abandoned(harness: BrokerHarness) -> None:
    assert settle(harness, Disposition.DEAD_LETTER, {}) is None
    consumer, answers = harness.consumer(1, of=harness.dead_letters), Results()
    harness.dead_letters.settlement.abandon(consumer.lock_numbers(), answers, LARGE)
    harness.run_until_idle()
    assert [type(one) for one in answers] == [QuotaExceeded]


@pytest.mark.parametrize("how", CHANGING)
def test_in_a_transaction_properties_that_do_not_fit_roll_it_back(harness: BrokerHarness, how: Disposition) -> None:
    consumer, answers = harness.consumer(1), Results()
    transaction = Transaction(harness.namespace.intake)
    transaction.settle(harness.queue.parts[0], harness.main_fragment, consumer.lock_numbers(), how, LARGE)
    transaction.commit(answers)
    harness.run_until_idle()
    assert [type(one) for one in answers] == [QuotaExceeded]
    assert harness.main_fragment.settlement.is_lock_valid(consumer.lock_numbers()[0])


def test_no_more_deferred_messages_are_locked_at_a_time_than_others() -> None:
    rig = BrokerHarness(limits=NamespaceLimits(max_locks=2))
    rig.send_stored(b"1", b"2", b"3")
    for _ in range(3):
        assert settle(rig, Disposition.DEFER, {}) is None
    found: list[list[tuple[bytes, bytes]] | ServiceBusError] = []
    rig.main_fragment.deferral.receive([1, 2], found.append, receive_and_delete=False)
    rig.run_until_idle()
    with pytest.raises(ServerBusy, match="2 deferred messages are locked"):
        rig.main_fragment.deferral.receive([3], found.append, receive_and_delete=False)
    assert isinstance(found[0], list)
    token = found[0][0][1]
    rig.main_fragment.settlement.complete(rig.main_fragment.lock_numbers([token]), Results())
    rig.run_until_idle()
    rig.main_fragment.deferral.receive([3], found.append, receive_and_delete=False)
    rig.run_until_idle()
    assert len(found) == 2
