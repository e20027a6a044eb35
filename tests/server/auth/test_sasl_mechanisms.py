"""A client connects with any offered SASL mechanism or without SASL; its key or token determines its rights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.raw_client import LinkRefused, RawClient, connect_raw
from twinbus.amqp.message import data
from twinbus.amqp.sasl import MSSBCBS, Credentials

if TYPE_CHECKING:
    from tests.support.server_process import ServerProcess


async def assert_token_is_required_and_sufficient(client: RawClient, server: ServerProcess, queue: str) -> None:
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
async def test_an_unauthenticated_client_needs_a_token(server: ServerProcess, queue: str, mechanism: str) -> None:
    async with connect_raw(server, Credentials(mechanism, b"")) as client:
        await assert_token_is_required_and_sufficient(client, server, queue)


async def test_a_client_without_sasl_needs_a_token(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server, sasl=False) as client:
        await assert_token_is_required_and_sufficient(client, server, queue)


async def test_sasl_plain_with_name_and_key_is_sufficient(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server, Credentials.plain(server.key_name, server.key)) as client:
        assert await client.send(await client.attach_sender(queue), data(b"x")) is None


async def test_a_mechanism_that_is_not_offered_is_refused(server: ServerProcess) -> None:
    with pytest.raises(AssertionError, match="it was not let in"):
        async with connect_raw(server, Credentials.external("who")):
            pass
