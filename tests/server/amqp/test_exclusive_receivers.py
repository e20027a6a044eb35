"""A receiver with an epoch claims its entity: other receivers are refused, and a newer epoch displaces it at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.entity_operations import (
    EPOCH,
    accept_session,
    attach_exclusive_receiver,
    browse,
    lock_token_of,
    message_ids,
    order_ids,
    order_message,
    peek,
    request_management,
    send,
    send_orders,
    set_status,
)
from tests.support.raw_client import LinkRefused, connect_raw
from tests.support.server_process import QUEUE_ENTRY
from twinbus.amqp.events import LinkDetached
from twinbus.amqp.message import Message
from twinbus.amqp.outcomes import ACCEPTED, Rejected
from twinbus.amqp.terminus import Source
from twinbus.amqp.types import Int, UInt, ULong

if TYPE_CHECKING:
    from tests.support.raw_client import RawClient
    from tests.support.server_process import ServerProcess
    from twinbus.amqp.link import Link
    from twinbus.amqp.receiver import Receiver

LOCKED = "amqp:resource-locked"
REMOVALS: dict[str, dict[str, object]] = {
    "twinbus:complete-up-to": {"sequence-number": 1},
    "twinbus:purge": {},
    "twinbus:delete-by-sequence-number": {"sequence-numbers": [1]},
    "com.microsoft:batch-delete-messages": {"message-count": Int(1)},
}


def has_ended(client: RawClient, link: Link) -> bool:
    return any(event.link is link for event in client.events_of(LinkDetached))


# --- other receivers --------------------------------------------------------------------------------------------------


async def test_no_other_receiver_can_attach_to_a_claimed_queue(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as holder, connect_raw(server) as other:
        link = await attach_exclusive_receiver(holder, queue, 7)
        for client in (other, holder):
            for settled in (False, True):
                with pytest.raises(LinkRefused, match=LOCKED) as caught:
                    await client.attach_receiver(queue, settled=settled)
                assert "epoch 7" in caught.value.text
        await send_orders(other, queue, [1, 2])
        received = await holder.receive(link, 2)
        assert message_ids(received) == order_ids(1, 2)
        for delivery in received:
            assert await holder.settle(link, delivery, ACCEPTED) is None


async def test_a_lower_epoch_is_refused_and_the_holder_is_not_disturbed(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as holder, connect_raw(server) as other:
        link = await attach_exclusive_receiver(holder, queue, 7)
        for epoch in (6, 0, -1, -(2**63)):
            with pytest.raises(LinkRefused, match=LOCKED) as caught:
                await attach_exclusive_receiver(other, queue, epoch)
            assert "7" in caught.value.text
        await send_orders(other, queue, [1])
        assert message_ids(await holder.receive(link)) == order_ids(1)
        assert not has_ended(holder, link)


async def test_a_claim_is_refused_while_an_ordinary_receiver_is_attached(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client, connect_raw(server) as other:
        receivers = [await client.attach_receiver(queue), await client.attach_receiver(queue, settled=True)]
        for receiver in receivers:
            with pytest.raises(LinkRefused, match=LOCKED):
                await attach_exclusive_receiver(other, queue, 7)
            assert not has_ended(client, receiver)
            await client.detach(receiver)
        await attach_exclusive_receiver(other, queue, 7)


async def test_a_claimed_queue_can_still_be_browsed_peeked_and_sent_to(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as holder, connect_raw(server) as other:
        before = await browse(other, queue)
        link = await attach_exclusive_receiver(holder, queue, 7)
        await send_orders(other, queue, [1, 2])
        await holder.receive(link, 1)
        assert message_ids(await other.drain(before)) == order_ids(1, 2)
        assert message_ids(await other.drain(await browse(other, queue))) == order_ids(1, 2)
        assert message_ids(await peek(other, queue)) == order_ids(1, 2)
        assert (await request_management(other, queue, "twinbus:fragments")).status == 200


async def test_a_browse_link_does_not_prevent_a_claim(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        browser = await browse(client, queue)
        browser.grant(10)
        await attach_exclusive_receiver(client, queue, 7)
        assert not has_ended(client, browser)


async def test_a_queue_and_its_dead_letter_queue_are_claimed_separately(server: ServerProcess, queue: str) -> None:
    dead = f"{queue}/$DeadLetterQueue"
    async with connect_raw(server) as client, connect_raw(server) as other:
        await attach_exclusive_receiver(client, queue, 7)
        receiver = await other.attach_receiver(dead)
        with pytest.raises(LinkRefused, match=LOCKED):
            await attach_exclusive_receiver(other, dead, 9)
        await other.detach(receiver)
        await attach_exclusive_receiver(other, dead, 3)
        with pytest.raises(LinkRefused, match=LOCKED) as caught:
            await client.attach_receiver(dead)
        assert "epoch 3" in caught.value.text


@pytest.mark.parametrize("epoch", ["7", b"7", 7.0, True, [7]], ids=str)
async def test_an_epoch_that_is_not_a_whole_number_is_refused_and_claims_nothing(
    server: ServerProcess, queue: str, epoch: object
) -> None:
    async with connect_raw(server) as client:
        with pytest.raises(LinkRefused, match=r"com\.microsoft:argument-error") as caught:
            await attach_exclusive_receiver(client, queue, epoch)
        assert EPOCH in caught.value.text
        await client.attach_receiver(queue)


@pytest.mark.parametrize("epoch", [0, -(2**63), 2**63 - 1, ULong(2**64 - 1), UInt(0)], ids=str)
async def test_any_whole_number_is_accepted_as_an_epoch(server: ServerProcess, queue: str, epoch: int) -> None:
    async with connect_raw(server) as client:
        await attach_exclusive_receiver(client, queue, epoch)
        with pytest.raises(LinkRefused, match=LOCKED):
            await client.attach_receiver(queue)
        assert (await request_management(client, queue, "twinbus:purge", {"epoch": epoch})).status == 200
        assert (await request_management(client, queue, "twinbus:purge")).condition == LOCKED


# --- displacement -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epoch", [7, 8, 2**62])
async def test_an_equal_or_higher_epoch_takes_the_claim_and_the_locked_messages_at_once(
    server: ServerProcess, queue: str, epoch: int
) -> None:
    async with connect_raw(server) as old, connect_raw(server) as new:
        await send_orders(old, queue, range(1, 6))
        displaced = await attach_exclusive_receiver(old, queue, 7)
        held = await old.receive(displaced, 3)
        link = await attach_exclusive_receiver(new, queue, epoch)
        received = await new.receive(link, 5)
        assert sorted(message_ids(received)) == order_ids(1, 2, 3, 4, 5)
        headers = [Message(delivery.payload).header for delivery in received]
        assert [header and header.delivery_count for header in headers] == [1, 1, 1, 0, 0]
        assert await old.detach_condition(displaced) == "amqp:link:stolen"
        tokens = {"disposition-status": "completed", "lock-tokens": [lock_token_of(held[0])]}
        answer = await request_management(old, queue, "com.microsoft:update-disposition", tokens)
        assert answer.condition == "com.microsoft:message-lock-lost"
        for delivery in received:
            assert await new.settle(link, delivery, ACCEPTED) is None
        assert server.message_counts(queue) == (0, 0)


async def test_a_displaced_receiver_returns_only_with_an_epoch_that_is_not_lower(
    server: ServerProcess, queue: str
) -> None:
    async with connect_raw(server) as old, connect_raw(server) as new:
        first = await attach_exclusive_receiver(old, queue, 1)
        second = await attach_exclusive_receiver(new, queue, 2)
        assert await old.detach_condition(first) == "amqp:link:stolen"
        with pytest.raises(LinkRefused, match=LOCKED):
            await attach_exclusive_receiver(old, queue, 1)
        third = await attach_exclusive_receiver(old, queue, 2)
        assert await new.detach_condition(second) == "amqp:link:stolen"
        await send_orders(new, queue, [1])
        assert message_ids(await old.receive(third)) == order_ids(1)


async def test_of_many_claims_with_one_epoch_the_last_one_holds(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        links = [await attach_exclusive_receiver(client, queue, 7) for _ in range(10)]
        for link in links[:-1]:
            assert await client.detach_condition(link) == "amqp:link:stolen"
        await send_orders(client, queue, [1])
        assert message_ids(await client.receive(links[-1])) == order_ids(1)
        with pytest.raises(LinkRefused, match=LOCKED):
            await client.attach_receiver(queue)


async def test_a_holder_that_has_stopped_reading_is_displaced_at_once(server: ServerProcess, queue: str) -> None:
    """Epochs exist for hosts that hang: such a host answers nothing, and others need its messages."""
    async with connect_raw(server) as hung, connect_raw(server) as new:
        await send_orders(new, queue, [1, 2, 3])
        await hung.receive(await attach_exclusive_receiver(hung, queue, 1), 2)
        hung.peer.transport.pause_reading()
        link = await attach_exclusive_receiver(new, queue, 2)
        assert sorted(message_ids(await new.receive(link, 3))) == order_ids(1, 2, 3)


async def test_q18_locked_messages_of_a_displaced_holder_are_delivered_first(server: ServerProcess, queue: str) -> None:
    """Exclusive receivers process a queue in order, even across several hosts.

    The newer receiver grants credit with its attach, as proton does.
    """
    async with connect_raw(server) as old, connect_raw(server) as new:
        await send_orders(old, queue, range(1, 6))
        await old.receive(await attach_exclusive_receiver(old, queue, 1), 3)
        link = new.session.attach_receiver("newer", source=Source(address=queue), properties={EPOCH: 2})
        link.grant(5)
        await new.wait_until(lambda: len(new.received(link)) == 5)
        assert message_ids(new.received(link)) == order_ids(1, 2, 3, 4, 5)


@pytest.mark.parametrize("way", ["detach", "drop"])
async def test_q18_locked_messages_of_a_disconnected_holder_are_delivered_first(
    server: ServerProcess, queue: str, way: str
) -> None:
    async with connect_raw(server) as old, connect_raw(server) as new:
        await send_orders(new, queue, range(1, 6))
        displaced = await attach_exclusive_receiver(old, queue, 1)
        received = await old.receive(displaced, 3)
        assert await old.settle(displaced, received[0], ACCEPTED) is None
        if way == "detach":
            await old.detach(displaced)
        else:
            old.peer.transport.abort()
            await old.wait_until_closed()
        link = new.session.attach_receiver("newer", source=Source(address=queue), properties={EPOCH: 2})
        link.grant(4)
        await new.wait_until(lambda: len(new.received(link)) == 4)
        assert message_ids(new.received(link)) == order_ids(2, 3, 4, 5)


async def test_a_displaced_receive_and_delete_holder_gets_no_more_messages(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as old, connect_raw(server) as new:
        displaced = await old.attach_receiver(queue, settled=True, properties={EPOCH: 1})
        displaced.grant(100)
        await send_orders(new, queue, [1, 2])
        await old.wait_until(lambda: len(old.received(displaced)) == 2)
        link = await attach_exclusive_receiver(new, queue, 1)
        await send_orders(new, queue, [3])
        assert message_ids(await new.receive(link)) == order_ids(3)
        assert await old.detach_condition(displaced) == "amqp:link:stolen"
        assert message_ids(old.received(displaced)) == order_ids(1, 2)


# --- end of a claim ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["detach", "close", "drop"])
async def test_a_claim_ends_with_its_link_its_connection_or_its_socket(
    server: ServerProcess, queue: str, way: str
) -> None:
    async with connect_raw(server) as client, connect_raw(server) as holder:
        link = await attach_exclusive_receiver(holder, queue, 7)
        if way == "detach":
            await holder.detach(link)
        elif way == "close":
            holder.peer.close()
            await holder.wait_until_closed()
        else:
            holder.peer.transport.abort()
            await holder.wait_until_closed()
        receiver = await attach_when_free(client, queue)
        await send_orders(client, queue, [1])
        assert message_ids(await client.receive(receiver)) == order_ids(1)
        await client.detach(receiver)
        await attach_exclusive_receiver(client, queue, -5)


async def attach_when_free(client: RawClient, queue: str) -> Receiver:
    """Retry, because the server may notice a lost socket late."""
    for _ in range(1_000):
        try:
            return await client.attach_receiver(queue)
        except LinkRefused as refused:
            assert str(refused) == LOCKED  # noqa: PT017
    raise AssertionError("the claim is still there")


async def test_locks_of_a_detached_holder_persist_like_those_of_any_receiver(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        await send_orders(client, queue, [1, 2])
        link = await attach_exclusive_receiver(client, queue, 7)
        [held] = await client.receive(link)
        await client.detach(link)
        receiver = await client.attach_receiver(queue)
        assert message_ids(await client.receive_all(receiver, 1)) == order_ids(2)
        tokens = {"disposition-status": "completed", "lock-tokens": [lock_token_of(held)]}
        assert (await request_management(client, queue, "com.microsoft:update-disposition", tokens)).status == 200


async def test_a_refused_attach_leaves_no_claim_behind(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        receiver = await client.attach_receiver(queue)
        with pytest.raises(LinkRefused, match=LOCKED):
            await attach_exclusive_receiver(client, queue, 7)
        await client.attach_receiver(queue)
        await client.detach(receiver)
        assert (await request_management(client, queue, "twinbus:purge")).status == 200


async def test_disabling_the_queue_ends_the_claim_of_a_holder_that_does_not_answer(
    server: ServerProcess, queue: str
) -> None:
    async with connect_raw(server) as hung, connect_raw(server) as client:
        await attach_exclusive_receiver(hung, queue, 7)
        hung.peer.transport.pause_reading()
        set_status(server, queue, "ReceiveDisabled")
        set_status(server, queue, "Active")
        receiver = await client.attach_receiver(queue)
        await send_orders(client, queue, [1])
        assert message_ids(await client.receive(receiver)) == order_ids(1)


async def test_deleting_a_queue_ends_its_claim(server: ServerProcess, queue: str) -> None:
    async with connect_raw(server) as client:
        link = await attach_exclusive_receiver(client, queue, 7)
        server.delete_queue(queue)
        assert await client.detach_condition(link) == "amqp:not-found"
        server.request("PUT", queue, QUEUE_ENTRY.format(""), expected=201)
        await client.attach_receiver(queue)


# --- removals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", REMOVALS)
async def test_deleting_messages_of_a_claimed_queue_needs_the_epoch(
    server: ServerProcess, queue: str, operation: str
) -> None:
    async with connect_raw(server) as holder, connect_raw(server) as other:
        await send_orders(other, queue, [1])
        link = await attach_exclusive_receiver(holder, queue, 7)
        for client in (other, holder):
            for wrong_epoch in ({}, {"epoch": 6}, {"epoch": 8}, {"epoch": None}, {"epoch": -7}):
                answer = await request_management(client, queue, operation, {**REMOVALS[operation], **wrong_epoch})
                assert (answer.status, answer.condition) == (409, LOCKED)
                assert "epoch 7" in answer.text
        for invalid_epoch in ("7", True, 7.0):
            answer = await request_management(other, queue, operation, {**REMOVALS[operation], "epoch": invalid_epoch})
            assert (answer.status, answer.condition) == (400, "com.microsoft:argument-error")
            assert "epoch" in answer.text
        assert server.message_counts(queue) == (1, 0)
        answer = await request_management(other, queue, operation, {**REMOVALS[operation], "epoch": 7})
        assert answer.status == 200
        assert server.message_counts(queue) == (0, 0)
        assert not has_ended(holder, link)


@pytest.mark.parametrize("operation", REMOVALS)
async def test_deleting_messages_without_a_claim_needs_no_epoch(
    server: ServerProcess, queue: str, operation: str
) -> None:
    async with connect_raw(server) as client:
        await send_orders(client, queue, [1])
        link = await attach_exclusive_receiver(client, queue, 7)
        await client.detach(link)
        assert (await request_management(client, queue, operation, REMOVALS[operation])).status == 200
        assert server.message_counts(queue) == (0, 0)


async def test_a_claim_on_the_dead_letter_queue_does_not_cover_the_main_queue(
    server: ServerProcess, queue: str
) -> None:
    dead = f"{queue}/$DeadLetterQueue"
    async with connect_raw(server) as client:
        await send_orders(client, queue, [1, 2])
        receiver = await client.attach_receiver(queue)
        [delivery] = await client.receive(receiver)
        assert await client.settle(receiver, delivery, Rejected()) is None
        await attach_exclusive_receiver(client, dead, 7)
        assert (await request_management(client, dead, "twinbus:purge")).condition == LOCKED
        assert (await request_management(client, queue, "twinbus:purge")).status == 200
        assert server.message_counts(queue) == (0, 1)
        assert (await request_management(client, dead, "twinbus:purge", {"epoch": 7})).body["removed"] == 1


# --- sessions ---------------------------------------------------------------------------------------------------------


async def test_a_claim_on_a_queue_with_sessions_blocks_accepting_any_session(server: ServerProcess) -> None:
    queue = server.create_queue(RequiresSession="true")
    async with connect_raw(server) as holder, connect_raw(server) as other:
        await send(other, queue, order_message(1, session="a"), order_message(2, session="b"))
        link = await accept_session(holder, queue, "a", properties={EPOCH: 7})
        for session in ("a", "b", None):
            with pytest.raises(LinkRefused, match=LOCKED):
                await accept_session(other, queue, session)
        assert message_ids(await holder.receive_all(link, 1)) == order_ids(1)
        await holder.detach(link)
        assert message_ids(await other.receive(await accept_session(other, queue, "b"))) == order_ids(2)


@pytest.mark.parametrize("session", ["a", None], ids=["the same", "any"])
async def test_a_newer_claim_gets_the_session_of_the_displaced_holder(
    server: ServerProcess, session: str | None
) -> None:
    queue = server.create_queue(RequiresSession="true")
    async with connect_raw(server) as hung, connect_raw(server) as new:
        await send_orders(new, queue, [1, 2], session="a")
        old = await accept_session(hung, queue, "a", properties={EPOCH: 7})
        await hung.receive(old, 1)
        hung.peer.transport.pause_reading()
        link = await accept_session(new, queue, session, properties={EPOCH: 8})
        received = await new.receive(link, 2)
        assert message_ids(received) == order_ids(1, 2)
        hung.peer.transport.resume_reading()
        assert await hung.detach_condition(old) == "amqp:link:stolen"
        for delivery in received:
            assert await new.settle(link, delivery, ACCEPTED) is None
        assert server.message_counts(queue) == (0, 0)
