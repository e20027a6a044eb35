"""A client is let in by the SASL mechanisms that it knows, or without any; what it may do, its key or token says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.raw_client import LinkRefused, RawClient, connect_raw
from twinbus.amqp.message import data
from twinbus.amqp.sasl import MSSBCBS, Credentials

if TYPE_CHECKING:
    from tests.support.server_process import ServerProcess


async def assert_a_token_is_asked_for_and_enough(client: RawClient, server: ServerProcess, queue: str) -> None:
    with pytest.raises(LinkRefused, match="amqp:unauthorized-access"):
        await client.attach_sender(queue)
    properties = {
        "operation": "put-token",
        "name": f"sb://{server.host}/{queue}",
        "type": "servicebus.windows.net:sastoken",
    }
    answer = await client.request_status("$cbs", properties, server.token(queue))
    assert answer["status-code"] == 202
    assert await client.send(await client.attach_sender(queue), data(b"x")) is None


@pytest.mark.parametrize("mechanism", ["ANONYMOUS", MSSBCBS])
async def test_who_is_nobody_yet_shows_a_token(server: ServerProcess, queue: str, mechanism: str) -> None:
    async with connect_raw(server, Credentials(mechanism, b"")) as client:
        await assert_a_token_is_asked_for_and_enough(client, server, queue)


async def test_sasl_may_be_left_out(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server, sasl=False) as client:
        await assert_a_token_is_asked_for_and_enough(client, server, queue)


async def test_by_plain_the_name_and_the_key_are_enough(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server, Credentials.plain(server.key_name, server.key)) as client:
        assert await client.send(await client.attach_sender(queue), data(b"x")) is None


async def test_a_mechanism_that_is_not_offered_lets_nobody_in(server: ServerProcess) -> None:
    with pytest.raises(AssertionError, match="it was not let in"):
        async with connect_raw(server, Credentials.external("who")):
            pass
