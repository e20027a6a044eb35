"""A queue that is deleted takes nothing, gives nothing, and leaves nothing on disk."""

from __future__ import annotations

import pytest

from tests.broker.consumers import Answers
from tests.broker.rig import Rig
from tests.parts import part_of
from twinbus.broker.keys import entity_range
from twinbus.model.errors import EntityDeleted, EntityNotFound, ServiceBusError
from twinbus.store.protocol import Table


def delete(rig: Rig) -> Answers:
    answers = Answers()
    rig.namespace.remove(rig.path)
    rig.namespace.bury(rig.queue.entity_id, 0, answers)
    return answers


def left_on_disk(rig: Rig) -> list[bytes]:
    start, end = entity_range(rig.queue.entity_id)
    return [key for table in Table for key in rig.disk.synced[table].keys if start <= key < end]


def test_it_is_not_found_and_its_receivers_are_told() -> None:
    rig = Rig()
    consumer = rig.consumer()
    delete(rig)
    with pytest.raises(EntityNotFound):
        rig.namespace.find("orders")
    assert [type(error) for error in consumer.errors] == [EntityDeleted]


def test_its_records_and_marks_are_removed() -> None:
    rig = Rig()
    rig.stored(b"1", b"2")
    answers = delete(rig)
    rig.settle()
    assert answers == [None]
    assert left_on_disk(rig) == []


def test_what_was_sent_in_the_same_turn_leaves_nothing() -> None:
    rig = Rig()
    rig.send(b"1")
    delete(rig)
    rig.settle()
    assert left_on_disk(rig) == []


def test_what_was_being_received_and_deleted_is_not_stored_again() -> None:
    rig = Rig()
    rig.stored(b"1", b"2")
    consumer = rig.consumer(deletes=True)
    consumer.grant(1)
    rig.settle_reads()
    delete(rig)
    rig.settle()
    assert left_on_disk(rig) == []
    assert consumer.deliveries == []


def test_who_still_has_a_link_cannot_send() -> None:
    rig = Rig()
    delete(rig)
    with pytest.raises(ServiceBusError):
        rig.send(b"1")


def test_nor_when_its_marks_were_being_read_as_it_was_deleted() -> None:
    rig = Rig()
    rig.stored(b"1")
    rig.fail()
    rig.send(b"2")
    rig.settle()
    rig.reopen()
    delete(rig)
    rig.settle()
    with pytest.raises(ServiceBusError):
        rig.send(b"3")


def test_the_same_name_again_is_another_queue() -> None:
    rig = Rig()
    rig.stored(b"1")
    delete(rig)
    queue = rig.add_queue(8, "orders", rig.queue.description)
    rig.settle()
    assert part_of(queue).main.count == 0
    assert rig.consumer(10, of=part_of(queue).main).deliveries == []
