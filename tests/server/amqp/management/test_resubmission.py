"""`twinbus:resubmit` sends dead-lettered messages to their queue again, unchanged or edited.

A request resubmits all of its messages, or none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.entity_operations import (
    accept_session,
    annotation_of,
    browse,
    message_ids,
    order_ids,
    order_message,
    peek,
    request_management,
    send,
    send_orders,
    sequence_numbers,
    set_status,
)
from tests.support.in_process_server import run_server_in_process
from tests.support.raw_client import connect_raw
from twinbus.amqp.codec.performatives import Error
from twinbus.amqp.message import Header, Message, Properties, build, data
from twinbus.amqp.outcomes import ACCEPTED, RELEASED, Modified, Rejected
from twinbus.amqp.sasl import Credentials
from twinbus.amqp.types import Array
from twinbus.server.auth.keys import Key, Right

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.raw_client import RawClient
    from tests.support.server_process import ServerProcess
    from twinbus.amqp.receiver import Receiver

RESUBMIT = "twinbus:resubmit"
REASONS: dict[str, object] = {"DeadLetterReason": "broken", "DeadLetterErrorDescription": "the address is missing"}
MOST_AT_ONCE = 100
NOT_FOUND = (404, "com.microsoft:message-not-found")


async def dead_letter(client: RawClient, link: Receiver, count: int) -> None:
    rejected = Rejected(error=Error(condition="com.microsoft:dead-letter", info=REASONS))
    for delivery in await client.receive(link, count):
        assert await client.settle(link, delivery, rejected) is None


async def send_and_dead_letter(client: RawClient, queue: str, count: int) -> str:
    """Send and dead-letter orders; return the dead-letter queue, where they are numbered from 1 on."""
    await send_orders(client, queue, range(1, count + 1))
    link = await client.attach_receiver(queue)
    await dead_letter(client, link, count)
    await client.detach(link)
    return f"{queue}/$DeadLetterQueue"


async def resubmit(client: RawClient, dead: str, *numbers: int, message: bytes | None = None) -> list[int]:
    """Return the new sequence numbers."""
    arguments: dict[str, object] = {"sequence-numbers": Array(int, list(numbers))}
    answer = await request_management(
        client, dead, RESUBMIT, arguments if message is None else {**arguments, "message": message}
    )
    assert answer.status == 200, answer.text
    new_numbers: list[int] = answer.body["sequence-numbers"].items
    return new_numbers


def header_of(message: Message) -> Header:
    assert message.header is not None
    return message.header


# --- unchanged --------------------------------------------------------------------------------------------------------


async def test_a_resubmitted_message_is_as_it_was_sent(server: ServerProcess) -> None:
    """The message was delivered twice before it was dead-lettered; the resubmitted message starts at zero."""
    queue = server.create_queue(MaxDeliveryCount="5")
    dead = f"{queue}/$DeadLetterQueue"
    properties = Properties(message_id="order 1", subject="s", correlation_id="c", content_type="text/plain")
    annotations = {"x-opt-partition-key": "k", "mine": 7}
    sent = build(
        header=Header(durable=True, priority=7, ttl=3_600_000),
        message_annotations=annotations,
        properties=properties,
        application_properties={"a": 1, "DeadLetterNot": "kept"},
        body=data(b"the order"),
    )
    async with connect_raw(server) as client:
        await send(client, queue, sent)
        link = await client.attach_receiver(queue)
        for _ in range(2):
            [delivery] = await client.receive(link)
            assert await client.settle(link, delivery, Modified(delivery_failed=True)) is None
        await dead_letter(client, link, 1)
        await client.detach(link)
        [letter] = await peek(client, dead)
        assert letter.application_properties == {"a": 1, "DeadLetterNot": "kept", **REASONS}
        assert header_of(letter).delivery_count == 2
        assert await resubmit(client, dead, 1) == [2]
        assert server.message_counts(queue) == (1, 0)
        [resubmitted] = await peek(client, queue)
        assert resubmitted.application_properties == {"a": 1, "DeadLetterNot": "kept"}
        assert resubmitted.properties == properties
        assert resubmitted.data == [b"the order"]
        header = header_of(resubmitted)
        assert (header.durable, header.priority, header.ttl, header.delivery_count) == (True, 7, 3_600_000, 0)
        all_annotations = resubmitted.message_annotations
        assert isinstance(all_annotations, dict)
        broker_annotations = {"x-opt-sequence-number", "x-opt-enqueued-time"}
        assert {key: value for key, value in all_annotations.items() if key not in broker_annotations} == annotations
        assert annotation_of(resubmitted, "x-opt-sequence-number") == 2
        assert annotation_of(resubmitted, "x-opt-enqueued-time") >= annotation_of(letter, "x-opt-enqueued-time")


async def test_a_resubmitted_message_is_received_and_completed_like_any_other(
    server: ServerProcess, queue: str
) -> None:
    async with connect_raw(server) as client, connect_raw(server) as other:
        dead = await send_and_dead_letter(client, queue, 1)
        receiver, browser = await other.attach_receiver(queue), await browse(other, queue)
        receiver.grant(10)
        browser.grant(10)
        [number] = await resubmit(client, dead, 1)
        await other.wait_until(lambda: other.received(receiver) and other.received(browser))
        assert sequence_numbers(other.received(receiver)) == sequence_numbers(other.received(browser)) == [number]
        assert await other.settle(receiver, other.received(receiver)[0], ACCEPTED) is None
        assert server.message_counts(queue) == (0, 0)


async def test_a_message_can_be_dead_lettered_and_resubmitted_repeatedly(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        dead = await send_and_dead_letter(client, queue, 1)
        for turn in range(1, 6):
            assert await resubmit(client, dead, turn) == [turn + 1]
            link = await client.attach_receiver(queue)
            await dead_letter(client, link, 1)
            await client.detach(link)
            [letter] = await peek(client, dead)
            assert letter.application_properties == REASONS
        assert server.message_counts(queue) == (0, 1)


async def test_several_messages_are_resubmitted_in_the_order_of_the_request(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        dead = await send_and_dead_letter(client, queue, 5)
        assert await resubmit(client, dead, 4, 1, 2) == [6, 7, 8]
        assert message_ids(await peek(client, queue)) == order_ids(4, 1, 2)
        assert message_ids(await peek(client, dead)) == order_ids(3, 5)
        assert server.message_counts(queue) == (3, 2)


async def test_one_request_resubmits_at_most_a_hundred_messages(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        dead = await send_and_dead_letter(client, queue, MOST_AT_ONCE + 1)
        answer = await request_management(
            client, dead, RESUBMIT, {"sequence-numbers": list(range(1, MOST_AT_ONCE + 2))}
        )
        assert (answer.status, answer.condition) == (400, "com.microsoft:argument-error")
        assert "sequence-numbers" in answer.text
        assert server.message_counts(queue) == (0, MOST_AT_ONCE + 1)
        numbers = range(1, MOST_AT_ONCE + 1)
        assert await resubmit(client, dead, *numbers) == [MOST_AT_ONCE + 1 + number for number in numbers]
        assert server.message_counts(queue) == (MOST_AT_ONCE, 1)


async def test_duplicate_detection_does_not_drop_a_resubmitted_message(server: ServerProcess) -> None:
    queue = server.create_queue(RequiresDuplicateDetection="true")
    async with connect_raw(server) as client:
        dead = await send_and_dead_letter(client, queue, 1)
        assert await resubmit(client, dead, 1) == [2]
        assert server.message_counts(queue) == (1, 0)
        await send_orders(client, queue, [1])
        assert server.message_counts(queue) == (1, 0)


async def test_a_resubmitted_message_goes_to_its_session(server: ServerProcess) -> None:
    queue = server.create_queue(RequiresSession="true")
    dead = f"{queue}/$DeadLetterQueue"
    async with connect_raw(server) as client:
        await send(
            client, queue, order_message(1, session="a"), order_message(2, session="b"), order_message(3, session="a")
        )
        for session, count in (("a", 2), ("b", 1)):
            link = await accept_session(client, queue, session)
            await dead_letter(client, link, count)
            await client.detach(link)
        assert message_ids(await peek(client, dead)) == order_ids(1, 3, 2)
        assert await resubmit(client, dead, 1, 2, 3) == [4, 5, 6]
        link = await accept_session(client, queue, "a")
        assert message_ids(await client.receive_all(link, 2)) == order_ids(1, 3)
        link = await accept_session(client, queue, None)
        assert message_ids(await client.receive_all(link, 1)) == order_ids(2)
        assert server.message_counts(queue) == (3, 0)


async def test_the_receiver_holding_the_session_gets_a_resubmitted_message_at_once(server: ServerProcess) -> None:
    queue = server.create_queue(RequiresSession="true")
    async with connect_raw(server) as client:
        await send(client, queue, order_message(1, session="a"))
        link = await accept_session(client, queue, "a")
        await dead_letter(client, link, 1)
        link.grant(1)
        await resubmit(client, f"{queue}/$DeadLetterQueue", 1)
        await client.wait_until(lambda: len(client.received(link)) == 2)
        assert message_ids(client.received(link)) == order_ids(1, 1)


# --- edited -----------------------------------------------------------------------------------------------------------


async def test_an_edited_message_replaces_the_dead_lettered_one(server: ServerProcess, queue: str) -> None:
    edited = build(properties=Properties(message_id="mended"), application_properties={"b": 2}, body=data(b"new"))
    async with connect_raw(server) as client:
        dead = await send_and_dead_letter(client, queue, 2)
        assert await resubmit(client, dead, 2, message=edited) == [3]
        [resubmitted] = await peek(client, queue)
        assert resubmitted.properties == Properties(message_id="mended")
        assert resubmitted.application_properties == {"b": 2}
        assert resubmitted.data == [b"new"]
        assert header_of(resubmitted).delivery_count == 0
        assert message_ids(await peek(client, dead)) == order_ids(1)


async def test_an_edited_message_without_an_id_is_given_one(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        dead = await send_and_dead_letter(client, queue, 1)
        await resubmit(client, dead, 1, message=data(b"new"))
        [resubmitted] = await peek(client, queue)
        assert resubmitted.properties is not None
        assert resubmitted.properties.message_id


INVALID_EDITS = {
    "garbage": (b"garbage", "amqp:decode-error"),
    "half a message": (order_message(1)[:-3], "amqp:decode-error"),
    "a ping": (
        build(properties=Properties(content_type="application/vnd.ms-servicebus-ping")),
        "com.microsoft:argument-error",
    ),
    "a property that is too large": (
        build(application_properties={"a": "x" * 40_000}, body=data(b"x")),
        "amqp:link:message-size-exceeded",
    ),
    "an id that is too long": (
        build(properties=Properties(message_id="x" * 129), body=data(b"x")),
        "com.microsoft:argument-out-of-range",
    ),
}


@pytest.mark.parametrize("name", INVALID_EDITS)
async def test_an_invalid_edited_message_is_refused_and_the_dead_lettered_one_stays(
    server: ServerProcess, queue: str, name: str
) -> None:
    edited, condition = INVALID_EDITS[name]
    async with connect_raw(server) as client:
        dead = await send_and_dead_letter(client, queue, 1)
        arguments = {"sequence-numbers": [1], "message": edited}
        answer = await request_management(client, dead, RESUBMIT, arguments)
        assert answer.condition == condition
        assert 400 <= answer.status < 500
        assert server.message_counts(queue) == (0, 1)
        assert await resubmit(client, dead, 1) == [2]


async def test_an_edited_message_needs_the_session_that_its_queue_requires(server: ServerProcess) -> None:
    queue = server.create_queue(RequiresSession="true")
    dead = f"{queue}/$DeadLetterQueue"
    async with connect_raw(server) as client:
        await send(client, queue, order_message(1, session="a"))
        link = await accept_session(client, queue, "a")
        await dead_letter(client, link, 1)
        await client.detach(link)
        answer = await request_management(
            client, dead, RESUBMIT, {"sequence-numbers": [1], "message": order_message(2)}
        )
        assert (answer.status, answer.condition) == (400, "amqp:not-allowed")
        assert server.message_counts(queue) == (0, 1)
        await resubmit(client, dead, 1, message=order_message(2, session="b"))
        assert message_ids(await client.receive(await accept_session(client, queue, "b"))) == order_ids(2)


# --- all or none ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [4, 100, 2**63 - 1])
async def test_a_missing_sequence_number_fails_the_whole_request(
    server: ServerProcess, queue: str, number: int
) -> None:
    async with connect_raw(server) as client:
        dead = await send_and_dead_letter(client, queue, 3)
        for numbers in ([number], [1, number], [number, 1, 2]):
            answer = await request_management(client, dead, RESUBMIT, {"sequence-numbers": numbers})
            assert (answer.status, answer.condition) == NOT_FOUND
            assert str(number) in answer.text
        assert server.message_counts(queue) == (0, 3)
        assert await peek(client, queue) == []
        assert await resubmit(client, dead, 1, 2, 3) == [4, 5, 6]


async def test_a_resubmitted_message_cannot_be_resubmitted_from_the_same_number_again(
    server: ServerProcess, queue: str
) -> None:
    async with connect_raw(server) as client:
        dead = await send_and_dead_letter(client, queue, 2)
        await resubmit(client, dead, 1)
        answer = await request_management(client, dead, RESUBMIT, {"sequence-numbers": [1, 2]})
        assert (answer.status, answer.condition) == NOT_FOUND
        assert server.message_counts(queue) == (1, 1)


async def test_a_locked_message_is_not_resubmitted(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        dead = await send_and_dead_letter(client, queue, 2)
        link = await client.attach_receiver(dead)
        [held] = await client.receive(link)
        answer = await request_management(client, dead, RESUBMIT, {"sequence-numbers": [1, 2]})
        assert (answer.status, answer.condition) == NOT_FOUND
        assert await client.settle(link, held, RELEASED) is None
        assert await resubmit(client, dead, 1, 2) == [3, 4]
        assert await client.drain(link) == []


async def test_a_dead_letter_receiver_does_not_get_resubmitted_messages(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        dead = await send_and_dead_letter(client, queue, 3)
        link = await client.attach_receiver(dead)
        [first] = await client.receive(link)
        assert message_ids([first]) == order_ids(1)
        await resubmit(client, dead, 2)
        assert message_ids(await client.receive_all(link, 1)) == order_ids(3)


@pytest.mark.parametrize("status", ["Disabled", "SendDisabled"])
async def test_resubmitting_to_a_queue_disabled_for_sending_is_refused(
    server: ServerProcess, queue: str, status: str
) -> None:
    async with connect_raw(server) as client:
        dead = await send_and_dead_letter(client, queue, 1)
        set_status(server, queue, status)
        answer = await request_management(client, dead, RESUBMIT, {"sequence-numbers": [1]})
        assert (answer.status, answer.condition) == (400, "com.microsoft:entity-disabled")
        assert server.message_counts(queue) == (0, 1)
        set_status(server, queue, "ReceiveDisabled")
        assert await resubmit(client, dead, 1) == [2]


async def test_only_dead_lettered_messages_can_be_resubmitted(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        await send_orders(client, queue, [1])
        answer = await request_management(client, queue, RESUBMIT, {"sequence-numbers": [1]})
        assert (answer.status, answer.condition) == (400, "com.microsoft:argument-error")
        assert "dead-letter" in answer.text
        assert server.message_counts(queue) == (1, 0)


async def test_resubmitting_needs_the_rights_to_listen_and_to_send(tmp_path: Path) -> None:
    rights = {"both": {Right.LISTEN, Right.SEND}, "listener": {Right.LISTEN}, "sender": {Right.SEND}}
    keys = [Key("root", "c2VjcmV0")]
    keys += [Key(name, "c2VjcmV0", rights=frozenset(granted)) for name, granted in rights.items()]
    with run_server_in_process(tmp_path, keys=keys) as server:
        queue = server.create_queue()
        async with connect_raw(server) as client:
            dead = await send_and_dead_letter(client, queue, 1)
        for name in ("listener", "sender"):
            async with connect_raw(server, Credentials.plain(name, "c2VjcmV0")) as client:
                answer = await request_management(client, dead, RESUBMIT, {"sequence-numbers": [1]})
                assert (answer.status, answer.condition) == (401, "amqp:unauthorized-access")
        assert server.message_counts(queue) == (0, 1)
        async with connect_raw(server, Credentials.plain("both", "c2VjcmV0")) as client:
            assert await resubmit(client, dead, 1) == [2]
