"""A client may send a flow before the server answers its attach: credit and drain apply once the link is attached."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.entity_operations import SESSION, message_ids, order_ids, send_orders
from tests.support.raw_client import connect_raw
from twinbus.amqp.events import AttachConfirmed, Drained
from twinbus.amqp.terminus import Source, Target
from twinbus.amqp.types import UInt

if TYPE_CHECKING:
    from tests.support.raw_client import RawClient
    from tests.support.server_process import ServerProcess
    from twinbus.amqp.receiver import Receiver


@pytest.fixture(params=["plain", "partitioned"])
def queue(server: ServerProcess, request: pytest.FixtureRequest) -> str:
    partitioning = {"EnablePartitioning": "true"} if request.param == "partitioned" else {}
    return server.create_queue(RequiresSession="true", **partitioning)


def attach_to_next_session(client: RawClient, queue: str) -> Receiver:
    """Attach to any session without waiting for the reply, which the server sends once a session is available."""
    return client.session.attach_receiver(
        "early",
        source=Source(address=queue, filter={SESSION: None}),
        target=Target(address="here"),
        properties={"com.microsoft:timeout": UInt(30_000)},
    )


async def wait_until_attached(client: RawClient, link: Receiver) -> None:
    await client.wait_until(lambda: any(event.link is link for event in client.events_of(AttachConfirmed)))


async def test_a_drain_sent_before_a_session_is_granted_is_answered_afterwards(
    server: ServerProcess, queue: str
) -> None:
    async with connect_raw(server) as client, connect_raw(server) as other:
        link = attach_to_next_session(client, queue)
        link.grant(10, drain=True)
        await client.attach_sender(queue)  # its reply shows that the server has handled the flow
        await send_orders(other, queue, [1], session="s")
        await wait_until_attached(client, link)
        await client.wait_until(lambda: client.events_of(Drained))
        assert message_ids(client.received(link)) == order_ids(1)
        assert link.credit == 0


async def test_credit_granted_before_a_session_is_used_afterwards(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client, connect_raw(server) as other:
        link = attach_to_next_session(client, queue)
        link.grant(10)
        await send_orders(other, queue, [1], session="s")
        await client.wait_until(lambda: client.received(link))
        assert message_ids(client.received(link)) == order_ids(1)
