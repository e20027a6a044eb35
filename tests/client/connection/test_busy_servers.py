"""A busy server is asked again within the operation's time, however short that is, and is not hammered."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from twinbus.client import BrokeredMessage, RetryPolicy
from twinbus.client.errors import error_for_condition
from twinbus.client.retry import Backoff
from twinbus.model.errors import ServerBusy, StoreUnavailable
from twinbus.testing import InMemoryNamespace, in_virtual_time

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from twinbus.client import QueueClient

LIMIT_S = 8.0
"""Less than the ten seconds that a busy server is given."""
TRIES = 4
"""Within a time that is shorter than the pause."""
AZURE = (
    "The request was terminated because the entity is being throttled. Error code : 50002. Sub error : 102. Please wait"
    " 4 seconds and try again. To know more visit https://aka.ms/sbResourceMgrExceptions."
)
"""What Azure Service Bus answers (Azure/azure-sdk-for-python, issue 20308)."""


@asynccontextmanager
async def connected(operation_timeout: float = LIMIT_S) -> AsyncIterator[tuple[InMemoryNamespace, QueueClient]]:
    async with InMemoryNamespace() as namespace:
        await namespace.create_queue("orders")
        yield namespace, namespace.factory(operation_timeout=operation_timeout).create_queue_client("orders")


def refused(namespace: InMemoryNamespace) -> int:
    """How many sends the server has refused."""
    return sum(row.failed_sends for row in namespace.usage())


OPERATIONS: dict[str, Callable[[QueueClient], Awaitable[object]]] = {
    "send": lambda client: client.send(BrokeredMessage("pears")),
    "batch": lambda client: client.send_batch([BrokeredMessage("pears"), BrokeredMessage("plums")]),
    "receive": lambda client: client.receive(),
    "management request": lambda client: client.peek(),
}


@pytest.mark.parametrize("operation", OPERATIONS)
@in_virtual_time
async def test_a_server_that_is_busy_for_less_than_the_timeout_is_asked_again_in_time(operation: str) -> None:
    async with connected() as (namespace, client):
        await client.send(BrokeredMessage("apples"))
        namespace.outage.busy("orders")
        loop = asyncio.get_running_loop()
        loop.call_later(0.8 * LIMIT_S, namespace.outage.restore)
        begun_s = loop.time()
        await OPERATIONS[operation](client)
        assert 0.8 * LIMIT_S < loop.time() - begun_s < LIMIT_S


@pytest.mark.parametrize("operation", OPERATIONS)
@in_virtual_time
async def test_a_server_that_stays_busy_fails_the_operation_late_and_with_its_own_reason(operation: str) -> None:
    async with connected() as (namespace, client):
        await client.send(BrokeredMessage("apples"))
        namespace.outage.busy("orders")
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        with pytest.raises(ServerBusy, match="'orders' is too busy"):
            await OPERATIONS[operation](client)
        assert 0.75 * LIMIT_S < loop.time() - begun_s <= LIMIT_S


@in_virtual_time
async def test_a_loop_of_sends_does_not_hammer_a_busy_server() -> None:
    async with connected() as (namespace, client):
        await client.sender.open()
        namespace.outage.busy("orders")
        loop = asyncio.get_running_loop()
        begun_s, failed = loop.time(), 0
        while loop.time() - begun_s < 60:
            with pytest.raises(ServerBusy):
                await client.send(BrokeredMessage("apples"))
            failed += 1
        assert failed <= 60 / (0.75 * LIMIT_S) + 1
        assert refused(namespace) == TRIES * failed


@in_virtual_time
async def test_with_time_enough_the_server_gets_its_ten_seconds_and_a_last_try_is_made_near_the_end() -> None:
    async with connected(25) as (namespace, client):
        await client.sender.open()
        namespace.outage.busy("orders")
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        seen: list[float] = []
        sending = asyncio.ensure_future(client.send(BrokeredMessage("apples")))
        while not sending.done():
            await asyncio.sleep(0.125)
            if refused(namespace) > len(seen):
                seen.append(round(loop.time() - begun_s, 3))
        assert isinstance(sending.exception(), ServerBusy)
        assert seen == pytest.approx([0, 10, 20, 22.5, 23.75, 24.375], abs=0.13)


@in_virtual_time
async def test_the_timeout_of_a_single_call_counts() -> None:
    async with connected(60) as (namespace, client):
        namespace.outage.busy("orders")
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        with pytest.raises(ServerBusy):
            await client.send(BrokeredMessage("apples"), timeout=2)
        assert 1.5 < loop.time() - begun_s <= 2


def test_a_pause_that_the_server_names_is_kept_and_the_policy_has_the_others() -> None:
    policy = RetryPolicy(busy_pause_s=7)
    assert Backoff(policy).next_pause_s(error_for_condition("com.microsoft:server-busy", AZURE), 60) == 4
    assert (
        Backoff(policy).next_pause_s(error_for_condition("com.microsoft:server-busy", "'orders' is too busy"), 60) == 7
    )
    assert Backoff(policy).next_pause_s(error_for_condition("com.microsoft:server-busy", AZURE), 3) == 1.5


def test_only_a_busy_server_is_tried_again_after_less_than_the_pause_of_the_policy() -> None:
    policy = RetryPolicy(max_retries=1_000, first_pause_s=5)
    assert Backoff(policy).next_pause_s(StoreUnavailable("x"), 3) is None
    pauses, left_s, tries = Backoff(policy), 3.0, 0
    while (pause_s := pauses.next_pause_s(ServerBusy("x"), left_s)) is not None:
        left_s, tries = left_s - pause_s, tries + 1
    assert tries == TRIES - 1
    assert Backoff(policy).next_pause_s(ServerBusy("x"), 0.0) is None
