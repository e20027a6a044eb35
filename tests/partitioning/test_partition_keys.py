"""The partition key of a message, and the fragment it leads to."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest

from tests.support.partitioned_namespace import (
    FRAGMENTS,
    fragment_of_message,
    key_for_fragment,
    numbered_messages,
    one_per_fragment,
    partitioned_namespace,
    send_all,
)
from twinbus.amqp.message import Properties, build, data
from twinbus.amqp.types import ULong
from twinbus.client import BrokeredMessage
from twinbus.model.errors import InvalidArgument, NotAllowed
from twinbus.model.message import BATCH_FORMAT
from twinbus.model.partition_key import fragment_of
from twinbus.testing import in_virtual_time

if TYPE_CHECKING:
    from collections.abc import Callable

KINDS_OF_IDS: dict[str, Callable[[int], object]] = {
    "text": str,
    "number": ULong,
    "uuid": lambda number: uuid.UUID(int=number),
}


@in_virtual_time
async def test_r097_each_message_is_in_exactly_one_fragment() -> None:
    async with partitioned_namespace() as orders:
        await send_all(orders.client, [*one_per_fragment(), *numbered_messages(40)])
        held = [
            [
                message.message_id
                for message in await orders.namespace.messages("orders")
                if fragment_of_message(message) == fragment
            ]
            for fragment in range(FRAGMENTS)
        ]
        assert sum(map(len, held)) == len({message for ids in held for message in ids}) == 56


@in_virtual_time
async def test_r098_equal_keys_give_the_same_fragment() -> None:
    async with partitioned_namespace() as orders:
        for fragment in range(FRAGMENTS):
            for number in range(2):
                await send_all(orders.client, numbered_messages(3, partition_key=key_for_fragment(fragment, number)))
        stored = await orders.namespace.messages("orders")
        assert [fragment_of_message(message) for message in stored] == [
            fragment_of(str(message.partition_key).encode()) for message in stored
        ]
        assert len(stored) == 6 * FRAGMENTS


@in_virtual_time
@pytest.mark.parametrize("requires_session", [True, False])
async def test_r106_a_session_id_is_the_key(*, requires_session: bool) -> None:
    async with partitioned_namespace(requires_session=requires_session) as orders:
        await send_all(orders.client, numbered_messages(3, session_id=key_for_fragment(11)))
        await orders.client.send(
            BrokeredMessage("both", session_id=key_for_fragment(11), partition_key=key_for_fragment(11))
        )
        assert await orders.fragments() == [11] * 4


@in_virtual_time
async def test_r107_without_a_session_id_a_partition_key_is_the_key() -> None:
    async with partitioned_namespace(requires_duplicate_detection=True) as orders:
        await send_all(orders.client, numbered_messages(3, partition_key=key_for_fragment(6)))
        assert await orders.fragments() == [6] * 3, "the different message ids are ignored"


@in_virtual_time
async def test_r108_a_session_id_and_a_different_partition_key_are_refused() -> None:
    async with partitioned_namespace() as orders:
        with pytest.raises(InvalidArgument):
            await orders.client.send(BrokeredMessage("x", session_id="apples", partition_key="pears"))
        bad = build(
            message_annotations={"x-opt-partition-key": "pears"},
            properties=Properties(message_id="1", group_id="apples"),
            body=data(b"x"),
        )
        with pytest.raises(NotAllowed) as caught:  # the AMQP condition of InvalidOperation
            await orders.client.sender.deliver(bad, 0)
        assert "'apples'" in str(caught.value)
        assert "'pears'" in str(caught.value)
        batch = build(body=data(build(body=data(b"good")), bad))
        with pytest.raises(NotAllowed):
            await orders.client.sender.deliver(batch, BATCH_FORMAT)
        assert await orders.fragments() == []


@in_virtual_time
@pytest.mark.parametrize("kind", KINDS_OF_IDS)
async def test_r109_with_duplicate_detection_the_message_id_is_the_key(kind: str) -> None:
    async with partitioned_namespace(requires_duplicate_detection=True) as orders:
        for _ in range(2):
            for number in range(40):
                await orders.client.send(BrokeredMessage("x", message_id=KINDS_OF_IDS[kind](number)))
        fragments = await orders.fragments()
        assert len(fragments) == 40
        assert len(set(fragments)) > FRAGMENTS // 2, "message ids are spread over fragments"
    async with partitioned_namespace(requires_duplicate_detection=True) as orders:
        await orders.client.send(BrokeredMessage("x", message_id=key_for_fragment(3)))
        assert await orders.fragments() == [3]


@in_virtual_time
async def test_r110_q26_without_duplicate_detection_the_message_id_is_not_a_key() -> None:
    async with partitioned_namespace() as orders:
        await send_all(orders.client, numbered_messages(FRAGMENTS, message_id="the same"))
        assert await orders.fragments() == list(range(FRAGMENTS))


@in_virtual_time
async def test_r111_a_message_without_an_id_gets_one() -> None:
    async with partitioned_namespace(requires_duplicate_detection=True) as orders:
        await send_all(orders.client, numbered_messages(40))
        ids = {message.message_id for message in await orders.namespace.messages("orders")}
        assert len(ids) == 40
        assert None not in ids


@in_virtual_time
async def test_a_key_may_be_empty() -> None:
    async with partitioned_namespace() as orders:
        await send_all(orders.client, numbered_messages(3, partition_key=""))
        assert len(set(await orders.fragments())) == 1
