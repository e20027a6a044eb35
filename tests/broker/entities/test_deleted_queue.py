"""A queue that is deleted takes nothing, gives nothing, and leaves nothing on disk."""

from __future__ import annotations

import pytest

from tests.broker.consumers import Results
from tests.broker.harness import BrokerHarness
from tests.support.parts import local_part
from twinbus.broker.store_keys import entity_key_range
from twinbus.model.errors import EntityDeleted, EntityNotFound, ServiceBusError
from twinbus.store.protocol import Table


def delete(harness: BrokerHarness) -> Results:
    answers = Results()
    harness.namespace.remove(harness.path)
    harness.namespace.delete_entity_records(harness.queue.entity_id, 0, answers)
    return answers


def left_on_disk(harness: BrokerHarness) -> list[bytes]:
    start, end = entity_key_range(harness.queue.entity_id)
    return [key for table in Table for key in harness.disk.synced[table].keys if start <= key < end]


def test_it_is_not_found_and_its_receivers_are_told() -> None:
    rig = BrokerHarness()
    consumer = rig.consumer()
    delete(rig)
    with pytest.raises(EntityNotFound):
        rig.namespace.find("orders")
    assert [type(error) for error in consumer.errors] == [EntityDeleted]


def test_its_records_and_marks_are_removed() -> None:
    rig = BrokerHarness()
    rig.send_stored(b"1", b"2")
    answers = delete(rig)
    rig.run_until_idle()
    assert answers == [None]
    assert left_on_disk(rig) == []


def test_what_was_sent_in_the_same_turn_leaves_nothing() -> None:
    rig = BrokerHarness()
    rig.send(b"1")
    delete(rig)
    rig.run_until_idle()
    assert left_on_disk(rig) == []


def test_what_was_being_received_and_deleted_is_not_stored_again() -> None:
    rig = BrokerHarness()
    rig.send_stored(b"1", b"2")
    consumer = rig.consumer(deletes=True)
    consumer.grant(1)
    rig.run_until_commit()
    delete(rig)
    rig.run_until_idle()
    assert left_on_disk(rig) == []
    assert consumer.deliveries == []


def test_who_still_has_a_link_cannot_send() -> None:
    rig = BrokerHarness()
    delete(rig)
    with pytest.raises(ServiceBusError):
        rig.send(b"1")


def test_nor_when_its_marks_were_being_read_as_it_was_deleted() -> None:
    rig = BrokerHarness()
    rig.send_stored(b"1")
    rig.fail_next_sync()
    rig.send(b"2")
    rig.run_until_idle()
    rig.reopen()
    delete(rig)
    rig.run_until_idle()
    with pytest.raises(ServiceBusError):
        rig.send(b"3")


def test_the_same_name_again_is_another_queue() -> None:
    rig = BrokerHarness()
    rig.send_stored(b"1")
    delete(rig)
    queue = rig.add_queue(8, "orders", rig.queue.description)
    rig.run_until_idle()
    assert local_part(queue).main.active_count == 0
    assert rig.consumer(10, of=local_part(queue).main).deliveries == []
