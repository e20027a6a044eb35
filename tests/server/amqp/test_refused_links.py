"""A link that cannot be is refused with its reason, and the connection goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.raw_client import LinkRefused, RawClient, connect_raw
from twinbus.amqp.message import data
from twinbus.amqp.sasl import Credentials
from twinbus.amqp.terminus import Coordinator, Source, Target

if TYPE_CHECKING:
    from tests.support.server_process import ServerProcess

NO_ADDRESSES = [None, "", 7, b"bytes", "x" * 5_000]
NOT_FOUND = ["nowhere", "//", "%", "%00", "%zz", "ü" * 200, "a/b/c/d", "$DeadLetterQueue", "/$management", "amqps://h"]


async def assert_goes_on(client: RawClient, server: ServerProcess, queue: str) -> None:
    """The same connection still sends."""
    assert await client.send(await client.attach_sender(queue), data(b"all is well")) is None
    assert server.message_counts(queue) == (1, 0)


@pytest.mark.parametrize("address", NO_ADDRESSES, ids=["null", "empty", "number", "binary", "long"])
async def test_a_link_without_an_address_is_refused(server: ServerProcess, queue: str, address: object) -> None:
    async with connect_raw(server) as client:
        with pytest.raises(LinkRefused, match=r"com\.microsoft:argument-error"):
            await client.attach_sender(address)
        with pytest.raises(LinkRefused, match=r"com\.microsoft:argument-error"):
            await client.attach_receiver(address)
        await assert_goes_on(client, server, queue)


async def test_an_address_of_nothing_is_not_found(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        for address in NOT_FOUND:
            with pytest.raises(LinkRefused, match="amqp:not-found"):
                await client.attach_sender(address)
            with pytest.raises(LinkRefused, match="amqp:not-found"):
                await client.attach_receiver(address)
        await assert_goes_on(client, server, queue)


@pytest.mark.parametrize(
    "address", ["{}", "/{}", "{}/", "amqps://contoso.example/{}", "sb://contoso.example:1234/{}", "amqp://h/%71{}"]
)
async def test_a_queue_is_found_by_every_address_that_clients_write(
    server: ServerProcess, queue: str, address: str
) -> None:
    name = queue[1:] if "%71" in address else queue
    async with connect_raw(server) as client:
        assert await client.send(await client.attach_sender(address.format(name)), data(b"x")) is None
    assert server.message_counts(queue) == (1, 0)


async def test_nothing_can_be_received_from_the_coordinator(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        with pytest.raises(LinkRefused, match="argument-error"):
            await client.attach_receiver(None)
        await client.attach_sender(None, target=Coordinator(capabilities=("amqp:local-transactions",)))
        await assert_goes_on(client, server, queue)


async def test_a_source_that_is_none_is_refused(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        for wrong in (Target(address=queue), Coordinator()):
            with pytest.raises(LinkRefused, match="argument-error"):
                await client.attach_receiver(None, source=wrong)
        with pytest.raises(LinkRefused, match="argument-error"):
            await client.attach_sender(None, target=Source(address=queue))
        await assert_goes_on(client, server, queue)


async def test_nothing_can_be_sent_to_a_dead_letter_queue(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        for sub_queue in ("$DeadLetterQueue", "$deadletterqueue", "$Transfer/$DeadLetterQueue"):
            with pytest.raises(LinkRefused, match="amqp:not-allowed"):
                await client.attach_sender(f"{queue}/{sub_queue}")
        await assert_goes_on(client, server, queue)


async def test_a_transfer_dead_letter_queue_is_received_from_and_asked(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        link = await client.attach_receiver(f"{queue}/$Transfer/$DeadLetterQueue")
        assert await client.drain(link) == []
        await client.attach_sender(f"{queue}/$Transfer/$DeadLetterQueue/$management")
        await assert_goes_on(client, server, queue)


@pytest.mark.parametrize("session", ["a session", None], ids=["named", "next"])
async def test_a_session_of_a_queue_without_sessions_is_refused(
    server: ServerProcess, queue: str, session: str | None
) -> None:
    """Who asks for the messages of one session must not get those of all."""
    source = Source(address=queue, filter={"com.microsoft:session-filter": session})
    async with connect_raw(server) as client:
        with pytest.raises(LinkRefused, match="amqp:not-allowed"):
            await client.attach_receiver(queue, source=source)
        await assert_goes_on(client, server, queue)


async def test_who_has_shown_no_token_gets_no_link_but_to_cbs(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server, Credentials.anonymous()) as client:
        for address in (queue, f"{queue}/$management", f"{queue}/$DeadLetterQueue", "nowhere"):
            with pytest.raises(LinkRefused, match="amqp:unauthorized-access"):
                await client.attach_receiver(address)
            with pytest.raises(LinkRefused, match="amqp:unauthorized-access"):
                await client.attach_sender(address)
        await client.attach_receiver("$cbs")


async def test_a_queue_that_is_deleted_detaches_its_links_and_says_why(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        sender, receiver = await client.attach_sender(queue), await client.attach_receiver(queue)
        receiver.grant(10)
        server.delete_queue(queue)
        assert await client.detach_condition(receiver) == "amqp:not-found"
        assert await client.detach_condition(sender) == "amqp:not-found"
