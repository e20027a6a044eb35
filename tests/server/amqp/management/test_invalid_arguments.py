"""Whatever is asked of `$management` in a wrong way is answered with what is wrong, by name, and harms nobody.

Each operation is asked first with all its arguments wrong in turn, and then rightly: the same link still works, what is
in the queue is as it was, and somebody else who receives from it has noticed nothing.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.support.entity_operations import (
    FAR_FUTURE_MS,
    accept_session,
    defer,
    lock_token_of,
    message_ids,
    order_ids,
    order_message,
    peek,
    request_management,
    send,
    send_orders,
)
from tests.support.raw_client import connect_raw
from twinbus.amqp.events import ConnectionClosed, LinkDetached
from twinbus.amqp.message import Message, Properties, build, data, value
from twinbus.amqp.outcomes import ACCEPTED, Rejected
from twinbus.amqp.types import Array, Char, Described, Float, Int, Symbol, Timestamp, ULong

if TYPE_CHECKING:
    from tests.support.raw_client import RawClient
    from tests.support.server_process import ServerProcess
    from twinbus.amqp.delivery import IncomingDelivery
    from twinbus.amqp.receiver import Receiver

ARGUMENT = (400, "com.microsoft:argument-error")
MOST_ITEMS = 10_000
LEFT_OUT = object()
"""An argument that is not there at all."""
UNKNOWN_TOKEN = uuid.UUID(int=7)

ODD: list[object] = [
    b"1",
    1.5,
    True,
    [],
    [1],
    {},
    {"a": 1},
    uuid.UUID(int=1),
    Float(1),
    Described(Symbol("x"), 1),
    Described(ULong(1), "x"),
    Array(int, [1]),
]
"""Neither a number nor text."""
NO_NUMBERS = [*ODD, "1", "", "x" * 60_000, Char("1")]
NO_TEXTS = [*ODD, 1, Timestamp(1)]
NO_BINARIES = [*[one for one in ODD if one != b"1"], 1, "x"]
NO_MAPS = [*[one for one in ODD if not isinstance(one, dict)], 1, "x"]
TOO_MANY = list(range(1, MOST_ITEMS + 2))
NO_SEQUENCE_NUMBERS: list[object] = [
    LEFT_OUT,
    None,
    1,
    "1",
    b"1",
    {},
    {1: 1},
    [],
    Array(int, []),
    Array(str, ["1"]),
    Array(uuid.UUID, [UNKNOWN_TOKEN]),
    ["1"],
    [None],
    [1.0],
    [True],
    [[1]],
    [1, "2"],
    [0],
    [-1],
    Array(int, [-(2**63)]),
    [ULong(2**63)],
    Array(ULong, [ULong(2**64 - 1)]),
    [1, 1],
    Array(int, [2, 1, 2]),
    TOO_MANY,
    Array(int, list(TOO_MANY)),
    Array(Int, [Int(1)] * 40_000),
]
NO_TOKENS: list[object] = [
    LEFT_OUT,
    None,
    UNKNOWN_TOKEN,
    "text",
    str(UNKNOWN_TOKEN),
    {},
    [],
    Array(uuid.UUID, []),
    Array(int, [1]),
    [str(UNKNOWN_TOKEN)],
    [UNKNOWN_TOKEN.bytes],
    [UNKNOWN_TOKEN, None],
    [UNKNOWN_TOKEN, UNKNOWN_TOKEN],
    Array(uuid.UUID, [uuid.UUID(int=number) for number in TOO_MANY]),
]
NO_LISTS_OF_MAPS: list[object] = [[b"x"], [None], [[]], ["x", {}], [{}] * (MOST_ITEMS + 1)]
NO_STATUSES: list[object] = ["", "eaten", "Completed", "deferred", "x" * 50_000]
NO_BODIES: list[object] = ["text", "", b"binary", 7, True, [], [{}], Array(int, [1]), 1.5, Described(Symbol("x"), {})]


class Wrong(NamedTuple):
    """How one argument of an operation can be wrong."""

    operation: str
    name: str
    values: list[object]
    sub_queue: str = ""


LETTERS = "/$DeadLetterQueue"
PEEK = "com.microsoft:peek-message"
SCHEDULE = "com.microsoft:schedule-message"
CANCEL = "com.microsoft:cancel-scheduled-message"
RENEW = "com.microsoft:renew-lock"
DEFERRED = "com.microsoft:receive-by-sequence-number"
UPDATE = "com.microsoft:update-disposition"
BATCH_DELETE = "com.microsoft:batch-delete-messages"
PURGE, DELETE = "twinbus:purge", "twinbus:delete-by-sequence-number"
RESUBMIT, COMPLETE = "twinbus:resubmit", "twinbus:complete-up-to"
FRAGMENTS, WITHHOLD = "twinbus:fragments", "twinbus:withhold"
RENEW_SESSION = "com.microsoft:renew-session-lock"
GET_STATE, SET_STATE = "com.microsoft:get-session-state", "com.microsoft:set-session-state"
LIST_SESSIONS = "com.microsoft:get-message-sessions"

PLAIN = [
    Wrong(PEEK, "from-sequence-number", [LEFT_OUT, None, *NO_NUMBERS]),
    Wrong(PEEK, "message-count", [LEFT_OUT, None, *NO_NUMBERS, Int(0), Int(-1), -(2**63)]),
    Wrong(PEEK, "session-id", NO_TEXTS),
    Wrong(SCHEDULE, "messages", [LEFT_OUT, None, *NO_MAPS, {}, *NO_LISTS_OF_MAPS]),
    Wrong(CANCEL, "sequence-numbers", NO_SEQUENCE_NUMBERS),
    Wrong(RENEW, "lock-tokens", NO_TOKENS),
    Wrong(DEFERRED, "sequence-numbers", NO_SEQUENCE_NUMBERS),
    Wrong(DEFERRED, "receiver-settle-mode", [*NO_NUMBERS, Int(2), Int(-1), ULong(2**64 - 1)]),
    Wrong(DEFERRED, "session-id", NO_TEXTS),
    Wrong(
        UPDATE, "disposition-status", [LEFT_OUT, None, *NO_TEXTS, "", "eaten", "Completed", "deferred", "x" * 50_000]
    ),
    Wrong(UPDATE, "lock-tokens", NO_TOKENS),
    Wrong(UPDATE, "properties-to-modify", NO_MAPS),
    Wrong(UPDATE, "deadletter-reason", NO_TEXTS),
    Wrong(UPDATE, "deadletter-description", NO_TEXTS),
    Wrong(UPDATE, "session-id", NO_TEXTS),
    Wrong(BATCH_DELETE, "message-count", [LEFT_OUT, None, *NO_NUMBERS, Int(0), Int(-1), -(2**63)]),
    Wrong(BATCH_DELETE, "enqueued-time-utc", NO_NUMBERS),
    Wrong(BATCH_DELETE, "session-id", NO_TEXTS),
    Wrong(PURGE, "state", [*NO_TEXTS, "Active", "all", "dead-lettered", " active", "x" * 50_000]),
    Wrong(DELETE, "sequence-numbers", NO_SEQUENCE_NUMBERS),
    Wrong(COMPLETE, "sequence-number", [LEFT_OUT, None, *NO_NUMBERS, -1, -(2**63)]),
    Wrong(COMPLETE, "fragment", [*NO_NUMBERS, -1, 1, 16, ULong(2**64 - 1)]),
    Wrong(RESUBMIT, "sequence-numbers", [*NO_SEQUENCE_NUMBERS, list(range(1, 102))], LETTERS),
    Wrong(RESUBMIT, "message", NO_BINARIES, LETTERS),
]
SESSIONS = [
    Wrong(PEEK, "session-id", NO_TEXTS),
    Wrong(DEFERRED, "session-id", [LEFT_OUT, None, *NO_TEXTS]),
    Wrong(RENEW_SESSION, "session-id", [LEFT_OUT, None, *NO_TEXTS]),
    Wrong(GET_STATE, "session-id", [LEFT_OUT, None, *NO_TEXTS]),
    Wrong(SET_STATE, "session-id", [LEFT_OUT, None, *NO_TEXTS]),
    Wrong(SET_STATE, "session-state", NO_BINARIES),
    Wrong(LIST_SESSIONS, "last-updated-time", NO_NUMBERS),
    Wrong(LIST_SESSIONS, "skip", [*NO_NUMBERS, Int(-1), -(2**63)]),
    Wrong(LIST_SESSIONS, "top", [*NO_NUMBERS, Int(0), Int(-1), -(2**63)]),
    Wrong(BATCH_DELETE, "session-id", NO_TEXTS),
]
OPERATIONS = [
    *(PEEK, SCHEDULE, CANCEL, RENEW, DEFERRED, UPDATE, BATCH_DELETE, PURGE, DELETE, RESUBMIT, COMPLETE, FRAGMENTS),
    *(RENEW_SESSION, GET_STATE, SET_STATE, LIST_SESSIONS, WITHHOLD),
]


def name_of(wrong: Wrong) -> str:
    return f"{wrong.operation.rpartition(':')[2]} {wrong.name}"


async def assert_refused(client: RawClient, entity: str, wrong: Wrong, right: dict[str, object]) -> None:
    for found in wrong.values:
        arguments = {key: item for key, item in right.items() if key != wrong.name}
        if found is not LEFT_OUT:
            arguments[wrong.name] = found
        answer = await request_management(client, entity, wrong.operation, arguments)
        told = f"{wrong.operation} with {wrong.name} {found!r:.80}: {answer}"
        assert (answer.status, answer.condition) == ARGUMENT, told
        assert wrong.name in answer.text, told
        assert len(answer.text) < 500, told


def assert_undisturbed(*clients: RawClient) -> None:
    for client in clients:
        assert not client.events_of(ConnectionClosed)
        assert all(event.error is None for event in client.events_of(LinkDetached))


class Scene(NamedTuple):
    """A queue with a message in every state, and what can be asked of it rightly."""

    receiver: Receiver
    held: IncomingDelivery
    right: dict[str, dict[str, object]]


async def set_scene(client: RawClient, queue: str) -> Scene:
    """1 is dead-lettered, 2 deferred, 3 locked, 4 free and 5 scheduled."""
    await send(
        client, queue, *[order_message(number) for number in range(1, 5)], order_message(5, due_ms=FAR_FUTURE_MS)
    )
    receiver = await client.attach_receiver(queue)
    letter, deferred, held = await client.receive(receiver, 3)
    assert await client.settle(receiver, letter, Rejected()) is None
    number = await defer(client, receiver, deferred)
    right: dict[str, dict[str, object]] = {
        PEEK: {"from-sequence-number": 1, "message-count": Int(1)},
        SCHEDULE: {"messages": [{"message": order_message(6, due_ms=FAR_FUTURE_MS)}]},
        CANCEL: {"sequence-numbers": [5]},
        RENEW: {"lock-tokens": [lock_token_of(held)]},
        DEFERRED: {"sequence-numbers": [number], "receiver-settle-mode": Int(1)},
        UPDATE: {"disposition-status": "suspended", "lock-tokens": [lock_token_of(held)]},
        BATCH_DELETE: {"message-count": Int(1)},
        PURGE: {},
        DELETE: {"sequence-numbers": [4]},
        COMPLETE: {"sequence-number": 4},
        RESUBMIT: {"sequence-numbers": [1]},
    }
    return Scene(receiver, held, right)


@pytest.mark.parametrize("wrong", PLAIN, ids=name_of)
async def test_an_argument_that_is_wrong_is_named(server: ServerProcess, queue: str, wrong: Wrong) -> None:
    async with connect_raw(server) as client, connect_raw(server) as other:
        scene = await set_scene(other, queue)
        await assert_refused(client, queue + wrong.sub_queue, wrong, scene.right[wrong.operation])
        assert message_ids(await peek(client, queue)) == order_ids(2, 3, 4, 5)
        assert message_ids(await peek(client, queue + LETTERS)) == order_ids(1)
        assert server.message_counts(queue) == (2, 1)
        [last] = await other.receive(scene.receiver)
        assert message_ids([last]) == order_ids(4)
        for delivery in (scene.held, last):
            assert await other.settle(scene.receiver, delivery, ACCEPTED) is None
        assert_undisturbed(client, other)


@pytest.mark.parametrize("operation", sorted({wrong.operation for wrong in PLAIN}))
async def test_asked_rightly_it_works(server: ServerProcess, queue: str, operation: str) -> None:
    """What is called wrong above is wrong only because of that one argument."""
    async with connect_raw(server) as client:
        scene = await set_scene(client, queue)
        entity = queue + (LETTERS if operation == RESUBMIT else "")
        answer = await request_management(client, entity, operation, scene.right[operation])
        assert answer.status == 200, answer.text


@pytest.mark.parametrize("wrong", SESSIONS, ids=name_of)
async def test_an_argument_that_is_wrong_is_named_where_there_are_sessions(server: ServerProcess, wrong: Wrong) -> None:
    queue = server.create_queue(RequiresSession="true")
    async with connect_raw(server) as client, connect_raw(server) as other:
        await send_orders(client, queue, [1, 2], session="a")
        link = await accept_session(client, queue, "a")
        [delivery] = await client.receive(link)
        number = await defer(client, link, delivery)
        state = {"session-id": "a", "session-state": b"half-way"}
        assert (await request_management(client, queue, SET_STATE, state)).status == 200
        right: dict[str, dict[str, object]] = {
            PEEK: {"from-sequence-number": 1, "message-count": Int(1), "session-id": "a"},
            DEFERRED: {"sequence-numbers": [number], "receiver-settle-mode": Int(1), "session-id": "a"},
            RENEW_SESSION: {"session-id": "a"},
            GET_STATE: {"session-id": "a"},
            SET_STATE: {"session-id": "a", "session-state": b"further"},
            LIST_SESSIONS: {"last-updated-time": Timestamp(0), "skip": Int(0), "top": Int(10)},
            BATCH_DELETE: {"message-count": Int(1), "session-id": "a"},
        }
        await assert_refused(client, queue, wrong, right[wrong.operation])
        found = await request_management(client, queue, GET_STATE, {"session-id": "a"})
        assert found.body["session-state"] == b"half-way"
        assert message_ids(await peek(other, queue)) == order_ids(1, 2)
        assert (await request_management(client, queue, wrong.operation, right[wrong.operation])).status == 200
        assert_undisturbed(client, other)


@pytest.mark.parametrize("operation", OPERATIONS)
async def test_arguments_that_are_no_map_are_refused(server: ServerProcess, queue: str, operation: str) -> None:
    async with connect_raw(server) as client:
        await send_orders(client, queue, [1])
        for body in NO_BODIES:
            answer = await request_management(client, queue, operation, body)
            assert (answer.status, answer.condition) == ARGUMENT, f"{body!r}: {answer}"
            assert "map" in answer.text
        assert server.message_counts(queue) == (1, 0)
        assert_undisturbed(client)


@pytest.mark.parametrize(
    "operation",
    [
        "",
        "peek-message",
        "com.microsoft:Peek-Message",
        "com.microsoft:add-rules",
        "twinbus:",
        "x" * 60_000,
        "\x00",
        "{}",
    ],
    ids=lambda name: repr(name[:30]),
)
async def test_an_operation_that_there_is_not_is_refused_with_those_that_there_are(
    server: ServerProcess, queue: str, operation: str
) -> None:
    async with connect_raw(server) as client:
        answer = await request_management(client, queue, operation)
        assert (answer.status, answer.condition) == (501, "amqp:not-implemented")
        assert repr(operation)[:60] in answer.text
        assert len(answer.text) < 1_000
        for known in OPERATIONS:
            assert known in answer.text
        assert (await request_management(client, queue, FRAGMENTS)).status == 200


@pytest.mark.parametrize("operation", [7, b"com.microsoft:peek-message", True, None, uuid.UUID(int=7)], ids=str)
async def test_an_operation_that_is_no_text_is_refused(server: ServerProcess, queue: str, operation: object) -> None:
    async with connect_raw(server) as client:
        answer = await request_management(client, queue, operation)
        assert (answer.status, answer.condition) == ARGUMENT
        assert "operation" in answer.text
        assert (await request_management(client, queue, Symbol(FRAGMENTS))).status == 200


# --- what is no mistake -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "number", [0, -1, -(2**63), 2**63 - 1, ULong(2**64 - 1), Int(7), Timestamp(7), ULong(7)], ids=repr
)
async def test_numbers_of_every_size_and_type_are_numbers(server: ServerProcess, queue: str, number: int) -> None:
    async with connect_raw(server) as client:
        await send_orders(client, queue, range(1, 8))
        answer = await request_management(
            client, queue, PEEK, {"from-sequence-number": number, "message-count": Int(9)}
        )
        first = 7 if number == 7 else 1
        assert answer.status == (200 if number <= 7 else 204)
        assert len(answer.body.get("messages", [])) == (8 - first if number <= 7 else 0)
        before = {"message-count": Int(9), "enqueued-time-utc": number}
        assert (await request_management(client, queue, BATCH_DELETE, before)).status == (
            200 if number > 2**62 else 204
        )


@pytest.mark.parametrize("count", [Int(2**31 - 1), 2**63 - 1, ULong(2**64 - 1)], ids=repr)
async def test_counts_of_any_size_give_what_there_is(server: ServerProcess, queue: str, count: int) -> None:
    async with connect_raw(server) as client:
        await send_orders(client, queue, [1, 2, 3])
        answer = await request_management(client, queue, PEEK, {"from-sequence-number": 1, "message-count": count})
        assert len(answer.body["messages"]) == 3


@pytest.mark.parametrize("name", ["sequence-numbers", "lock-tokens"])
async def test_as_many_as_ten_thousand_can_be_named_at_once(server: ServerProcess, queue: str, name: str) -> None:
    numbers = range(1, MOST_ITEMS + 1)
    async with connect_raw(server) as client:
        if name == "sequence-numbers":
            for operation in (CANCEL, DEFERRED):
                answer = await request_management(client, queue, operation, {name: Array(int, list(numbers))})
                assert (answer.status, answer.condition) == (404, "com.microsoft:message-not-found")
            deleted = await request_management(client, queue, DELETE, {name: Array(int, list(numbers))})
            assert deleted.body["sequence-numbers"].items == []
        else:
            tokens = Array(uuid.UUID, [uuid.UUID(int=number) for number in numbers])
            for operation, others in ((RENEW, {}), (UPDATE, {"disposition-status": "completed"})):
                answer = await request_management(client, queue, operation, {name: tokens, **others})
                assert (answer.status, answer.condition) == (410, "com.microsoft:message-lock-lost")


ASKED_OF_A_SESSION: dict[str, dict[str, object]] = {
    PEEK: {"from-sequence-number": 1, "message-count": Int(1)},
    DEFERRED: {"sequence-numbers": [1], "receiver-settle-mode": Int(1)},
    BATCH_DELETE: {"message-count": Int(1)},
    UPDATE: {"disposition-status": "completed", "lock-tokens": [UNKNOWN_TOKEN]},
    RENEW_SESSION: {},
    GET_STATE: {},
    SET_STATE: {},
}
NO_SUCH_SESSION = (204, 400, 410)
"""That there is nothing, that there can be no such id, or that the asker does not have that session."""


@pytest.mark.parametrize("operation", ASKED_OF_A_SESSION)
async def test_a_session_id_that_no_session_can_have_is_answered(server: ServerProcess, operation: str) -> None:
    queue = server.create_queue(RequiresSession="true")
    async with connect_raw(server) as client:
        await send_orders(client, queue, [1], session="a")
        for length in (129, 65_535, 65_536, 200_000):
            wanted = {"session-id": "x" * length, **ASKED_OF_A_SESSION[operation]}
            answer = await request_management(client, queue, operation, wanted)
            assert answer.status in NO_SUCH_SESSION, answer
        assert message_ids(await peek(client, queue)) == order_ids(1)
        assert_undisturbed(client)


@pytest.mark.parametrize("operation", [DEFERRED, UPDATE, RENEW_SESSION, GET_STATE, SET_STATE])
async def test_a_long_session_id_is_not_repeated_at_length(server: ServerProcess, operation: str) -> None:
    queue = server.create_queue(RequiresSession="true")
    async with connect_raw(server) as client:
        wanted = {"session-id": "x" * 50_000, **ASKED_OF_A_SESSION[operation]}
        answer = await request_management(client, queue, operation, wanted)
        assert len(answer.text) < 500


# --- messages within requests -----------------------------------------------------------------------------------------


NO_SCHEDULED_MESSAGES: dict[str, tuple[object, int, str]] = {
    "no message": ({}, *ARGUMENT),
    "a message that is null": ({"message": None}, *ARGUMENT),
    "a message that is text": ({"message": "x"}, *ARGUMENT),
    "a message that is a list": ({"message": [b"x"]}, *ARGUMENT),
    "garbage": ({"message": b"garbage"}, 400, "amqp:decode-error"),
    "half a message": ({"message": order_message(1, due_ms=FAR_FUTURE_MS)[:-2]}, 400, "amqp:decode-error"),
    "a message without a time": ({"message": order_message(1)}, *ARGUMENT),
    "an empty message": ({"message": b""}, *ARGUMENT),
    "a time that is text": (
        {"message": build(message_annotations={"x-opt-scheduled-enqueue-time": "tomorrow"}, body=data(b"x"))},
        *ARGUMENT,
    ),
    "a time after the end of time": (
        {"message": order_message(1, due_ms=2**63 - 1)},
        400,
        "com.microsoft:argument-out-of-range",
    ),
    "an id that is too long": (
        {
            "message": build(
                message_annotations={"x-opt-scheduled-enqueue-time": Timestamp(FAR_FUTURE_MS)},
                properties=Properties(message_id="x" * 129),
                body=data(b"x"),
            )
        },
        400,
        "com.microsoft:argument-out-of-range",
    ),
}


@pytest.mark.parametrize("name", NO_SCHEDULED_MESSAGES)
async def test_messages_are_scheduled_together_or_not_at_all(server: ServerProcess, queue: str, name: str) -> None:
    item, status, condition = NO_SCHEDULED_MESSAGES[name]
    good = {"message": order_message(7, due_ms=FAR_FUTURE_MS)}
    async with connect_raw(server) as client:
        for items in ([item], [good, item], [item, good]):
            answer = await request_management(client, queue, SCHEDULE, {"messages": items})
            assert (answer.status, answer.condition) == (status, condition)
            assert "message" in answer.text or "x-opt-scheduled-enqueue-time" in answer.text
        assert await peek(client, queue) == []
        answer = await request_management(client, queue, SCHEDULE, {"messages": [good]})
        assert answer.body["sequence-numbers"].items == [1]


ODD_PROPERTIES: list[dict[object, object]] = [
    {"a": [1, "x", None]},
    {"a": {"b": {"c": 1}}},
    {"a": Array(int, [1, 2])},
    {"a": Described(Symbol("x"), 1)},
    {"a": None},
    {"": "x"},
    {"x" * 10_000: "y" * 10_000},
    {1: "x"},
    {b"a": "x"},
    {Symbol("a"): Symbol("b")},
    {"DeadLetterReason": 7},
    {f"key {number}": number for number in range(2_000)},
]


@pytest.mark.parametrize("status", ["abandoned", "defered", "suspended"])
async def test_odd_properties_to_modify_leave_a_message_that_can_be_read(
    server: ServerProcess, queue: str, status: str
) -> None:
    async with connect_raw(server) as client:
        for changes in ODD_PROPERTIES:
            await send_orders(client, queue, [1])
            receiver = await client.attach_receiver(queue)
            [delivery] = await client.receive(receiver)
            await client.detach(receiver)
            wanted = {
                "disposition-status": status,
                "lock-tokens": [lock_token_of(delivery)],
                "properties-to-modify": changes,
            }
            answer = await request_management(client, queue, UPDATE, wanted)
            assert answer.status == 200, answer
            found = [*await peek(client, queue), *await peek(client, queue + LETTERS)]
            assert message_ids(found) == order_ids(1)
            assert found[0].application_properties is not None
            for entity in (queue, queue + LETTERS):
                for state in ("active", "deferred"):
                    assert (await request_management(client, entity, PURGE, {"state": state})).status == 200
        assert_undisturbed(client)


# --- many at once -----------------------------------------------------------------------------------------------------


async def test_wrong_requests_between_right_ones_are_answered_each_by_its_own(
    server: ServerProcess, queue: str
) -> None:
    """Eighty on one pair of links, none waiting for another."""
    node = f"{queue}/$management"
    async with connect_raw(server) as client:
        await send_orders(client, queue, [1])
        answers = await client.attach_receiver(node, target="answers")
        answers.grant(1_000)
        requests = await client.attach_sender(node)
        expected: dict[str, int] = {}
        for number in range(80):
            count: object = Int(1) if number % 2 else "many"
            name = f"request {number}"
            expected[name] = 200 if number % 2 else 400
            body = value({"from-sequence-number": 1, "message-count": count})
            properties = Properties(message_id=name, reply_to="answers")
            requests.send(build(properties=properties, application_properties={"operation": PEEK}, body=body))
        await client.wait_until(lambda: len(client.received(answers)) == 80)
        found = {}
        for message in [Message(delivery.payload) for delivery in client.received(answers)]:
            assert message.properties is not None
            assert isinstance(message.application_properties, dict)
            found[message.properties.correlation_id] = message.application_properties["statusCode"]
        assert found == expected
