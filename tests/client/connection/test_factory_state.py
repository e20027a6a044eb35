"""State of a factory (open, closed or faulted; connected or not) and the callbacks that watch it."""

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


async def test_watchers_are_called_for_every_change_of_state(bus: Bus) -> None:
    factory = bus.factory()
    states: list[tuple[str, bool]] = []
    factory.watch(lambda changed: states.append((changed.state.value, changed.is_connected)))
    queue = factory.create_queue_client(bus.server.create_queue())
    assert states == []
    await queue.send(BrokeredMessage("x"))
    await cut_connection(factory)
    await queue.peek()
    await factory.close()
    assert states[:3] == [("open", True), ("open", False), ("open", True)]
    assert states[-1] == ("closed", False)
    assert all(state == "closed" for state, _ in states[3:])


async def test_a_failing_watcher_affects_neither_the_factory_nor_other_watchers(bus: Bus) -> None:
    factory = bus.factory()
    calls: list[MessagingFactory] = []

    def fail(_: MessagingFactory) -> None:
        raise ZeroDivisionError

    factory.watch(fail)
    factory.watch(calls.append)
    await factory.create_queue_client(bus.server.create_queue()).send(BrokeredMessage("x"))
    assert calls == [factory]


async def test_operations_of_a_faulted_factory_raise_its_fault(bus: Bus) -> None:
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


async def test_concurrent_operations_share_one_connection(bus: Bus) -> None:
    factory = bus.factory()
    changes: list[bool] = []
    factory.watch(lambda changed: changes.append(changed.is_connected))
    queues = [factory.create_queue_client(bus.server.create_queue()) for _ in range(3)]
    await asyncio.gather(*[queue.send(BrokeredMessage("x")) for queue in queues], *[queue.peek() for queue in queues])
    assert changes == [True]


@pytest.mark.parametrize("wrong", [{"operation_timeout_s": 0}, {"idle_timeout_s": -1}])
def test_invalid_settings_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"timeout is"):
        FactorySettings(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [{"max_retries": -1}, {"first_pause_s": -1}, {"factor": 0.5}])
def test_an_invalid_retry_policy_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="no value may be negative"):
        RetryPolicy(**wrong)  # type: ignore[arg-type]
