"""A deleted queue accepts and delivers nothing, and leaves nothing on disk."""

from __future__ import annotations

import pytest

from tests.broker.consumers import Results
from tests.broker.harness import BrokerHarness
from tests.support.parts import local_part
from twinbus.broker.store_keys import entity_key_range
from twinbus.model.errors import EntityDeleted, EntityNotFound, ServiceBusError
from twinbus.store.protocol import Table


def delete(harness: BrokerHarness) -> Results:
    results = Results()
    harness.namespace.remove(harness.path)
    harness.namespace.delete_entity_records(harness.queue.entity_id, 0, results)
    return results


def left_on_disk(harness: BrokerHarness) -> list[bytes]:
    start, end = entity_key_range(harness.queue.entity_id)
    return [key for table in Table for key in harness.disk.synced[table].keys if start <= key < end]


def test_a_deleted_queue_is_not_found_and_its_receivers_are_detached() -> None:
    harness = BrokerHarness()
    consumer = harness.consumer()
    delete(harness)
    with pytest.raises(EntityNotFound):
        harness.namespace.find("orders")
    assert [type(error) for error in consumer.errors] == [EntityDeleted]


def test_the_records_and_counters_of_a_deleted_queue_are_removed() -> None:
    harness = BrokerHarness()
    harness.send_stored(b"1", b"2")
    results = delete(harness)
    harness.run_until_idle()
    assert results == [None]
    assert left_on_disk(harness) == []


def test_a_message_sent_in_the_turn_of_the_deletion_is_removed() -> None:
    harness = BrokerHarness()
    harness.send(b"1")
    delete(harness)
    harness.run_until_idle()
    assert left_on_disk(harness) == []


def test_a_message_being_received_and_deleted_is_not_stored_again() -> None:
    harness = BrokerHarness()
    harness.send_stored(b"1", b"2")
    consumer = harness.consumer(deletes=True)
    consumer.grant(1)
    harness.run_until_commit()
    delete(harness)
    harness.run_until_idle()
    assert left_on_disk(harness) == []
    assert consumer.deliveries == []


def test_sends_to_a_deleted_queue_fail() -> None:
    harness = BrokerHarness()
    delete(harness)
    with pytest.raises(ServiceBusError):
        harness.send(b"1")


def test_sends_fail_if_the_queue_was_deleted_while_loading() -> None:
    harness = BrokerHarness()
    harness.send_stored(b"1")
    harness.fail_next_sync()
    harness.send(b"2")
    harness.run_until_idle()
    harness.reopen()
    delete(harness)
    harness.run_until_idle()
    with pytest.raises(ServiceBusError):
        harness.send(b"3")


def test_a_new_queue_of_the_same_name_is_empty() -> None:
    harness = BrokerHarness()
    harness.send_stored(b"1")
    delete(harness)
    queue = harness.add_queue(8, "orders", harness.queue.description)
    harness.run_until_idle()
    assert local_part(queue).main.active_count == 0
    assert harness.consumer(10, of=local_part(queue).main).deliveries == []
