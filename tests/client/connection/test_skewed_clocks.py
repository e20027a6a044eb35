"""Lock renewal on a machine whose clock differs from the namespace's: in time, and not too often."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from twinbus.client import BrokeredMessage
from twinbus.client.receiver import MessageReceiver
from twinbus.testing import InMemoryNamespace, in_virtual_time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinbus.client.clock import Clock


class SkewedClock:
    """Clock that is ahead of another clock, or behind it."""

    def __init__(self, clock: Clock, skew_ms: int) -> None:
        self._clock = clock
        self._skew_ms = skew_ms

    def wall_ms(self) -> int:
        return self._clock.wall_ms() + self._skew_ms


@pytest.mark.parametrize("skew_s", [0, 30, 120, 3_600, -30, -120, -1_800])
@in_virtual_time
async def test_message_locks_are_renewed_in_time_with_a_skewed_clock(
    skew_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    renewals, renew = 0, MessageReceiver.renew_locks

    async def counted_renew_locks(receiver: MessageReceiver, messages: Sequence[BrokeredMessage]) -> object:
        nonlocal renewals
        renewals += 1
        return await renew(receiver, messages)

    monkeypatch.setattr(MessageReceiver, "renew_locks", counted_renew_locks)
    async with InMemoryNamespace() as namespace:
        await namespace.create_queue("orders")
        factory = namespace.factory(clock=SkewedClock(namespace.clock, skew_s * 1_000))
        await factory.create_queue_client("orders").send(BrokeredMessage("apples"))
        receiver = factory.create_message_receiver("orders", auto_renew=600)
        message = await receiver.receive(5)
        assert message is not None
        await asyncio.sleep(300)
        await receiver.complete(message)
        assert 5 <= renewals <= 160


@pytest.mark.parametrize("skew_s", [0, 3_600, -1_800])
@in_virtual_time
async def test_session_locks_are_renewed_in_time_with_a_skewed_clock(skew_s: int) -> None:
    async with InMemoryNamespace() as namespace:
        await namespace.create_queue("baskets", requires_session=True)
        factory = namespace.factory(clock=SkewedClock(namespace.clock, skew_s * 1_000))
        baskets = factory.create_queue_client("baskets")
        await baskets.send(BrokeredMessage("apples", session_id="7"))
        session = await baskets.accept_session("7", auto_renew=600)
        await asyncio.sleep(300)
        message = await session.receive(5)
        assert message is not None
        await session.complete(message)
