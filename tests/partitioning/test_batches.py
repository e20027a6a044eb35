"""Batches to partitioned queues: those with several keys go to several fragments, which are all checked first."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.support.partitioned_namespace import (
    FRAGMENTS,
    fragment_of_message,
    key_for_fragment,
    numbered_messages,
    one_per_fragment,
    partitioned_namespace,
)
from twinbus.amqp.message import Properties, build, data
from twinbus.client import BrokeredMessage
from twinbus.model.errors import FragmentUnavailable, InternalFault, PartlyStored, QuotaExceeded, ServiceBusError
from twinbus.model.message import BATCH_FORMAT, PING_CONTENT_TYPE
from twinbus.testing import in_virtual_time

if TYPE_CHECKING:
    from tests.support.partitioned_namespace import PartitionedNamespace


@in_virtual_time
async def test_q27_a_batch_without_keys_goes_whole_to_one_fragment() -> None:
    async with partitioned_namespace() as orders:
        for _ in range(FRAGMENTS):
            await orders.client.send_batch(numbered_messages(5))
        stored = await orders.namespace.messages("orders")
        assert [fragment_of_message(message) for message in stored] == [
            fragment for fragment in range(FRAGMENTS) for _ in range(5)
        ]
        assert [message.text for message in stored] == ["0", "1", "2", "3", "4"] * FRAGMENTS


@in_virtual_time
async def test_q27_a_batch_with_one_key_goes_whole_to_the_fragment_of_that_key() -> None:
    async with partitioned_namespace() as orders:
        for _ in range(3):
            await orders.client.send_batch(numbered_messages(5, partition_key=key_for_fragment(13)))
        assert await orders.fragments() == [13] * 15


@in_virtual_time
async def test_q27_a_batch_with_several_keys_goes_to_their_fragments() -> None:
    async with partitioned_namespace() as orders:
        await orders.client.send_batch([*one_per_fragment(), *one_per_fragment(), *numbered_messages(3)])
        stored = await orders.namespace.messages("orders")
        assert len(stored) == 2 * FRAGMENTS + 3
        keyed = [message for message in stored if message.partition_key is not None]
        assert all(message.text == f"{fragment_of_message(message)}" for message in keyed)
        assert len({fragment_of_message(message) for message in stored if message.partition_key is None}) == 1


@in_virtual_time
async def test_q27_a_batch_without_keys_goes_to_another_fragment_if_one_is_unavailable() -> None:
    async with partitioned_namespace() as orders:
        await orders.probe_store(2)
        for number in range(FRAGMENTS):
            await orders.client.send_batch([BrokeredMessage(f"{number}") for _ in range(4)])
        orders.namespace.outage.restore()
        await asyncio.sleep(60)
        stored = [sent for sent in await orders.namespace.messages("orders") if sent.text != "the last"]
        assert len(stored) == 4 * FRAGMENTS
        assert {fragment_of_message(message) % 4 for message in stored} == {0, 1, 3}


@in_virtual_time
async def test_q27_nothing_is_stored_if_a_fragment_is_known_to_be_unavailable() -> None:
    async with partitioned_namespace() as orders:
        await orders.probe_store(3)
        with pytest.raises(FragmentUnavailable, match="fragment 3: store 3"):
            await orders.client.send_batch(one_per_fragment())
        assert orders.namespace.counts("orders").size_bytes == 0


@in_virtual_time
async def test_q27_nothing_is_stored_if_a_fragment_is_full() -> None:
    async with partitioned_namespace() as orders:
        _fill(orders, 6)
        with pytest.raises(QuotaExceeded):
            await orders.client.send_batch(one_per_fragment())
        assert await orders.fragments() == []
        for _ in range(FRAGMENTS):
            await orders.client.send(BrokeredMessage("without a key"))
        assert set(await orders.fragments()) == set(range(FRAGMENTS)) - {6}


@in_virtual_time
async def test_q27_the_error_of_a_partly_stored_batch_names_the_stored_messages() -> None:
    async with partitioned_namespace() as orders:
        orders.fail(1)
        with pytest.raises(PartlyStored) as caught:
            await orders.client.send_batch(
                [
                    BrokeredMessage("x", message_id=f"<{number}>", partition_key=key_for_fragment(number))
                    for number in range(8)
                ]
            )
        for number in range(8):
            assert (f"<{number}>" in str(caught.value)) == (number % 4 != 1)
        assert not caught.value.is_retriable


@in_virtual_time
async def test_q27_sending_a_partly_stored_batch_again_stores_no_duplicates_with_detection() -> None:
    async with partitioned_namespace(requires_duplicate_detection=True) as orders:
        batch = [BrokeredMessage("x", message_id=f"{number}") for number in range(40)]
        orders.fail(1)
        with pytest.raises(PartlyStored):
            await orders.client.send_batch(batch)
        orders.namespace.outage.restore()
        await asyncio.sleep(60)
        await orders.client.send_batch(batch)
        assert len(await orders.fragments()) == 40


@in_virtual_time
async def test_q27_a_batch_with_several_keys_is_refused_in_a_transaction() -> None:
    async with partitioned_namespace() as orders:
        transaction = orders.factory.transaction()
        with pytest.raises(ServiceBusError, match="same session id or partition key"):
            await orders.client.send_batch(one_per_fragment(), transaction=transaction)
        with pytest.raises(ServiceBusError):
            await transaction.commit()
        assert await orders.fragments() == []


@in_virtual_time
async def test_pings_of_several_keys_in_one_batch_test_their_fragments() -> None:
    async with partitioned_namespace() as orders:
        pings = [
            build(
                message_annotations={"x-opt-partition-key": key_for_fragment(number)},
                properties=Properties(message_id="ping", content_type=PING_CONTENT_TYPE),
                body=data(b""),
            )
            for number in range(3)
        ]
        await orders.client.sender.deliver(build(body=data(*pings)), BATCH_FORMAT)
        assert await orders.fragments() == []
        await orders.probe_store(1)
        with pytest.raises(InternalFault, match="store 1"):
            await orders.client.sender.deliver(build(body=data(*pings)), BATCH_FORMAT)


def _fill(orders: PartitionedNamespace, fragment: int) -> None:
    """Make a fragment believe that it is full."""
    orders.namespace.broker.find_sendable("orders").parts[fragment].main.local.message_table.active_bytes += 2**30
