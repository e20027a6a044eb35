"""C01, C02: usage of sends: each message of a batch, by its size; pings and refused sends are counted separately."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from tests.server.usage.usage_totals import message_of_size, nonzero_counts, total_usage
from twinbus.client import BrokeredMessage
from twinbus.client.retry import NO_RETRY
from twinbus.model.errors import DiskFull, NotAllowed
from twinbus.model.message import PING_CONTENT_TYPE
from twinbus.testing import InMemoryNamespace, in_virtual_time

KB = 1024


@in_virtual_time
async def test_c01_each_message_of_a_batch_is_a_send() -> None:
    async with InMemoryNamespace() as namespace:
        await namespace.create_queue("orders")
        sender = namespace.factory().create_message_sender("orders")
        await sender.send(BrokeredMessage("apples"))
        await sender.send_batch([BrokeredMessage(str(number)) for number in range(10)])
        row = total_usage(namespace, "orders")
        assert nonzero_counts(row) == {"sends": 11, "send_units": 11}
        assert 11 * 10 < row.send_bytes < 11 * 200


@pytest.mark.parametrize(("size", "units"), [(8 * KB, 1), (64 * KB, 1), (64 * KB + 1, 2), (96 * KB, 2), (200 * KB, 4)])
def test_c02_a_send_and_the_receive_of_a_message_are_charged_by_the_same_size(size: int, units: int) -> None:
    @in_virtual_time
    async def send_and_receive() -> None:
        async with InMemoryNamespace() as namespace:
            await namespace.create_queue("orders")
            queue = namespace.factory().create_queue_client("orders")
            await queue.send(message_of_size(size))
            message = await queue.receive(1)
            assert message is not None
            row = total_usage(namespace, "orders")
            assert (row.sends, row.send_units) == (1, units)
            assert (row.receives, row.receive_units) == (1, units)
            assert row.receive_bytes == message.size > size

    send_and_receive()


@in_virtual_time
async def test_c02_each_message_of_a_batch_is_charged_separately() -> None:
    async with InMemoryNamespace() as namespace:
        await namespace.create_queue("orders")
        sender = namespace.factory().create_message_sender("orders")
        await sender.send_batch([message_of_size(70 * KB), message_of_size(30 * KB), message_of_size(30 * KB)])
        await sender.send_batch([message_of_size(30 * KB)] * 4)
        assert nonzero_counts(total_usage(namespace)) == {"sends": 7, "send_units": 8}


@in_virtual_time
async def test_r084_c04_a_send_to_a_partitioned_queue_costs_the_same() -> None:
    async with InMemoryNamespace(stores=2) as namespace:
        await namespace.create_queue("orders", enable_partitioning=True)
        sender = namespace.factory().create_message_sender("orders")
        await sender.send_batch([BrokeredMessage(str(number), partition_key=str(number % 5)) for number in range(20)])
        for number in range(10):
            await sender.send(BrokeredMessage(str(number), partition_key=str(number)))
            await sender.send(BrokeredMessage(str(number)))
        await sender.send(message_of_size(96 * KB))
        assert nonzero_counts(total_usage(namespace)) == {"sends": 41, "send_units": 42}


@in_virtual_time
async def test_a_ping_is_counted_separately() -> None:
    async with InMemoryNamespace(stores=2) as namespace:
        await namespace.create_queue("orders")
        await namespace.create_queue("parts", enable_partitioning=True)
        for path in ("orders", "parts"):
            sender = namespace.factory().create_message_sender(path)
            await sender.send(BrokeredMessage(content_type=PING_CONTENT_TYPE))
            await sender.send(BrokeredMessage("no ping", content_type=PING_CONTENT_TYPE))
            assert nonzero_counts(total_usage(namespace, path)) == {"sends": 1, "send_units": 1, "pings": 1}


@in_virtual_time
async def test_refused_sends_and_refused_pings_are_counted_separately() -> None:
    async with InMemoryNamespace() as namespace:
        await namespace.create_queue("orders")
        sender = namespace.factory(retry_policy=NO_RETRY).create_message_sender("orders")
        await sender.send(BrokeredMessage("apples"))
        namespace.outage.fill_disk()
        for refused in (BrokeredMessage("pears"), BrokeredMessage("plums")):
            with pytest.raises(DiskFull):
                await sender.send(refused)
        with pytest.raises(DiskFull):
            await sender.send(BrokeredMessage(content_type=PING_CONTENT_TYPE))
        assert nonzero_counts(total_usage(namespace)) == {
            "sends": 1,
            "send_units": 1,
            "failed_sends": 2,
            "failed_pings": 1,
        }


@in_virtual_time
async def test_an_invalid_message_is_a_failed_send_and_its_neighbours_are_sends() -> None:
    async with InMemoryNamespace() as namespace:
        await namespace.create_queue("orders", requires_session=True)
        sender = namespace.factory().create_message_sender("orders")
        sends = [sender.send(BrokeredMessage("a", session_id=session)) for session in ("1", None, "2")]
        outcomes = await asyncio.gather(*sends, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [type(None), NotAllowed, type(None)]
        assert nonzero_counts(total_usage(namespace)) == {"sends": 2, "send_units": 2, "failed_sends": 1}


@in_virtual_time
async def test_sends_in_a_transaction_are_counted_also_if_it_is_rolled_back() -> None:
    async with InMemoryNamespace() as namespace:
        await namespace.create_queue("orders")
        factory = namespace.factory()
        sender = factory.create_message_sender("orders")
        with contextlib.suppress(ZeroDivisionError):
            async with factory.transaction() as transaction:
                await sender.send(BrokeredMessage("apples"), transaction=transaction)
                await sender.send_batch([BrokeredMessage("a"), BrokeredMessage("b")], transaction=transaction)
                raise ZeroDivisionError
        assert not await namespace.messages("orders")
        assert nonzero_counts(total_usage(namespace)) == {"sends": 3, "send_units": 3}
