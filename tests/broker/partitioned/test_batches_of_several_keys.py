"""Batches with several partition keys: nothing is stored after a failed check, and later failures report what was."""

from __future__ import annotations

import pytest

from tests.broker.harness import PARTITIONED, BrokerHarness
from tests.broker.messages import key_for_fragment, message
from tests.support.parts import local_part
from twinbus.model.errors import PartlyStored, QuotaExceeded, StoreUnavailable

SEVERAL = [message(b"%d" % number, key=key_for_fragment(number), message_id=f"id-{number}") for number in range(4)]
"""One message for each store."""


def test_q27_sequence_numbers_are_in_the_order_of_the_batch() -> None:
    harness = BrokerHarness(PARTITIONED)
    numbers: list[int] = []
    results = harness.send_messages(*reversed(SEVERAL), message(b"no key"), message(b"nor this"), numbers=numbers)
    harness.run_until_idle()
    assert results == [None]
    assert [number >> 48 for number in numbers[:4]] == [3, 2, 1, 0]
    assert numbers[4] >> 48 == numbers[5] >> 48
    assert len(set(numbers)) == 6


def test_q27_nothing_is_stored_if_one_fragment_is_known_to_be_unavailable() -> None:
    harness = BrokerHarness(PARTITIONED)
    harness.fail_stores(2)
    with pytest.raises(StoreUnavailable):
        harness.send_messages(*SEVERAL)
    harness.run_until_idle()
    assert sum(harness.counts_by_fragment()) == 0


def test_q27_nothing_is_stored_if_one_fragment_is_full() -> None:
    harness = BrokerHarness(PARTITIONED)
    local_part(harness.queue, 3).stored_bytes = lambda: 1 << 40  # type: ignore[method-assign]
    with pytest.raises(QuotaExceeded):
        harness.send_messages(*SEVERAL)
    harness.run_until_idle()
    assert sum(harness.counts_by_fragment()) == 0


def test_q27_if_a_store_fails_meanwhile_the_error_names_the_stored_messages() -> None:
    harness = BrokerHarness(PARTITIONED)
    harness.fail_next_sync(2)
    results = harness.send_messages(*SEVERAL)
    harness.run_until_idle()
    (error,) = results
    assert isinstance(error, PartlyStored)
    assert all(f"id-{number}" in str(error) for number in (0, 1, 3))
    assert "id-2" not in str(error)
    assert not error.is_retriable
    assert (error.stored, error.unsure, error.fragment) == ([0, 1, 3], [2], 2)
    harness.recover()
    assert harness.counts_by_fragment()[:4] == [1, 1, 0, 1]


def test_q27_if_a_store_hangs_the_send_fails_after_a_timeout() -> None:
    harness = BrokerHarness(PARTITIONED)
    harness.stores[1].hang()
    results = harness.send_messages(*SEVERAL)
    harness.run_until_idle()
    assert results == []
    harness.advance(10.1)
    (error,) = results
    assert isinstance(error, PartlyStored)
    harness.stores[1].resume()
    harness.run_until_idle()
    assert len(results) == 1


def test_if_all_stores_fail_the_send_fails_as_a_whole() -> None:
    harness = BrokerHarness(PARTITIONED)
    for store in range(4):
        harness.fail_next_sync(store)
    results = harness.send_messages(*SEVERAL)
    harness.run_until_idle()
    (error,) = results
    assert isinstance(error, StoreUnavailable)


def test_r101_only_sends_to_an_unavailable_fragment_fail() -> None:
    harness = BrokerHarness(PARTITIONED)
    harness.fail_next_sync(1)
    results = [harness.send_messages(payload) for payload in SEVERAL]
    harness.run_until_idle()
    assert [result[0] is None for result in results] == [True, False, True, True]
    assert isinstance(results[1][0], StoreUnavailable)
    with pytest.raises(StoreUnavailable):
        harness.send_messages(SEVERAL[1])
    harness.recover()
    harness.store_messages(SEVERAL[1])
    assert harness.counts_by_fragment()[:4] == [1, 1, 1, 1]


def test_q27_a_full_fragment_is_not_reported_unavailable_and_its_messages_are_not_unsure() -> None:
    harness = BrokerHarness(PARTITIONED)
    results = harness.send_messages(*SEVERAL[:2])
    harness.run_until_idle()
    assert results == [None]
    part = local_part(harness.queue, 3)
    checked = iter([0])  # the quota check passes, but the fragment is full when the batch is stored
    part.stored_bytes = lambda: next(checked, 1 << 40)  # type: ignore[method-assign]
    results = harness.send_messages(*SEVERAL)
    harness.run_until_idle()
    (error,) = results
    assert isinstance(error, PartlyStored)
    assert (error.stored, error.unsure, error.fragment) == ([0, 1, 2], [], None)
