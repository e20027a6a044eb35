"""What a factory says of itself: open, closed or faulted, connected or not, to whoever watches it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.client.bus import cut_connection, wait_until
from twinbus.client import BrokeredMessage, FactorySettings, FactoryState, RetryPolicy
from twinbus.client.errors import FactoryFaulted

if TYPE_CHECKING:
    from tests.client.bus import Bus
    from twinbus.client import MessagingFactory


async def test_watchers_hear_of_every_change(bus: Bus) -> None:
    factory = bus.factory()
    seen: list[tuple[str, bool]] = []
    factory.watch(lambda changed: seen.append((changed.state.value, changed.is_connected)))
    queue = factory.create_queue_client(bus.server.create_queue())
    assert seen == []
    await queue.send(BrokeredMessage("x"))
    await cut_connection(factory)
    await queue.peek()
    await factory.close()
    assert seen[:3] == [("open", True), ("open", False), ("open", True)]
    assert seen[-1] == ("closed", False)
    assert all(state == "closed" for state, _ in seen[3:])


async def test_a_watcher_that_fails_harms_neither_the_factory_nor_the_others(bus: Bus) -> None:
    factory = bus.factory()
    seen: list[MessagingFactory] = []

    def fail(_: MessagingFactory) -> None:
        raise ZeroDivisionError

    factory.watch(fail)
    factory.watch(seen.append)
    await factory.create_queue_client(bus.server.create_queue()).send(BrokeredMessage("x"))
    assert seen == [factory]


async def test_a_faulted_factory_says_why_to_whoever_uses_it(bus: Bus) -> None:
    factory = bus.factory(retry_policy=RetryPolicy(max_retries=5))
    queue = factory.create_queue_client(bus.server.create_queue())
    waiting = asyncio.ensure_future(queue.receive(60))
    await wait_until(lambda: factory.is_connected)
    fault = LookupError("the key was withdrawn")
    factory.abort(fault)
    factory.abort(ValueError("the first reason counts"))
    assert (factory.state, factory.fault, factory.ended.is_set()) == (FactoryState.FAULTED, fault, True)
    for use in (waiting, queue.send(BrokeredMessage("x")), queue.peek()):
        with pytest.raises(FactoryFaulted, match="the key was withdrawn") as raised:
            await use
        assert raised.value.__cause__ is fault
    with pytest.raises(FactoryFaulted):
        factory.create_message_sender("q")
    await factory.close()
    assert factory.state is FactoryState.FAULTED


async def test_one_connection_is_made_for_all_who_want_it_at_once(bus: Bus) -> None:
    factory = bus.factory()
    seen: list[bool] = []
    factory.watch(lambda changed: seen.append(changed.is_connected))
    queues = [factory.create_queue_client(bus.server.create_queue()) for _ in range(3)]
    await asyncio.gather(*[queue.send(BrokeredMessage("x")) for queue in queues], *[queue.peek() for queue in queues])
    assert seen == [True]


@pytest.mark.parametrize("wrong", [{"operation_timeout_s": 0}, {"idle_timeout_s": -1}])
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"timeout is"):
        FactorySettings(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [{"max_retries": -1}, {"first_pause_s": -1}, {"factor": 0.5}])
def test_a_retry_policy_that_makes_no_sense_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="cannot be"):
        RetryPolicy(**wrong)  # type: ignore[arg-type]
