"""With `twinbus:withhold`, an exclusive receiver names messages that it does not want for now."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.entity_operations import (
    EPOCH,
    accept_session,
    attach_exclusive_receiver,
    message_ids,
    order_ids,
    peek,
    request_management,
    send,
)
from tests.support.raw_client import connect_raw
from twinbus.amqp.message import Properties, build, data
from twinbus.amqp.outcomes import ACCEPTED, RELEASED
from twinbus.amqp.types import Array, Symbol

if TYPE_CHECKING:
    from tests.support.entity_operations import ManagementResponse
    from tests.support.raw_client import RawClient
    from tests.support.server_process import ServerProcess

ARGUMENT = (400, "com.microsoft:argument-error")
NOT_ALLOWED = "amqp:not-allowed"
MOST_VALUES = 1_000
MOST_CHARACTERS = 65_536


def order_to(number: int, to: str) -> bytes:
    properties = Properties(message_id=f"order {number}")
    return build(properties=properties, application_properties={"to": to}, body=data(b"x"))


async def send_to(client: RawClient, queue: str, values: str, first: int = 1) -> None:
    """Send one order for each value of the property `to`, numbered from `first` on."""
    await send(client, queue, *[order_to(number, to) for number, to in enumerate(values, first)])


async def withhold(client: RawClient, queue: str, *values: str) -> ManagementResponse:
    return await request_management(client, queue, "twinbus:withhold", {"property": "to", "values": list(values)})


async def test_withheld_messages_are_skipped_and_delivered_in_order_once_released(
    server: ServerProcess, queue: str
) -> None:
    async with connect_raw(server) as client:
        await send_to(client, queue, "aab")
        link = await attach_exclusive_receiver(client, queue, 7)
        first, second = await client.receive(link, 2)
        assert (await withhold(client, queue, "a")).status == 200
        assert await client.settle(link, first, ACCEPTED) is None
        assert await client.settle(link, second, RELEASED) is None
        await send_to(client, queue, "ab", first=4)
        assert message_ids(await client.receive_all(link, 2)) == order_ids(3, 5)
        assert message_ids(await peek(client, queue)) == order_ids(2, 3, 4, 5)
        assert server.message_counts(queue) == (4, 0)
        assert (await withhold(client, queue)).status == 200
        assert message_ids(await client.receive_all(link, 2)) == order_ids(2, 4)


async def test_fragments_of_a_partitioned_queue_skip_withheld_messages(server: ServerProcess) -> None:
    queue = server.create_queue(EnablePartitioning="true")
    async with connect_raw(server) as client:
        link = await attach_exclusive_receiver(client, queue, 7)
        assert (await withhold(client, queue, "a")).status == 200
        await send_to(client, queue, "ab" * 16)
        assert sorted(message_ids(await client.receive_all(link, 16))) == sorted(order_ids(*range(2, 33, 2)))
        assert (await withhold(client, queue)).status == 200
        assert sorted(message_ids(await client.receive_all(link, 16))) == sorted(order_ids(*range(1, 33, 2)))


async def test_a_dead_letter_queue_is_withheld_separately_from_its_queue(server: ServerProcess, queue: str) -> None:
    dead = f"{queue}/$DeadLetterQueue"
    async with connect_raw(server) as client:
        await attach_exclusive_receiver(client, dead, 7)
        assert (await withhold(client, dead, "a")).status == 200
        assert (await withhold(client, queue, "a")).condition == NOT_ALLOWED
        await send_to(client, queue, "a")
        assert message_ids(await client.receive(await client.attach_receiver(queue))) == order_ids(1)


# --- permission -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("who", ["nobody", "a plain receiver", "another connection", "one whose link has ended"])
async def test_only_the_exclusive_receiver_withholds_messages(server: ServerProcess, queue: str, who: str) -> None:
    async with connect_raw(server) as client, connect_raw(server) as other:
        if who == "a plain receiver":
            await client.attach_receiver(queue)
        elif who == "another connection":
            await attach_exclusive_receiver(other, queue, 7)
        elif who == "one whose link has ended":
            await client.detach(await attach_exclusive_receiver(client, queue, 7))
        answer = await withhold(client, queue, "a")
        assert answer.condition == NOT_ALLOWED
        assert "exclusive receiver" in answer.text
        assert queue in answer.text


async def test_withholding_on_a_queue_with_sessions_is_refused(server: ServerProcess) -> None:
    queue = server.create_queue(RequiresSession="true")
    async with connect_raw(server) as client:
        await accept_session(client, queue, "a", properties={EPOCH: 7})
        answer = await withhold(client, queue, "a")
        assert answer.condition == NOT_ALLOWED
        assert "sessions" in answer.text


# --- end of the link --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["detach", "drop", "displace"])
async def test_nothing_is_withheld_once_the_link_has_ended(server: ServerProcess, queue: str, way: str) -> None:
    async with connect_raw(server) as old, connect_raw(server) as new:
        await send_to(new, queue, "ab")
        link = await attach_exclusive_receiver(old, queue, 7)
        assert (await withhold(old, queue, "a")).status == 200
        assert message_ids(await old.receive_all(link, 1)) == order_ids(2)
        if way == "detach":
            await old.detach(link)
        elif way == "drop":
            old.peer.transport.abort()
            await old.wait_until_closed()
        second = await attach_exclusive_receiver(new, queue, 8)
        assert message_ids(await new.receive(second, 2)) == order_ids(1, 2)


# --- arguments --------------------------------------------------------------------------------------------------------


INVALID: dict[str, tuple[dict[str, object], str]] = {
    "no property": ({"values": ["a"]}, "property"),
    "a property that is a number": ({"property": 7, "values": ["a"]}, "property"),
    "no values": ({"property": "to"}, "values"),
    "values that are null": ({"property": "to", "values": None}, "values"),
    "values that are one string": ({"property": "to", "values": "a"}, "list of at most 1000 strings"),
    "values that are a map": ({"property": "to", "values": {"a": "b"}}, "list of at most 1000 strings"),
    "an item that is a number": ({"property": "to", "values": ["a", 7]}, "not a string"),
    "an item that is null": ({"property": "to", "values": ["a", None]}, "not a string"),
    "an array of numbers": ({"property": "to", "values": Array(int, [7])}, "not a string"),
    "too many values": ({"property": "to", "values": [str(number) for number in range(MOST_VALUES + 1)]}, "1000"),
    "too many characters": ({"property": "to", "values": ["x" * (MOST_CHARACTERS - 1)]}, "65536 characters"),
}


@pytest.mark.parametrize("name", INVALID)
async def test_an_invalid_argument_is_refused_by_name_and_the_previous_values_stay(
    server: ServerProcess, queue: str, name: str
) -> None:
    arguments, expected = INVALID[name]
    async with connect_raw(server) as client:
        link = await attach_exclusive_receiver(client, queue, 7)
        assert (await withhold(client, queue, "a")).status == 200
        answer = await request_management(client, queue, "twinbus:withhold", arguments)
        assert (answer.status, answer.condition) == ARGUMENT
        assert expected in answer.text
        assert len(answer.text) < 500
        await send_to(client, queue, "ab")
        assert message_ids(await client.receive_all(link, 1)) == order_ids(2)


@pytest.mark.parametrize(
    "values",
    [
        ["a"] * MOST_VALUES,
        ["a", "x" * (MOST_CHARACTERS - 3)],
        [Symbol("a")],
        Array(str, ["a", "c"]),
    ],
    ids=["as many values as there can be", "as many characters", "symbols", "an array"],
)
async def test_values_within_the_limits_are_withheld(server: ServerProcess, queue: str, values: object) -> None:
    async with connect_raw(server) as client:
        link = await attach_exclusive_receiver(client, queue, 7)
        answer = await request_management(client, queue, "twinbus:withhold", {"property": "to", "values": values})
        assert answer.status == 200, answer.text
        await send_to(client, queue, "ab")
        assert message_ids(await client.receive_all(link, 1)) == order_ids(2)
