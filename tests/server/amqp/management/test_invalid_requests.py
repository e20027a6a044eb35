"""Invalid requests to `$management` and `$cbs` get an error response, and the next request works."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest

from tests.support.raw_client import LinkRefused, RawClient, connect_raw
from twinbus.amqp.message import Message, Properties, build, data, value
from twinbus.amqp.outcomes import ACCEPTED
from twinbus.amqp.sasl import Credentials
from twinbus.amqp.types import Array, Int

if TYPE_CHECKING:
    from tests.support.server_process import ServerProcess

PEEK = "com.microsoft:peek-message"
RENEW = "com.microsoft:renew-lock"
UPDATE = "com.microsoft:update-disposition"
ARGUMENT = (400, "com.microsoft:argument-error")
LOST = (410, "com.microsoft:message-lock-lost")
TOKENS = Array(uuid.UUID, [uuid.UUID(int=7)])
INVALID: dict[str, tuple[object, object, tuple[int, str]]] = {
    "an unknown operation": ("com.microsoft:make-coffee", {}, (501, "amqp:not-implemented")),
    "an operation that is a number": (7, {}, ARGUMENT),
    "no operation": (None, {}, ARGUMENT),
    "a body that is no map": (PEEK, "text", ARGUMENT),
    "no body": (PEEK, None, ARGUMENT),
    "peek without a number": (PEEK, {"message-count": Int(1)}, ARGUMENT),
    "peek without a count": (PEEK, {"from-sequence-number": 1}, ARGUMENT),
    "peek of no messages": (PEEK, {"from-sequence-number": 1, "message-count": Int(0)}, ARGUMENT),
    "peek of less": (PEEK, {"from-sequence-number": 1, "message-count": Int(-1)}, ARGUMENT),
    "peek with text": (PEEK, {"from-sequence-number": "1", "message-count": "1"}, ARGUMENT),
    "peek with booleans": (PEEK, {"from-sequence-number": True, "message-count": True}, ARGUMENT),
    "renew without tokens": (RENEW, {}, ARGUMENT),
    "renew of no tokens": (RENEW, {"lock-tokens": Array(uuid.UUID, [])}, ARGUMENT),
    "renew with text": (RENEW, {"lock-tokens": "text"}, ARGUMENT),
    "renew with numbers": (RENEW, {"lock-tokens": Array(Int, [Int(1)])}, ARGUMENT),
    "renew of an unknown lock": (RENEW, {"lock-tokens": TOKENS}, LOST),
    "complete an unknown lock": (UPDATE, {"disposition-status": "completed", "lock-tokens": TOKENS}, LOST),
    "abandon an unknown lock": (UPDATE, {"disposition-status": "abandoned", "lock-tokens": TOKENS}, LOST),
    "dead-letter an unknown lock": (UPDATE, {"disposition-status": "suspended", "lock-tokens": TOKENS}, LOST),
}


async def assert_management_works(client: RawClient, queue: str) -> None:
    answer = await client.request_status(
        f"{queue}/$management", {"operation": PEEK}, {"from-sequence-number": 1, "message-count": Int(1)}
    )
    assert answer["statusCode"] == 204


@pytest.mark.parametrize("name", INVALID)
async def test_an_invalid_request_is_answered_with_its_error(server: ServerProcess, queue: str, name: str) -> None:
    operation, body, (status, condition) = INVALID[name]
    properties = {} if operation is None else {"operation": operation}
    async with connect_raw(server) as client:
        response = await client.request_status(f"{queue}/$management", properties, body)
        assert (response["statusCode"], response["errorCondition"]) == (status, condition)
        assert response["statusDescription"]
        await assert_management_works(client, queue)


@pytest.mark.parametrize("payload", [b"", b"garbage", data(b"x"), value({})], ids=["empty", "garbage", "data", "bare"])
async def test_a_malformed_request_is_rejected_or_answered_and_the_link_still_works(
    server: ServerProcess, queue: str, payload: bytes
) -> None:
    async with connect_raw(server) as client:
        for node in (f"{queue}/$management", "$cbs"):
            link = await client.attach_sender(node)
            assert await client.send(link, payload) in (None, "amqp:decode-error")
        await assert_management_works(client, queue)


async def test_a_response_goes_only_to_the_reply_to_address_of_its_request(server: ServerProcess, queue: str) -> None:
    """A client matches responses by link: a response for another client would be mistaken for its own."""
    node = f"{queue}/$management"
    body = value({"from-sequence-number": 1, "message-count": Int(1)})
    async with connect_raw(server) as client:
        responses = await client.attach_receiver(node, target="answers")
        responses.grant(10)
        requests = await client.attach_sender(node)
        for identity, reply_to in (("for nobody", "nobody"), ("for me", "answers")):
            properties = Properties(message_id=identity, reply_to=reply_to)
            request = build(properties=properties, application_properties={"operation": PEEK}, body=body)
            assert await client.send(requests, request) is None
        await client.wait_until(lambda: client.received(responses))
        received = [Message(delivery.payload).properties for delivery in client.received(responses)]
        assert [properties and properties.correlation_id for properties in received] == ["for me"]


async def test_an_unknown_disposition_status_is_refused_and_the_lock_stays(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        sender, receiver = await client.attach_sender(queue), await client.attach_receiver(queue)
        assert await client.send(sender, data(b"x")) is None
        [delivery] = await client.receive(receiver)
        tokens = Array(uuid.UUID, [uuid.UUID(bytes_le=bytes(delivery.tag))])
        for status in ({}, {"disposition-status": "eaten"}, {"disposition-status": 7}):
            answer = await client.request_status(
                f"{queue}/$management", {"operation": UPDATE}, {"lock-tokens": tokens, **status}
            )
            assert answer["errorCondition"] == ARGUMENT[1]
        assert await client.settle(receiver, delivery, ACCEPTED) is None


async def test_locks_are_settled_together_or_not_at_all(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        sender, receiver = await client.attach_sender(queue), await client.attach_receiver(queue)
        assert await client.send(sender, data(b"x")) is None
        [delivery] = await client.receive(receiver)
        token = uuid.UUID(bytes_le=bytes(delivery.tag))
        mixed = {"disposition-status": "completed", "lock-tokens": Array(uuid.UUID, [token, uuid.UUID(int=7)])}
        answer = await client.request_status(f"{queue}/$management", {"operation": UPDATE}, mixed)
        assert answer["errorCondition"] == LOST[1]
        assert server.message_counts(queue) == (1, 0)
        valid = {"disposition-status": "completed", "lock-tokens": Array(uuid.UUID, [token])}
        answer = await client.request_status(f"{queue}/$management", {"operation": UPDATE}, valid)
        assert answer["statusCode"] == 200
        assert server.message_counts(queue) == (0, 0)
        assert await client.settle(receiver, delivery, ACCEPTED) == LOST[1]


async def put_token(
    client: RawClient, token: object, audience: object, operation: object = "put-token"
) -> tuple[int, str]:
    properties = {"operation": operation, "name": audience, "type": "servicebus.windows.net:sastoken"}
    response = await client.request_status("$cbs", properties, token)
    return int(response["status-code"]), str(response["status-description"])


async def test_cbs_refuses_invalid_tokens_with_a_reason_and_then_accepts_a_valid_one(
    server: ServerProcess, queue: str
) -> None:
    audience = f"sb://{server.host}/{queue}"
    async with connect_raw(server, Credentials.anonymous()) as client:
        for token, expected in {
            server.token(queue, lifetime_s=-10): "the token expired at",
            server.token(queue, key="c2VjcmV0"): "signature does not match",
            server.token(queue, key_name="Nobody"): "signature does not match",
            server.token(f"{queue}2"): "the token is for",
            "eyJhbGciOi.a.jwt": "not a shared access signature",
            "x" * 10_000: "characters",
            "SharedAccessSignature sr=x": "has no 'sig'",
        }.items():
            status, description = await put_token(client, token, audience)
            assert status == 401
            assert expected in description
            assert server.key not in description
        for arguments in ((7, audience, "put-token"), ("x", 7, "put-token"), (None, audience, "put-token")):
            assert (await put_token(client, *arguments))[0] == 400
        assert (await put_token(client, server.token(queue), audience, "take-token"))[0] == 501
        with pytest.raises(LinkRefused, match="amqp:unauthorized-access"):
            await client.attach_sender(queue)
        assert await put_token(client, server.token(queue), audience) == (202, "Accepted")
        assert await client.send(await client.attach_sender(queue), data(b"x")) is None
        with pytest.raises(LinkRefused, match="amqp:unauthorized-access"):
            await client.attach_sender(server.create_queue())
    assert server.message_counts(queue) == (1, 0)
