"""Retries after ServerBusy: they stay within the operation timeout, however short, and do not hammer the server."""

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
"""Shorter than the default pause of ten seconds after ServerBusy."""
ATTEMPTS = 4
"""Attempts of an operation whose timeout is shorter than the pause."""
AZURE = (
    "The request was terminated because the entity is being throttled. Error code : 50002. Sub error : 102. Please wait"
    " 4 seconds and try again. To know more visit https://aka.ms/sbResourceMgrExceptions."
)
"""A ServerBusy description of Azure Service Bus (Azure/azure-sdk-for-python, issue 20308)."""


@asynccontextmanager
async def namespace_with_client(
    operation_timeout: float = LIMIT_S,
) -> AsyncIterator[tuple[InMemoryNamespace, QueueClient]]:
    async with InMemoryNamespace() as namespace:
        await namespace.create_queue("orders")
        yield namespace, namespace.factory(operation_timeout=operation_timeout).create_queue_client("orders")


def refused_sends(namespace: InMemoryNamespace) -> int:
    """Return the number of sends that the server has refused."""
    return sum(row.failed_sends for row in namespace.usage())


OPERATIONS: dict[str, Callable[[QueueClient], Awaitable[object]]] = {
    "send": lambda client: client.send(BrokeredMessage("pears")),
    "batch": lambda client: client.send_batch([BrokeredMessage("pears"), BrokeredMessage("plums")]),
    "receive": lambda client: client.receive(),
    "management request": lambda client: client.peek(),
}


@pytest.mark.parametrize("operation", OPERATIONS)
@in_virtual_time
async def test_an_operation_succeeds_if_the_server_is_busy_for_less_than_the_timeout(operation: str) -> None:
    async with namespace_with_client() as (namespace, client):
        await client.send(BrokeredMessage("apples"))
        namespace.outage.busy("orders")
        loop = asyncio.get_running_loop()
        loop.call_later(0.8 * LIMIT_S, namespace.outage.restore)
        begun_s = loop.time()
        await OPERATIONS[operation](client)
        assert 0.8 * LIMIT_S < loop.time() - begun_s < LIMIT_S


@pytest.mark.parametrize("operation", OPERATIONS)
@in_virtual_time
async def test_an_operation_fails_with_server_busy_near_its_timeout_if_the_server_stays_busy(operation: str) -> None:
    async with namespace_with_client() as (namespace, client):
        await client.send(BrokeredMessage("apples"))
        namespace.outage.busy("orders")
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        with pytest.raises(ServerBusy, match="'orders' is too busy"):
            await OPERATIONS[operation](client)
        assert 0.75 * LIMIT_S < loop.time() - begun_s <= LIMIT_S


@in_virtual_time
async def test_a_loop_of_sends_does_not_hammer_a_busy_server() -> None:
    async with namespace_with_client() as (namespace, client):
        await client.sender.open()
        namespace.outage.busy("orders")
        loop = asyncio.get_running_loop()
        begun_s, failed = loop.time(), 0
        while loop.time() - begun_s < 60:
            with pytest.raises(ServerBusy):
                await client.send(BrokeredMessage("apples"))
            failed += 1
        assert failed <= 60 / (0.75 * LIMIT_S) + 1
        assert refused_sends(namespace) == ATTEMPTS * failed


@in_virtual_time
async def test_retries_pause_ten_seconds_and_then_shorten_towards_the_timeout() -> None:
    async with namespace_with_client(25) as (namespace, client):
        await client.sender.open()
        namespace.outage.busy("orders")
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        attempts_s: list[float] = []
        sending = asyncio.ensure_future(client.send(BrokeredMessage("apples")))
        while not sending.done():
            await asyncio.sleep(0.125)
            if refused_sends(namespace) > len(attempts_s):
                attempts_s.append(round(loop.time() - begun_s, 3))
        assert isinstance(sending.exception(), ServerBusy)
        assert attempts_s == pytest.approx([0, 10, 20, 22.5, 23.75, 24.375], abs=0.13)


@in_virtual_time
async def test_the_timeout_of_a_single_call_overrides_the_operation_timeout() -> None:
    async with namespace_with_client(60) as (namespace, client):
        namespace.outage.busy("orders")
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        with pytest.raises(ServerBusy):
            await client.send(BrokeredMessage("apples"), timeout=2)
        assert 1.5 < loop.time() - begun_s <= 2


def test_the_pause_in_a_busy_error_is_used_and_otherwise_the_pause_of_the_policy() -> None:
    policy = RetryPolicy(busy_pause_s=7)
    assert Backoff(policy).next_pause_s(error_for_condition("com.microsoft:server-busy", AZURE), 60) == 4
    assert (
        Backoff(policy).next_pause_s(error_for_condition("com.microsoft:server-busy", "'orders' is too busy"), 60) == 7
    )
    assert Backoff(policy).next_pause_s(error_for_condition("com.microsoft:server-busy", AZURE), 3) == 1.5


def test_only_server_busy_is_retried_after_less_than_the_pause_of_the_policy() -> None:
    policy = RetryPolicy(max_retries=1_000, first_pause_s=5)
    assert Backoff(policy).next_pause_s(StoreUnavailable("x"), 3) is None
    pauses, left_s, retries = Backoff(policy), 3.0, 0
    while (pause_s := pauses.next_pause_s(ServerBusy("x"), left_s)) is not None:
        left_s, retries = left_s - pause_s, retries + 1
    assert retries == ATTEMPTS - 1
    assert Backoff(policy).next_pause_s(ServerBusy("x"), 0.0) is None
