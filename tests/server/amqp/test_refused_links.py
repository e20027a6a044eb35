"""An invalid link is refused with a reason, and the connection still works."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.raw_client import LinkRefused, RawClient, connect_raw
from twinbus.amqp.message import data
from twinbus.amqp.sasl import Credentials
from twinbus.amqp.terminus import Coordinator, Source, Target

if TYPE_CHECKING:
    from tests.support.server_process import ServerProcess

INVALID_ADDRESSES = [None, "", 7, b"bytes", "x" * 5_000]
NOT_FOUND = ["nowhere", "//", "%", "%00", "%zz", "ü" * 200, "a/b/c/d", "$DeadLetterQueue", "/$management", "amqps://h"]


async def assert_connection_works(client: RawClient, server: ServerProcess, queue: str) -> None:
    """Send a message on the same connection."""
    assert await client.send(await client.attach_sender(queue), data(b"all is well")) is None
    assert server.message_counts(queue) == (1, 0)


@pytest.mark.parametrize("address", INVALID_ADDRESSES, ids=["null", "empty", "number", "binary", "long"])
async def test_a_link_without_a_valid_address_is_refused(server: ServerProcess, queue: str, address: object) -> None:
    async with connect_raw(server) as client:
        with pytest.raises(LinkRefused, match=r"com\.microsoft:argument-error"):
            await client.attach_sender(address)
        with pytest.raises(LinkRefused, match=r"com\.microsoft:argument-error"):
            await client.attach_receiver(address)
        await assert_connection_works(client, server, queue)


async def test_an_address_without_an_entity_is_not_found(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        for address in NOT_FOUND:
            with pytest.raises(LinkRefused, match="amqp:not-found"):
                await client.attach_sender(address)
            with pytest.raises(LinkRefused, match="amqp:not-found"):
                await client.attach_receiver(address)
        await assert_connection_works(client, server, queue)


@pytest.mark.parametrize(
    "address", ["{}", "/{}", "{}/", "amqps://contoso.example/{}", "sb://contoso.example:1234/{}", "amqp://h/%71{}"]
)
async def test_a_queue_is_found_by_every_form_of_its_address(server: ServerProcess, queue: str, address: str) -> None:
    name = queue[1:] if "%71" in address else queue
    async with connect_raw(server) as client:
        assert await client.send(await client.attach_sender(address.format(name)), data(b"x")) is None
    assert server.message_counts(queue) == (1, 0)


async def test_a_receiver_without_a_source_is_refused_and_a_coordinator_sender_is_not(
    server: ServerProcess, queue: str
) -> None:
    async with connect_raw(server) as client:
        with pytest.raises(LinkRefused, match="argument-error"):
            await client.attach_receiver(None)
        await client.attach_sender(None, target=Coordinator(capabilities=("amqp:local-transactions",)))
        await assert_connection_works(client, server, queue)


async def test_a_terminus_of_the_wrong_kind_is_refused(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        for terminus in (Target(address=queue), Coordinator()):
            with pytest.raises(LinkRefused, match="argument-error"):
                await client.attach_receiver(None, source=terminus)
        with pytest.raises(LinkRefused, match="argument-error"):
            await client.attach_sender(None, target=Source(address=queue))
        await assert_connection_works(client, server, queue)


async def test_a_sender_to_a_dead_letter_queue_is_refused(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        for sub_queue in ("$DeadLetterQueue", "$deadletterqueue", "$Transfer/$DeadLetterQueue"):
            with pytest.raises(LinkRefused, match="amqp:not-allowed"):
                await client.attach_sender(f"{queue}/{sub_queue}")
        await assert_connection_works(client, server, queue)


async def test_a_transfer_dead_letter_queue_accepts_receivers_and_management_links(
    server: ServerProcess, queue: str
) -> None:
    async with connect_raw(server) as client:
        link = await client.attach_receiver(f"{queue}/$Transfer/$DeadLetterQueue")
        assert await client.drain(link) == []
        await client.attach_sender(f"{queue}/$Transfer/$DeadLetterQueue/$management")
        await assert_connection_works(client, server, queue)


@pytest.mark.parametrize("session", ["a session", None], ids=["named", "next"])
async def test_a_session_filter_on_a_queue_without_sessions_is_refused(
    server: ServerProcess, queue: str, session: str | None
) -> None:
    """A receiver that requests one session must not get messages of all sessions."""
    source = Source(address=queue, filter={"com.microsoft:session-filter": session})
    async with connect_raw(server) as client:
        with pytest.raises(LinkRefused, match="amqp:not-allowed"):
            await client.attach_receiver(queue, source=source)
        await assert_connection_works(client, server, queue)


async def test_a_client_without_a_token_can_attach_only_to_cbs(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server, Credentials.anonymous()) as client:
        for address in (queue, f"{queue}/$management", f"{queue}/$DeadLetterQueue", "nowhere"):
            with pytest.raises(LinkRefused, match="amqp:unauthorized-access"):
                await client.attach_receiver(address)
            with pytest.raises(LinkRefused, match="amqp:unauthorized-access"):
                await client.attach_sender(address)
        await client.attach_receiver("$cbs")


async def test_deleting_a_queue_detaches_its_links_with_a_reason(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        sender, receiver = await client.attach_sender(queue), await client.attach_receiver(queue)
        receiver.grant(10)
        server.delete_queue(queue)
        assert await client.detach_condition(receiver) == "amqp:not-found"
        assert await client.detach_condition(sender) == "amqp:not-found"
