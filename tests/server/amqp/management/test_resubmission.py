"""A dead letter that is resubmitted is like any new message, as it was sent or as it was edited; all come, or none."""

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
from twinbus.amqp.message import Header, Message, Properties, build, data
from twinbus.amqp.outcomes import ACCEPTED, RELEASED, Modified, Rejected
from twinbus.amqp.performatives import Error
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


async def bury(client: RawClient, link: Receiver, count: int) -> None:
    rejected = Rejected(error=Error(condition="com.microsoft:dead-letter", info=REASONS))
    for delivery in await client.receive(link, count):
        assert await client.settle(link, delivery, rejected) is None


async def bury_orders(client: RawClient, queue: str, count: int) -> str:
    """Send and dead-letter messages; the path of the dead-letter queue, where they have the numbers from 1 on."""
    await send_orders(client, queue, range(1, count + 1))
    link = await client.attach_receiver(queue)
    await bury(client, link, count)
    await client.detach(link)
    return f"{queue}/$DeadLetterQueue"


async def resubmit(client: RawClient, dead: str, *numbers: int, message: bytes | None = None) -> list[int]:
    """The new sequence numbers."""
    wanted: dict[str, object] = {"sequence-numbers": Array(int, list(numbers))}
    answer = await request_management(
        client, dead, RESUBMIT, wanted if message is None else {**wanted, "message": message}
    )
    assert answer.status == 200, answer.text
    found: list[int] = answer.body["sequence-numbers"].items
    return found


def header_of(message: Message) -> Header:
    assert message.header is not None
    return message.header


# --- as it was --------------------------------------------------------------------------------------------------------


async def test_a_dead_letter_comes_back_as_it_was_sent(server: ServerProcess) -> None:
    """Delivered twice before it was dead-lettered: of neither is there a trace."""
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
        await bury(client, link, 1)
        await client.detach(link)
        [letter] = await peek(client, dead)
        assert letter.application_properties == {"a": 1, "DeadLetterNot": "kept", **REASONS}
        assert header_of(letter).delivery_count == 2
        assert await resubmit(client, dead, 1) == [2]
        assert server.message_counts(queue) == (1, 0)
        [back] = await peek(client, queue)
        assert back.application_properties == {"a": 1, "DeadLetterNot": "kept"}
        assert back.properties == properties
        assert back.data == [b"the order"]
        header = header_of(back)
        assert (header.durable, header.priority, header.ttl, header.delivery_count) == (True, 7, 3_600_000, 0)
        kept = back.message_annotations
        assert isinstance(kept, dict)
        ours = {"x-opt-sequence-number", "x-opt-enqueued-time"}
        assert {key: value for key, value in kept.items() if key not in ours} == annotations
        assert annotation_of(back, "x-opt-sequence-number") == 2
        assert annotation_of(back, "x-opt-enqueued-time") >= annotation_of(letter, "x-opt-enqueued-time")


async def test_it_is_received_and_completed_like_any_other(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client, connect_raw(server) as other:
        dead = await bury_orders(client, queue, 1)
        receiver, browser = await other.attach_receiver(queue), await browse(other, queue)
        receiver.grant(10)
        browser.grant(10)
        [number] = await resubmit(client, dead, 1)
        await other.wait_until(lambda: other.received(receiver) and other.received(browser))
        assert sequence_numbers(other.received(receiver)) == sequence_numbers(other.received(browser)) == [number]
        assert await other.settle(receiver, other.received(receiver)[0], ACCEPTED) is None
        assert server.message_counts(queue) == (0, 0)


async def test_it_can_be_dead_lettered_and_resubmitted_again_and_again(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        dead = await bury_orders(client, queue, 1)
        for turn in range(1, 6):
            assert await resubmit(client, dead, turn) == [turn + 1]
            link = await client.attach_receiver(queue)
            await bury(client, link, 1)
            await client.detach(link)
            [letter] = await peek(client, dead)
            assert letter.application_properties == REASONS
        assert server.message_counts(queue) == (0, 1)


async def test_several_come_back_together_in_the_order_of_the_request(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        dead = await bury_orders(client, queue, 5)
        assert await resubmit(client, dead, 4, 1, 2) == [6, 7, 8]
        assert message_ids(await peek(client, queue)) == order_ids(4, 1, 2)
        assert message_ids(await peek(client, dead)) == order_ids(3, 5)
        assert server.message_counts(queue) == (3, 2)


async def test_a_hundred_come_back_at_once_and_more_are_refused(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        dead = await bury_orders(client, queue, MOST_AT_ONCE + 1)
        answer = await request_management(
            client, dead, RESUBMIT, {"sequence-numbers": list(range(1, MOST_AT_ONCE + 2))}
        )
        assert (answer.status, answer.condition) == (400, "com.microsoft:argument-error")
        assert "sequence-numbers" in answer.text
        assert server.message_counts(queue) == (0, MOST_AT_ONCE + 1)
        numbers = range(1, MOST_AT_ONCE + 1)
        assert await resubmit(client, dead, *numbers) == [MOST_AT_ONCE + 1 + number for number in numbers]
        assert server.message_counts(queue) == (MOST_AT_ONCE, 1)


async def test_duplicate_detection_does_not_stop_it(server: ServerProcess) -> None:
    queue = server.create_queue(RequiresDuplicateDetection="true")
    async with connect_raw(server) as client:
        dead = await bury_orders(client, queue, 1)
        assert await resubmit(client, dead, 1) == [2]
        assert server.message_counts(queue) == (1, 0)
        await send_orders(client, queue, [1])
        assert server.message_counts(queue) == (1, 0)


async def test_a_dead_letter_goes_back_to_its_session(server: ServerProcess) -> None:
    queue = server.create_queue(RequiresSession="true")
    dead = f"{queue}/$DeadLetterQueue"
    async with connect_raw(server) as client:
        await send(
            client, queue, order_message(1, session="a"), order_message(2, session="b"), order_message(3, session="a")
        )
        for session, count in (("a", 2), ("b", 1)):
            link = await accept_session(client, queue, session)
            await bury(client, link, count)
            await client.detach(link)
        assert message_ids(await peek(client, dead)) == order_ids(1, 3, 2)
        assert await resubmit(client, dead, 1, 2, 3) == [4, 5, 6]
        link = await accept_session(client, queue, "a")
        assert message_ids(await client.receive_all(link, 2)) == order_ids(1, 3)
        link = await accept_session(client, queue, None)
        assert message_ids(await client.receive_all(link, 1)) == order_ids(2)
        assert server.message_counts(queue) == (3, 0)


async def test_who_has_the_session_gets_it_at_once(server: ServerProcess) -> None:
    queue = server.create_queue(RequiresSession="true")
    async with connect_raw(server) as client:
        await send(client, queue, order_message(1, session="a"))
        link = await accept_session(client, queue, "a")
        await bury(client, link, 1)
        link.grant(1)
        await resubmit(client, f"{queue}/$DeadLetterQueue", 1)
        await client.wait_until(lambda: len(client.received(link)) == 2)
        assert message_ids(client.received(link)) == order_ids(1, 1)


# --- edited -----------------------------------------------------------------------------------------------------------


async def test_an_edited_message_takes_the_place_of_the_dead_letter(server: ServerProcess, queue: str) -> None:
    edited = build(properties=Properties(message_id="mended"), application_properties={"b": 2}, body=data(b"new"))
    async with connect_raw(server) as client:
        dead = await bury_orders(client, queue, 2)
        assert await resubmit(client, dead, 2, message=edited) == [3]
        [back] = await peek(client, queue)
        assert back.properties == Properties(message_id="mended")
        assert back.application_properties == {"b": 2}
        assert back.data == [b"new"]
        assert header_of(back).delivery_count == 0
        assert message_ids(await peek(client, dead)) == order_ids(1)


async def test_an_edited_message_without_an_id_is_given_one(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        dead = await bury_orders(client, queue, 1)
        await resubmit(client, dead, 1, message=data(b"new"))
        [back] = await peek(client, queue)
        assert back.properties is not None
        assert back.properties.message_id


WRONG_EDITS = {
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


@pytest.mark.parametrize("name", WRONG_EDITS)
async def test_an_edited_message_that_could_not_be_sent_is_refused_and_the_dead_letter_stays(
    server: ServerProcess, queue: str, name: str
) -> None:
    edited, condition = WRONG_EDITS[name]
    async with connect_raw(server) as client:
        dead = await bury_orders(client, queue, 1)
        wanted = {"sequence-numbers": [1], "message": edited}
        answer = await request_management(client, dead, RESUBMIT, wanted)
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
        await bury(client, link, 1)
        await client.detach(link)
        answer = await request_management(
            client, dead, RESUBMIT, {"sequence-numbers": [1], "message": order_message(2)}
        )
        assert (answer.status, answer.condition) == (400, "amqp:not-allowed")
        assert server.message_counts(queue) == (0, 1)
        await resubmit(client, dead, 1, message=order_message(2, session="b"))
        assert message_ids(await client.receive(await accept_session(client, queue, "b"))) == order_ids(2)


# --- all, or none -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [4, 100, 2**63 - 1])
async def test_with_a_number_that_is_not_there_nothing_happens(server: ServerProcess, queue: str, number: int) -> None:
    async with connect_raw(server) as client:
        dead = await bury_orders(client, queue, 3)
        for numbers in ([number], [1, number], [number, 1, 2]):
            answer = await request_management(client, dead, RESUBMIT, {"sequence-numbers": numbers})
            assert (answer.status, answer.condition) == NOT_FOUND
            assert str(number) in answer.text
        assert server.message_counts(queue) == (0, 3)
        assert await peek(client, queue) == []
        assert await resubmit(client, dead, 1, 2, 3) == [4, 5, 6]


async def test_what_was_resubmitted_is_not_there_any_more(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        dead = await bury_orders(client, queue, 2)
        await resubmit(client, dead, 1)
        answer = await request_management(client, dead, RESUBMIT, {"sequence-numbers": [1, 2]})
        assert (answer.status, answer.condition) == NOT_FOUND
        assert server.message_counts(queue) == (1, 1)


async def test_what_someone_has_is_not_resubmitted(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        dead = await bury_orders(client, queue, 2)
        link = await client.attach_receiver(dead)
        [held] = await client.receive(link)
        answer = await request_management(client, dead, RESUBMIT, {"sequence-numbers": [1, 2]})
        assert (answer.status, answer.condition) == NOT_FOUND
        assert await client.settle(link, held, RELEASED) is None
        assert await resubmit(client, dead, 1, 2) == [3, 4]
        assert await client.drain(link) == []


async def test_a_receiver_of_dead_letters_does_not_get_what_was_resubmitted(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        dead = await bury_orders(client, queue, 3)
        link = await client.attach_receiver(dead)
        [first] = await client.receive(link)
        assert message_ids([first]) == order_ids(1)
        await resubmit(client, dead, 2)
        assert message_ids(await client.receive_all(link, 1)) == order_ids(3)


@pytest.mark.parametrize("status", ["Disabled", "SendDisabled"])
async def test_a_queue_that_cannot_be_sent_to_gets_no_dead_letters_back(
    server: ServerProcess, queue: str, status: str
) -> None:
    async with connect_raw(server) as client:
        dead = await bury_orders(client, queue, 1)
        set_status(server, queue, status)
        answer = await request_management(client, dead, RESUBMIT, {"sequence-numbers": [1]})
        assert (answer.status, answer.condition) == (400, "com.microsoft:entity-disabled")
        assert server.message_counts(queue) == (0, 1)
        set_status(server, queue, "ReceiveDisabled")
        assert await resubmit(client, dead, 1) == [2]


async def test_only_dead_letters_are_resubmitted(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        await send_orders(client, queue, [1])
        answer = await request_management(client, queue, RESUBMIT, {"sequence-numbers": [1]})
        assert (answer.status, answer.condition) == (400, "com.microsoft:argument-error")
        assert "dead-letter" in answer.text
        assert server.message_counts(queue) == (1, 0)


async def test_resubmitting_needs_the_rights_to_listen_and_to_send(tmp_path: Path) -> None:
    rights = {"both": {Right.LISTEN, Right.SEND}, "listener": {Right.LISTEN}, "sender": {Right.SEND}}
    keys = [Key("root", "c2VjcmV0")]
    keys += [Key(name, "c2VjcmV0", rights=frozenset(some)) for name, some in rights.items()]
    with run_server_in_process(tmp_path, keys=keys) as server:
        queue = server.create_queue()
        async with connect_raw(server) as client:
            dead = await bury_orders(client, queue, 1)
        for name in ("listener", "sender"):
            async with connect_raw(server, Credentials.plain(name, "c2VjcmV0")) as client:
                answer = await request_management(client, dead, RESUBMIT, {"sequence-numbers": [1]})
                assert (answer.status, answer.condition) == (401, "amqp:unauthorized-access")
        assert server.message_counts(queue) == (0, 1)
        async with connect_raw(server, Credentials.plain("both", "c2VjcmV0")) as client:
            assert await resubmit(client, dead, 1) == [2]
