"""Properties that receivers add to messages count against the quota, and are refused on a full disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.broker.consumers import Answers
from tests.broker.messages import property_of
from tests.broker.rig import Rig
from tests.parts import part_of
from twinbus.broker.ports.settlement import How
from twinbus.broker.settlement import REASON_BYTES
from twinbus.broker.transaction import Transaction
from twinbus.model.errors import MessageTooLarge, QuotaExceeded, ServerBusy, ServiceBusError, StoreUnavailable
from twinbus.model.limits import NamespaceLimits
from twinbus.model.queue import QueueDescription

if TYPE_CHECKING:
    from collections.abc import Mapping

LARGE: Mapping[str, object] = {"note": "x" * 600}
SMALL: Mapping[str, object] = {"DeadLetterReason": "broken", "DeadLetterErrorDescription": "x" * 300}
CHANGING = (How.ABANDON, How.DEFER, How.DEAD_LETTER)


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Rig:
    monkeypatch.setattr("twinbus.broker.part.MEGABYTE", 1)  # so that its 1,024 are bytes
    rig = Rig()
    rig.stored(bytes(300), bytes(300))
    return rig


def settle(rig: Rig, how: How, properties: Mapping[str, object]) -> ServiceBusError | None:
    consumer, answers = rig.consumer(1), Answers()
    assert rig.main.settlement.settle(how, consumer.numbers(), answers, properties) == []
    consumer.leave()
    rig.settle()
    (outcome,) = answers
    return outcome


@pytest.mark.parametrize("how", CHANGING)
def test_properties_that_do_not_fit_are_refused_and_the_message_stays_as_it_was(rig: Rig, how: How) -> None:
    size = part_of(rig.queue).held_bytes()
    refused = settle(rig, how, LARGE)
    assert isinstance(refused, QuotaExceeded)
    assert "'orders'" in str(refused)
    assert (part_of(rig.queue).held_bytes(), rig.counts()) == (size, (2, 0, 0, 0))
    consumer = rig.consumer(5)
    assert [property_of(found, "note") for found in consumer.messages] == [None, None]


@pytest.mark.parametrize("how", [How.COMPLETE, How.RELEASE, *CHANGING])
def test_a_full_entity_lets_receivers_settle_without_properties(rig: Rig, how: How) -> None:
    object.__setattr__(rig.queue.description, "max_size_mb", 1)
    assert settle(rig, how, {}) is None


def test_several_messages_that_grow_together_are_weighed_together(rig: Rig) -> None:
    consumer, answers = rig.consumer(2), Answers()
    rig.main.settlement.abandon(consumer.numbers(), answers, {"note": "x" * 150})
    rig.settle()
    assert [type(one) for one in answers] == [QuotaExceeded]
    assert settle(rig, How.ABANDON, {"note": "x" * 150}) is None


def test_the_last_abandon_before_a_message_is_dead_lettered_is_no_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twinbus.broker.part.MEGABYTE", 1)
    limits = NamespaceLimits(max_properties_bytes=500)
    rig = Rig(QueueDescription(max_delivery_count=1), limits=limits)
    rig.stored(bytes(300))
    assert isinstance(settle(rig, How.ABANDON, {"note": "x" * 700}), MessageTooLarge | QuotaExceeded)
    assert rig.counts() == (1, 0, 0, 0)
    assert settle(rig, How.ABANDON, {"note": "x"}) is None
    assert rig.counts() == (0, 0, 0, 1)


@pytest.mark.parametrize("how", CHANGING)
def test_on_a_full_disk_messages_do_not_grow(rig: Rig, how: How) -> None:
    rig.journal.refusal = "its disk is nearly full"
    assert isinstance(settle(rig, how, {"note": "x" * REASON_BYTES}), StoreUnavailable)
    assert settle(rig, how, {}) is None


def test_a_short_reason_to_dead_letter_is_noted_whatever_is_full(rig: Rig) -> None:
    object.__setattr__(rig.queue.description, "max_size_mb", 1)
    rig.journal.refusal = "its disk is nearly full"
    assert settle(rig, How.DEAD_LETTER, SMALL) is None
    dead = rig.consumer(1, of=rig.dead_letters)
    assert property_of(dead.messages[0], "DeadLetterReason") == "broken"


def test_dead_letters_do_not_grow_by_being_abandoned(rig: Rig) -> None:
    assert settle(rig, How.DEAD_LETTER, {}) is None
    consumer, answers = rig.consumer(1, of=rig.dead_letters), Answers()
    rig.dead_letters.settlement.abandon(consumer.numbers(), answers, LARGE)
    rig.settle()
    assert [type(one) for one in answers] == [QuotaExceeded]


@pytest.mark.parametrize("how", CHANGING)
def test_in_a_transaction_properties_that_do_not_fit_roll_it_back(rig: Rig, how: How) -> None:
    consumer, answers = rig.consumer(1), Answers()
    transaction = Transaction(rig.namespace.intake)
    transaction.settle(rig.queue.parts[0], rig.main, consumer.numbers(), how, LARGE)
    transaction.commit(answers)
    rig.settle()
    assert [type(one) for one in answers] == [QuotaExceeded]
    assert rig.main.settlement.holds(consumer.numbers()[0])


def test_no_more_deferred_messages_are_locked_at_a_time_than_others() -> None:
    rig = Rig(limits=NamespaceLimits(max_locks=2))
    rig.stored(b"1", b"2", b"3")
    for _ in range(3):
        assert settle(rig, How.DEFER, {}) is None
    found: list[list[tuple[bytes, bytes]] | ServiceBusError] = []
    rig.main.deferral.receive([1, 2], found.append, deletes=False)
    rig.settle()
    with pytest.raises(ServerBusy, match="2 deferred messages are locked"):
        rig.main.deferral.receive([3], found.append, deletes=False)
    assert isinstance(found[0], list)
    token = found[0][0][1]
    rig.main.settlement.complete(rig.main.lock_numbers([token]), Answers())
    rig.settle()
    rig.main.deferral.receive([3], found.append, deletes=False)
    rig.settle()
    assert len(found) == 2
