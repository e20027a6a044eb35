"""If a key changes at one worker, the links that were opened with it end at every worker."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from tests.support.multi_process_server import run_multi_process_server
from tests.support.raw_client import connect_raw
from twinbus.amqp.sasl import Credentials

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.multi_process_server import MultiProcessServer
    from tests.support.raw_client import RawClient

WITHIN_S = 1.0
CONNECTIONS = 6
RULE = (
    '<AuthorizationRule i:type="SharedAccessAuthorizationRule" xmlns:i="http://www.w3.org/2001/XMLSchema-instance">'
    "<Rights><AccessRights>Send</AccessRights></Rights><KeyName>app</KeyName>"
    "<PrimaryKey>{}</PrimaryKey><SecondaryKey>{}</SecondaryKey></AuthorizationRule>"
)
FIRST, SECOND, THIRD = ("Zmlyc3Qtc2VjcmV0LW9mLWEtcnVsZQ", "c2Vjb25kLXNlY3JldC1vZi1hLXJ1bGU", "dGhpcmQtc2VjcmV0LW9mLWE")


def worker_of(server: MultiProcessServer, client: RawClient) -> int:
    connection: Any = SimpleNamespace(sock=client.peer.transport.get_extra_info("socket"))
    return server.worker_of_connection(connection)


async def test_a_changed_key_ends_its_links_at_every_worker(tmp_path: Path) -> None:
    with run_multi_process_server(tmp_path, workers=2) as server:
        queue = server.create_queue()
        server.update_queue(queue, AuthorizationRules=RULE.format(FIRST, SECOND))
        async with AsyncExitStack() as stack:
            clients = [
                await stack.enter_async_context(connect_raw(server, Credentials.plain("app", secret)))
                for secret in (FIRST, SECOND) * (CONNECTIONS // 2)
            ]
            assert {worker_of(server, client) for client in clients} == {0, 1}
            links = [await client.attach_sender(queue) for client in clients]
            server.update_queue(queue, AuthorizationRules=RULE.format(THIRD, SECOND))
            async with asyncio.timeout(WITHIN_S):
                for client, link in list(zip(clients, links, strict=True))[::2]:
                    assert await client.detach_condition(link) == "amqp:unauthorized-access"
            for client in clients[1::2]:  # they authenticated with the other key
                await client.attach_sender(queue)
            assert all(link.is_attached for link in links[1::2])
