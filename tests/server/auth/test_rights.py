"""Keys are limited to their rights, tokens to their entity, and clients without a token are disconnected."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.in_process_server import run_server_in_process
from tests.support.raw_client import LinkRefused, RawClient, connect_raw
from twinbus.amqp.events import ConnectionClosed
from twinbus.amqp.message import data
from twinbus.amqp.sasl import Credentials
from twinbus.amqp.types import Int
from twinbus.server.auth.keys import Key, Right

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.in_process_server import InProcessServer

SECRET = "c2VjcmV0"
PEEK = "com.microsoft:peek-message"
KEYS = [
    Key("root", SECRET),
    Key("sender", SECRET, rights=frozenset({Right.SEND})),
    Key("listener", SECRET, rights=frozenset({Right.LISTEN})),
]
TOKEN_TIMEOUT_S = 1.0


@pytest.fixture(scope="module")
def many_keys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessServer]:
    with run_server_in_process(tmp_path_factory.mktemp("rights"), keys=KEYS, token_timeout_s=TOKEN_TIMEOUT_S) as server:
        yield server


async def peek_status(client: RawClient, queue: str) -> object:
    body = {"from-sequence-number": 1, "message-count": Int(1)}
    answer = await client.request_status(f"{queue}/$management", {"operation": PEEK}, body)
    return answer["statusCode"]


async def put_token(client: RawClient, server: InProcessServer, name: str, path: str) -> None:
    """Put a token made with a key."""
    properties = {"operation": "put-token", "name": f"sb://{server.host}/{path}", "type": "jwt"}
    answer = await client.request_status("$cbs", properties, server.token(path, key=SECRET, key_name=name))
    assert answer["status-code"] == 202


@pytest.mark.parametrize("way", ["password", "token"])
async def test_a_key_with_only_send_cannot_receive_or_peek(many_keys: InProcessServer, way: str) -> None:
    queue = many_keys.create_queue()
    credentials = Credentials.plain("sender", SECRET) if way == "password" else Credentials.anonymous()
    async with connect_raw(many_keys, credentials) as client:
        if way == "token":
            await put_token(client, many_keys, "sender", queue)
        assert await client.send(await client.attach_sender(queue), data(b"x")) is None
        for address in (queue, f"{queue}/$DeadLetterQueue"):
            with pytest.raises(LinkRefused, match="amqp:unauthorized-access"):
                await client.attach_receiver(address)
        assert await peek_status(client, queue) == 401


@pytest.mark.parametrize("way", ["password", "token"])
async def test_a_key_with_only_listen_cannot_send(many_keys: InProcessServer, way: str) -> None:
    queue = many_keys.create_queue()
    credentials = Credentials.plain("listener", SECRET) if way == "password" else Credentials.anonymous()
    async with connect_raw(many_keys, credentials) as client:
        if way == "token":
            await put_token(client, many_keys, "listener", queue)
        with pytest.raises(LinkRefused, match="amqp:unauthorized-access"):
            await client.attach_sender(queue)
        await client.attach_receiver(queue)
        assert await peek_status(client, queue) == 204


async def test_a_token_covers_its_queue_and_the_paths_below_it(many_keys: InProcessServer) -> None:
    queue, other = many_keys.create_queue(), many_keys.create_queue()
    async with connect_raw(many_keys, Credentials.anonymous()) as client:
        await put_token(client, many_keys, "root", queue)
        await client.attach_sender(queue)
        await client.attach_receiver(f"{queue}/$DeadLetterQueue")
        assert await peek_status(client, queue) == 204
        for address in (other, f"{queue}2", f"{other}/$management"):
            with pytest.raises(LinkRefused, match="amqp:unauthorized-access"):
                await client.attach_receiver(address)


async def test_only_a_client_without_a_token_in_time_is_disconnected(many_keys: InProcessServer) -> None:
    async with (
        connect_raw(many_keys, Credentials.anonymous()) as silent,
        connect_raw(many_keys, Credentials.anonymous()) as with_token,
        connect_raw(many_keys, Credentials.plain("root", SECRET)) as with_password,
    ):
        await put_token(with_token, many_keys, "root", "")
        assert await silent.close_condition() == "amqp:unauthorized-access"
        assert not with_token.events_of(ConnectionClosed)
        assert not with_password.events_of(ConnectionClosed)
