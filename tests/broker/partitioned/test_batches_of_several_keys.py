"""A batch of several keys is not one batch of a store: all or none as far as can be told before, else it is told."""

from __future__ import annotations

import pytest

from tests.broker.harness import PARTITIONED, BrokerHarness
from tests.broker.messages import key_for_fragment, message
from tests.support.parts import local_part
from twinbus.model.errors import PartlyStored, QuotaExceeded, StoreUnavailable

SEVERAL = [message(b"%d" % number, key=key_for_fragment(number), message_id=f"id-{number}") for number in range(4)]
"""One for each store."""


def test_q27_all_are_stored_and_their_numbers_are_in_the_order_of_the_batch() -> None:
    rig = BrokerHarness(PARTITIONED)
    numbers: list[int] = []
    answers = rig.send_messages(*reversed(SEVERAL), message(b"no key"), message(b"nor this"), numbers=numbers)
    rig.run_until_idle()
    assert answers == [None]
    assert [number >> 48 for number in numbers[:4]] == [3, 2, 1, 0]
    assert numbers[4] >> 48 == numbers[5] >> 48
    assert len(set(numbers)) == 6


def test_q27_where_one_fragment_is_known_to_be_down_none_is_stored() -> None:
    rig = BrokerHarness(PARTITIONED)
    rig.fail_stores(2)
    with pytest.raises(StoreUnavailable):
        rig.send_messages(*SEVERAL)
    rig.run_until_idle()
    assert sum(rig.counts_by_fragment()) == 0


def test_q27_where_one_fragment_is_full_none_is_stored() -> None:
    rig = BrokerHarness(PARTITIONED)
    local_part(rig.queue, 3).stored_bytes = lambda: 1 << 40  # type: ignore[method-assign]
    with pytest.raises(QuotaExceeded):
        rig.send_messages(*SEVERAL)
    rig.run_until_idle()
    assert sum(rig.counts_by_fragment()) == 0


def test_q27_where_a_store_fails_meanwhile_the_answer_names_what_is_stored() -> None:
    rig = BrokerHarness(PARTITIONED)
    rig.fail_next_sync(2)
    answers = rig.send_messages(*SEVERAL)
    rig.run_until_idle()
    (error,) = answers
    assert isinstance(error, PartlyStored)
    assert all(f"id-{number}" in str(error) for number in (0, 1, 3))
    assert "id-2" not in str(error)
    assert not error.is_retriable
    assert (error.stored, error.unsure, error.fragment) == ([0, 1, 3], [2], 2)
    rig.recover()
    assert rig.counts_by_fragment()[:4] == [1, 1, 0, 1]


def test_q27_where_a_store_hangs_it_is_told_when_that_has_been_silent_for_long() -> None:
    rig = BrokerHarness(PARTITIONED)
    rig.stores[1].hang()
    answers = rig.send_messages(*SEVERAL)
    rig.run_until_idle()
    assert answers == []
    rig.advance(10.1)
    (error,) = answers
    assert isinstance(error, PartlyStored)
    rig.stores[1].resume()
    rig.run_until_idle()
    assert len(answers) == 1


def test_where_all_stores_fail_nothing_is_said_to_be_stored() -> None:
    rig = BrokerHarness(PARTITIONED)
    for store in range(4):
        rig.fail_next_sync(store)
    answers = rig.send_messages(*SEVERAL)
    rig.run_until_idle()
    (error,) = answers
    assert isinstance(error, StoreUnavailable)


def test_r101_one_key_whose_fragment_is_down_fails_cleanly_and_others_do_not() -> None:
    rig = BrokerHarness(PARTITIONED)
    rig.fail_next_sync(1)
    answers = [rig.send_messages(payload) for payload in SEVERAL]
    rig.run_until_idle()
    assert [answer[0] is None for answer in answers] == [True, False, True, True]
    assert isinstance(answers[1][0], StoreUnavailable)
    with pytest.raises(StoreUnavailable):
        rig.send_messages(SEVERAL[1])
    rig.recover()
    rig.store_messages(SEVERAL[1])
    assert rig.counts_by_fragment()[:4] == [1, 1, 1, 1]


def test_q27_a_full_fragment_is_not_called_down_and_is_certain_not_to_have_stored_its_messages() -> None:
    rig = BrokerHarness(PARTITIONED)
    answers = rig.send_messages(*SEVERAL[:2])
    rig.run_until_idle()
    assert answers == [None]
    part = local_part(rig.queue, 3)
    checked = iter([0])  # there is room when the batch is checked, and none when it is stored
    part.stored_bytes = lambda: next(checked, 1 << 40)  # type: ignore[method-assign]
    answers = rig.send_messages(*SEVERAL)
    rig.run_until_idle()
    (error,) = answers
    assert isinstance(error, PartlyStored)
    assert (error.stored, error.unsure, error.fragment) == ([0, 1, 2], [], None)
