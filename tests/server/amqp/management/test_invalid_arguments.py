"""A `$management` request with an invalid argument gets an error response that names the argument.

Each operation is requested first with every argument invalid in turn, and then with valid arguments: the same link
still works, the queue is unchanged, and another client that receives from it is not disturbed."""

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
MISSING = object()
"""Leave the argument out of the request."""
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
"""Values that are neither a number nor a string."""
NOT_NUMBERS = [*ODD, "1", "", "x" * 60_000, Char("1")]
NOT_STRINGS = [*ODD, 1, Timestamp(1)]
NOT_BINARIES = [*[item for item in ODD if item != b"1"], 1, "x"]
NOT_MAPS = [*[item for item in ODD if not isinstance(item, dict)], 1, "x"]
TOO_MANY = list(range(1, MOST_ITEMS + 2))
NOT_SEQUENCE_NUMBERS: list[object] = [
    MISSING,
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
NOT_LOCK_TOKENS: list[object] = [
    MISSING,
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
NOT_LISTS_OF_MAPS: list[object] = [[b"x"], [None], [[]], ["x", {}], [{}] * (MOST_ITEMS + 1)]
NOT_STATUSES: list[object] = ["", "eaten", "Completed", "deferred", "x" * 50_000]
NOT_BODIES: list[object] = ["text", "", b"binary", 7, True, [], [{}], Array(int, [1]), 1.5, Described(Symbol("x"), {})]


class InvalidArgument(NamedTuple):
    """An argument of an operation, and invalid values for it."""

    operation: str
    name: str
    values: list[object]
    sub_queue: str = ""


DEAD_LETTERS = "/$DeadLetterQueue"
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
    InvalidArgument(PEEK, "from-sequence-number", [MISSING, None, *NOT_NUMBERS]),
    InvalidArgument(PEEK, "message-count", [MISSING, None, *NOT_NUMBERS, Int(0), Int(-1), -(2**63)]),
    InvalidArgument(PEEK, "session-id", NOT_STRINGS),
    InvalidArgument(SCHEDULE, "messages", [MISSING, None, *NOT_MAPS, {}, *NOT_LISTS_OF_MAPS]),
    InvalidArgument(CANCEL, "sequence-numbers", NOT_SEQUENCE_NUMBERS),
    InvalidArgument(RENEW, "lock-tokens", NOT_LOCK_TOKENS),
    InvalidArgument(DEFERRED, "sequence-numbers", NOT_SEQUENCE_NUMBERS),
    InvalidArgument(DEFERRED, "receiver-settle-mode", [*NOT_NUMBERS, Int(2), Int(-1), ULong(2**64 - 1)]),
    InvalidArgument(DEFERRED, "session-id", NOT_STRINGS),
    InvalidArgument(
        UPDATE, "disposition-status", [MISSING, None, *NOT_STRINGS, "", "eaten", "Completed", "deferred", "x" * 50_000]
    ),
    InvalidArgument(UPDATE, "lock-tokens", NOT_LOCK_TOKENS),
    InvalidArgument(UPDATE, "properties-to-modify", NOT_MAPS),
    InvalidArgument(UPDATE, "deadletter-reason", NOT_STRINGS),
    InvalidArgument(UPDATE, "deadletter-description", NOT_STRINGS),
    InvalidArgument(UPDATE, "session-id", NOT_STRINGS),
    InvalidArgument(BATCH_DELETE, "message-count", [MISSING, None, *NOT_NUMBERS, Int(0), Int(-1), -(2**63)]),
    InvalidArgument(BATCH_DELETE, "enqueued-time-utc", NOT_NUMBERS),
    InvalidArgument(BATCH_DELETE, "session-id", NOT_STRINGS),
    InvalidArgument(PURGE, "state", [*NOT_STRINGS, "Active", "all", "dead-lettered", " active", "x" * 50_000]),
    InvalidArgument(DELETE, "sequence-numbers", NOT_SEQUENCE_NUMBERS),
    InvalidArgument(COMPLETE, "sequence-number", [MISSING, None, *NOT_NUMBERS, -1, -(2**63)]),
    InvalidArgument(COMPLETE, "fragment", [*NOT_NUMBERS, -1, 1, 16, ULong(2**64 - 1)]),
    InvalidArgument(RESUBMIT, "sequence-numbers", [*NOT_SEQUENCE_NUMBERS, list(range(1, 102))], DEAD_LETTERS),
    InvalidArgument(RESUBMIT, "message", NOT_BINARIES, DEAD_LETTERS),
]
SESSIONS = [
    InvalidArgument(PEEK, "session-id", NOT_STRINGS),
    InvalidArgument(DEFERRED, "session-id", [MISSING, None, *NOT_STRINGS]),
    InvalidArgument(RENEW_SESSION, "session-id", [MISSING, None, *NOT_STRINGS]),
    InvalidArgument(GET_STATE, "session-id", [MISSING, None, *NOT_STRINGS]),
    InvalidArgument(SET_STATE, "session-id", [MISSING, None, *NOT_STRINGS]),
    InvalidArgument(SET_STATE, "session-state", NOT_BINARIES),
    InvalidArgument(LIST_SESSIONS, "last-updated-time", NOT_NUMBERS),
    InvalidArgument(LIST_SESSIONS, "skip", [*NOT_NUMBERS, Int(-1), -(2**63)]),
    InvalidArgument(LIST_SESSIONS, "top", [*NOT_NUMBERS, Int(0), Int(-1), -(2**63)]),
    InvalidArgument(BATCH_DELETE, "session-id", NOT_STRINGS),
]
OPERATIONS = [
    *(PEEK, SCHEDULE, CANCEL, RENEW, DEFERRED, UPDATE, BATCH_DELETE, PURGE, DELETE, RESUBMIT, COMPLETE, FRAGMENTS),
    *(RENEW_SESSION, GET_STATE, SET_STATE, LIST_SESSIONS, WITHHOLD),
]


def argument_id(invalid: InvalidArgument) -> str:
    return f"{invalid.operation.rpartition(':')[2]} {invalid.name}"


async def assert_refused(client: RawClient, entity: str, invalid: InvalidArgument, valid: dict[str, object]) -> None:
    for invalid_value in invalid.values:
        arguments = {key: item for key, item in valid.items() if key != invalid.name}
        if invalid_value is not MISSING:
            arguments[invalid.name] = invalid_value
        answer = await request_management(client, entity, invalid.operation, arguments)
        context = f"{invalid.operation} with {invalid.name} {invalid_value!r:.80}: {answer}"
        assert (answer.status, answer.condition) == ARGUMENT, context
        assert invalid.name in answer.text, context
        assert len(answer.text) < 500, context


def assert_undisturbed(*clients: RawClient) -> None:
    for client in clients:
        assert not client.events_of(ConnectionClosed)
        assert all(event.error is None for event in client.events_of(LinkDetached))


class PreparedQueue(NamedTuple):
    """A queue with a message in every state, and valid arguments for each operation."""

    receiver: Receiver
    held: IncomingDelivery
    valid: dict[str, dict[str, object]]


async def prepare_queue(client: RawClient, queue: str) -> PreparedQueue:
    """Send five orders: 1 is dead-lettered, 2 deferred, 3 locked, 4 free and 5 scheduled."""
    await send(
        client, queue, *[order_message(number) for number in range(1, 5)], order_message(5, due_ms=FAR_FUTURE_MS)
    )
    receiver = await client.attach_receiver(queue)
    rejected, deferred, held = await client.receive(receiver, 3)
    assert await client.settle(receiver, rejected, Rejected()) is None
    number = await defer(client, receiver, deferred)
    valid: dict[str, dict[str, object]] = {
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
    return PreparedQueue(receiver, held, valid)


@pytest.mark.parametrize("invalid", PLAIN, ids=argument_id)
async def test_an_invalid_argument_is_refused_by_name(
    server: ServerProcess, queue: str, invalid: InvalidArgument
) -> None:
    async with connect_raw(server) as client, connect_raw(server) as other:
        prepared = await prepare_queue(other, queue)
        await assert_refused(client, queue + invalid.sub_queue, invalid, prepared.valid[invalid.operation])
        assert message_ids(await peek(client, queue)) == order_ids(2, 3, 4, 5)
        assert message_ids(await peek(client, queue + DEAD_LETTERS)) == order_ids(1)
        assert server.message_counts(queue) == (2, 1)
        [last] = await other.receive(prepared.receiver)
        assert message_ids([last]) == order_ids(4)
        for delivery in (prepared.held, last):
            assert await other.settle(prepared.receiver, delivery, ACCEPTED) is None
        assert_undisturbed(client, other)


@pytest.mark.parametrize("operation", sorted({invalid.operation for invalid in PLAIN}))
async def test_valid_arguments_are_accepted(server: ServerProcess, queue: str, operation: str) -> None:
    """The requests above fail only because of the one invalid argument."""
    async with connect_raw(server) as client:
        prepared = await prepare_queue(client, queue)
        entity = queue + (DEAD_LETTERS if operation == RESUBMIT else "")
        answer = await request_management(client, entity, operation, prepared.valid[operation])
        assert answer.status == 200, answer.text


@pytest.mark.parametrize("invalid", SESSIONS, ids=argument_id)
async def test_an_invalid_argument_is_refused_by_name_on_a_queue_with_sessions(
    server: ServerProcess, invalid: InvalidArgument
) -> None:
    queue = server.create_queue(RequiresSession="true")
    async with connect_raw(server) as client, connect_raw(server) as other:
        await send_orders(client, queue, [1, 2], session="a")
        link = await accept_session(client, queue, "a")
        [delivery] = await client.receive(link)
        number = await defer(client, link, delivery)
        state = {"session-id": "a", "session-state": b"half-way"}
        assert (await request_management(client, queue, SET_STATE, state)).status == 200
        valid: dict[str, dict[str, object]] = {
            PEEK: {"from-sequence-number": 1, "message-count": Int(1), "session-id": "a"},
            DEFERRED: {"sequence-numbers": [number], "receiver-settle-mode": Int(1), "session-id": "a"},
            RENEW_SESSION: {"session-id": "a"},
            GET_STATE: {"session-id": "a"},
            SET_STATE: {"session-id": "a", "session-state": b"further"},
            LIST_SESSIONS: {"last-updated-time": Timestamp(0), "skip": Int(0), "top": Int(10)},
            BATCH_DELETE: {"message-count": Int(1), "session-id": "a"},
        }
        await assert_refused(client, queue, invalid, valid[invalid.operation])
        response = await request_management(client, queue, GET_STATE, {"session-id": "a"})
        assert response.body["session-state"] == b"half-way"
        assert message_ids(await peek(other, queue)) == order_ids(1, 2)
        assert (await request_management(client, queue, invalid.operation, valid[invalid.operation])).status == 200
        assert_undisturbed(client, other)


@pytest.mark.parametrize("operation", OPERATIONS)
async def test_a_body_that_is_not_a_map_is_refused(server: ServerProcess, queue: str, operation: str) -> None:
    async with connect_raw(server) as client:
        await send_orders(client, queue, [1])
        for body in NOT_BODIES:
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
async def test_an_unknown_operation_is_refused_with_a_list_of_the_known_ones(
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
async def test_an_operation_that_is_not_a_string_is_refused(
    server: ServerProcess, queue: str, operation: object
) -> None:
    async with connect_raw(server) as client:
        answer = await request_management(client, queue, operation)
        assert (answer.status, answer.condition) == ARGUMENT
        assert "operation" in answer.text
        assert (await request_management(client, queue, Symbol(FRAGMENTS))).status == 200


# --- valid extremes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "number", [0, -1, -(2**63), 2**63 - 1, ULong(2**64 - 1), Int(7), Timestamp(7), ULong(7)], ids=repr
)
async def test_numbers_of_every_size_and_integer_type_are_accepted(
    server: ServerProcess, queue: str, number: int
) -> None:
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
async def test_a_count_of_any_size_returns_the_existing_messages(server: ServerProcess, queue: str, count: int) -> None:
    async with connect_raw(server) as client:
        await send_orders(client, queue, [1, 2, 3])
        answer = await request_management(client, queue, PEEK, {"from-sequence-number": 1, "message-count": count})
        assert len(answer.body["messages"]) == 3


@pytest.mark.parametrize("name", ["sequence-numbers", "lock-tokens"])
async def test_a_request_may_name_ten_thousand_messages(server: ServerProcess, queue: str, name: str) -> None:
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


SESSION_ARGUMENTS: dict[str, dict[str, object]] = {
    PEEK: {"from-sequence-number": 1, "message-count": Int(1)},
    DEFERRED: {"sequence-numbers": [1], "receiver-settle-mode": Int(1)},
    BATCH_DELETE: {"message-count": Int(1)},
    UPDATE: {"disposition-status": "completed", "lock-tokens": [UNKNOWN_TOKEN]},
    RENEW_SESSION: {},
    GET_STATE: {},
    SET_STATE: {},
}
NO_SUCH_SESSION = (204, 400, 410)
"""No content, an invalid session id, or a session that the caller has not accepted."""


@pytest.mark.parametrize("operation", SESSION_ARGUMENTS)
async def test_a_session_id_that_is_too_long_is_answered(server: ServerProcess, operation: str) -> None:
    queue = server.create_queue(RequiresSession="true")
    async with connect_raw(server) as client:
        await send_orders(client, queue, [1], session="a")
        for length in (129, 65_535, 65_536, 200_000):
            arguments = {"session-id": "x" * length, **SESSION_ARGUMENTS[operation]}
            answer = await request_management(client, queue, operation, arguments)
            assert answer.status in NO_SUCH_SESSION, answer
        assert message_ids(await peek(client, queue)) == order_ids(1)
        assert_undisturbed(client)


@pytest.mark.parametrize("operation", [DEFERRED, UPDATE, RENEW_SESSION, GET_STATE, SET_STATE])
async def test_a_long_session_id_is_shortened_in_the_error(server: ServerProcess, operation: str) -> None:
    queue = server.create_queue(RequiresSession="true")
    async with connect_raw(server) as client:
        arguments = {"session-id": "x" * 50_000, **SESSION_ARGUMENTS[operation]}
        answer = await request_management(client, queue, operation, arguments)
        assert len(answer.text) < 500


# --- messages in requests ---------------------------------------------------------------------------------------------


INVALID_SCHEDULED_MESSAGES: dict[str, tuple[object, int, str]] = {
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


@pytest.mark.parametrize("name", INVALID_SCHEDULED_MESSAGES)
async def test_messages_are_scheduled_together_or_not_at_all(server: ServerProcess, queue: str, name: str) -> None:
    item, status, condition = INVALID_SCHEDULED_MESSAGES[name]
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
async def test_odd_properties_to_modify_leave_a_readable_message(
    server: ServerProcess, queue: str, status: str
) -> None:
    async with connect_raw(server) as client:
        for changes in ODD_PROPERTIES:
            await send_orders(client, queue, [1])
            receiver = await client.attach_receiver(queue)
            [delivery] = await client.receive(receiver)
            await client.detach(receiver)
            arguments = {
                "disposition-status": status,
                "lock-tokens": [lock_token_of(delivery)],
                "properties-to-modify": changes,
            }
            answer = await request_management(client, queue, UPDATE, arguments)
            assert answer.status == 200, answer
            messages = [*await peek(client, queue), *await peek(client, queue + DEAD_LETTERS)]
            assert message_ids(messages) == order_ids(1)
            assert messages[0].application_properties is not None
            for entity in (queue, queue + DEAD_LETTERS):
                for state in ("active", "deferred"):
                    assert (await request_management(client, entity, PURGE, {"state": state})).status == 200
        assert_undisturbed(client)


# --- many requests at once --------------------------------------------------------------------------------------------


async def test_valid_and_invalid_requests_in_a_row_get_their_own_responses(server: ServerProcess, queue: str) -> None:
    """Send eighty requests on one pair of links without waiting for responses."""
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
        statuses = {}
        for message in [Message(delivery.payload) for delivery in client.received(answers)]:
            assert message.properties is not None
            assert isinstance(message.application_properties, dict)
            statuses[message.properties.correlation_id] = message.application_properties["statusCode"]
        assert statuses == expected
