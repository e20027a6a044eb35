"""`twinbus:search` finds the messages for which an SQL filter is true, page by page and with bounded work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support.entity_operations import (
    FAR_FUTURE_MS,
    annotation_of,
    defer,
    message_ids,
    order_ids,
    order_message,
    request_management,
    send,
    send_orders,
)
from tests.support.raw_client import connect_raw
from twinbus.amqp.codec.performatives import Error
from twinbus.amqp.message import Message, Properties, build, data
from twinbus.amqp.outcomes import Rejected
from twinbus.amqp.types import Int

if TYPE_CHECKING:
    from tests.support.raw_client import RawClient
    from tests.support.server_process import ServerProcess

SEARCH = "twinbus:search"
PARTITIONED = {"EnablePartitioning": "true"}


def priced(number: int, price: object, *, key: str | None = None) -> bytes:
    annotations = {"x-opt-partition-key": key} if key is not None else None
    return build(
        message_annotations=annotations,
        properties=Properties(message_id=f"order {number}"),
        application_properties={"price": price},
        body=data(b"apples"),
    )


async def search(client: RawClient, entity: str, expression: str | None = None, **arguments: object) -> dict[str, Any]:
    """Return the body of one response."""
    names: dict[str, object] = {name.replace("_", "-"): value for name, value in arguments.items()}
    if expression is not None:
        names["filter"] = expression
    response = await request_management(client, entity, SEARCH, names)
    assert response.status == 200, response.text
    return response.body


async def search_all(
    client: RawClient, entity: str, expression: str | None = None, **arguments: object
) -> tuple[list[Message], int]:
    """Return the messages of all pages, and the number of pages."""
    found: list[Message] = []
    position, pages = 0, 0
    while True:
        page = await search(client, entity, expression, from_sequence_number=position, **arguments)
        found += [Message(item["message"]) for item in page["messages"]]
        pages += 1
        assert page["next-sequence-number"] > position or page["is-finished"]
        position = page["next-sequence-number"]
        if page["is-finished"]:
            return found, pages


async def test_only_messages_for_which_the_filter_is_true_are_found(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        await send(client, queue, *[priced(number, number * 10) for number in range(1, 11)], priced(11, "free"))
        page = await search(client, queue, "price > 70 AND sys.MessageId <> 'order 9'")
        assert message_ids([Message(item["message"]) for item in page["messages"]]) == ["order 8", "order 10"]
        assert page["scanned"] == 11
        assert page["is-finished"] is True
        assert page["next-sequence-number"] == page["end-sequence-number"] == 12


async def test_a_message_for_which_the_filter_cannot_be_evaluated_is_not_found(
    server: ServerProcess, queue: str
) -> None:
    async with connect_raw(server) as client:
        await send(client, queue, priced(1, 0), priced(2, 5))
        found, _ = await search_all(client, queue, "10 / price = 2")
        assert message_ids(found) == ["order 2"]


@pytest.mark.parametrize("elements", [{}, PARTITIONED], ids=["plain", "partitioned"])
async def test_small_pages_find_every_message_once(server: ServerProcess, elements: dict[str, str]) -> None:
    queue = server.create_queue(**elements)
    async with connect_raw(server) as client:
        await send(client, queue, *[priced(number, number, key=f"key {number}") for number in range(40)])
        found, pages = await search_all(client, queue, "price >= 10", max_scanned=Int(3), message_count=Int(2))
        assert sorted(message_ids(found)) == sorted(order_ids(*range(10, 40)))
        assert pages >= 15


async def test_a_request_reads_no_more_messages_than_it_may(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        await send_orders(client, queue, range(20))
        page = await search(client, queue, "sys.MessageId = 'no such order'", max_scanned=Int(7))
        assert (page["scanned"], page["next-sequence-number"], page["is-finished"]) == (7, 8, False)


async def test_messages_are_found_by_state(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        await send_orders(client, queue, range(1, 4))
        await send(client, queue, order_message(4, due_ms=FAR_FUTURE_MS))
        link = await client.attach_receiver(queue)
        [first, _] = await client.receive(link, 2)
        await defer(client, link, first)
        for state, numbers in (("active", (2, 3)), ("deferred", (1,)), ("scheduled", (4,)), (None, (1, 2, 3, 4))):
            found, _ = await search_all(client, queue, state=state)
            assert message_ids(found) == order_ids(*numbers), state


async def test_dead_letters_are_found_by_their_reason(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        await send_orders(client, queue, range(1, 4))
        link = await client.attach_receiver(queue)
        for number, delivery in enumerate(await client.receive(link, 3)):
            info: dict[str, object] = {"DeadLetterReason": "late" if number else "broken"}
            error = Error(condition="com.microsoft:dead-letter", info=info)
            assert await client.settle(link, delivery, Rejected(error=error)) is None
        found, _ = await search_all(client, f"{queue}/$DeadLetterQueue", "DeadLetterReason = 'late'")
        assert message_ids(found) == order_ids(2, 3)


async def test_the_scheduled_messages_of_a_topic_are_found(server: ServerProcess, name: str) -> None:
    server.create_entity(name, "TopicDescription")
    async with connect_raw(server) as client:
        await send(client, name, order_message(1, due_ms=FAR_FUTURE_MS), order_message(2))
        found, _ = await search_all(client, name)
        assert message_ids(found) == order_ids(1)


async def test_bodies_are_omitted_on_request(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        await send_orders(client, queue, [1])
        page = await search(client, queue, omit_message_body=True)
        [message] = [Message(item["message"]) for item in page["messages"]]
        assert message.body_section is None
        assert annotation_of(message, "x-opt-sequence-number") == 1


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"filter": "price >"}, "filter"),
        ({"filter": "a" * 5_000}, "the filter has 5000 characters"),
        ({"filter": " AND ".join(f"p LIKE '%a_b%c_d%{n}'" for n in range(34))}, "units of work"),
        ({"filter": 7}, "filter is 7"),
        ({"state": "locked"}, "state is 'locked'"),
        ({"message-count": Int(0)}, "message-count is Int(0)"),
        ({"max-scanned": "many"}, "max-scanned is 'many'"),
    ],
)
@pytest.mark.parametrize("elements", [{}, PARTITIONED], ids=["plain", "partitioned"])
async def test_invalid_arguments_are_named(
    server: ServerProcess, elements: dict[str, str], arguments: dict[str, object], text: str
) -> None:
    queue = server.create_queue(**elements)
    async with connect_raw(server) as client:
        response = await request_management(client, queue, SEARCH, arguments)
        assert 400 <= response.status < 500
        assert text in response.text
