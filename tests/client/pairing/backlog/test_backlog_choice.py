"""R039, R041 to R043, R046, R047 and Q11: which backlog queue a client chooses, and which one after a failure."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from tests.support.paired_application import Application, in_memory_pair_application, paired_application
from twinbus.client import BrokeredMessage, QueueClient
from twinbus.client.pairing import AlarmKind, EventKind, NotSent
from twinbus.testing import InMemoryPair, in_virtual_time

QUEUES = 10
CLIENTS = 40


def set_status(app: Application, path: str, status: str) -> None:
    """Let a backlog queue refuse messages (SendDisabled) or accept them (Active)."""
    app.namespaces.secondary.broker.find_sendable(path).set_status(status)


async def park(app: Application, client: QueueClient, text: str = "x") -> str:
    """Send a message, and return the backlog queue that stored it."""
    await client.send(BrokeredMessage(text))
    path = app.events_of(EventKind.PARKED)[-1].backlog_queue
    assert path is not None
    return path


@in_virtual_time
async def test_r039_r046_r047_q11_each_client_chooses_a_backlog_queue_at_random_and_keeps_it() -> None:
    async with InMemoryPair() as namespaces:
        await namespaces.primary.create_queue("orders")
        namespaces.primary.outage.stop()
        choices: list[list[str]] = []
        for _ in range(3):  # independent applications
            async with paired_application(namespaces, failover_interval=0, backlog_queue_count=QUEUES) as app:
                clients = [app.queue_client() for _ in range(CLIENTS)]
                first = [await park(app, client) for client in clients]
                second = [await park(app, client) for client in clients]
                assert second == first, "each client keeps its backlog queue"
                choices.append(first)
    assert len({tuple(chosen) for chosen in choices}) == 3, "no two applications choose in the same order"
    for chosen in choices:
        rounds = [chosen[start : start + QUEUES] for start in range(0, CLIENTS, QUEUES)]
        # With round-robin, no round would have a queue twice; with random choices the probability of that is 10^-13.
        assert any(len(set(chosen_in_round)) < QUEUES for chosen_in_round in rounds)
    spread = Counter(path for chosen in choices for path in chosen)
    assert len(spread) >= QUEUES - 1
    assert max(spread.values()) < 3 * CLIENTS * 0.4


@in_virtual_time
async def test_q11_the_choice_is_made_at_the_first_parked_send() -> None:
    async with in_memory_pair_application(failover_interval=0, backlog_queue_count=2, backlog_cool_down=30) as app:
        app.namespaces.primary.outage.stop()
        broken = await park(app, app.queue_client())
        set_status(app, broken, "SendDisabled")
        while not app.events_of(EventKind.QUEUE_OUT):
            await park(app, app.queue_client())
        clients = [app.queue_client() for _ in range(40)]  # created while one queue is left out
        set_status(app, broken, "Active")
        await asyncio.sleep(31)
        assert {await park(app, client) for client in clients} == {app.backlog_path(0), app.backlog_path(1)}


@in_virtual_time
async def test_r041_r042_r043_q11_all_clients_leave_out_a_failed_queue_during_its_cool_down() -> None:
    async with in_memory_pair_application(failover_interval=0, backlog_queue_count=2, backlog_cool_down=30) as app:
        app.namespaces.primary.outage.stop()
        first, others = app.queue_client(), [app.queue_client() for _ in range(20)]
        broken = await park(app, first)
        for client in others:
            await park(app, client)  # some of them have chosen the same queue
        set_status(app, broken, "SendDisabled")
        (kept,) = {app.backlog_path(0), app.backlog_path(1)} - {broken}
        assert await park(app, first) == kept
        assert [event.backlog_queue for event in app.events_of(EventKind.QUEUE_OUT)] == [broken]
        set_status(app, broken, "Active")  # which no client knows yet
        await asyncio.sleep(29)
        assert {await park(app, client) for client in (*others, *[app.queue_client() for _ in range(20)])} == {kept}
        assert not app.events_of(EventKind.QUEUE_BACK)
        await asyncio.sleep(1.1)
        assert await park(app, first) == kept, "a client keeps its queue until that fails"
        assert {await park(app, app.queue_client()) for _ in range(30)} == {kept, broken}
        assert [event.backlog_queue for event in app.events_of(EventKind.QUEUE_BACK)] == [broken]


@in_virtual_time
async def test_q11_if_all_queues_have_failed_all_are_tried_and_the_one_left_out_longest_first() -> None:
    async with in_memory_pair_application(failover_interval=0, backlog_queue_count=3, backlog_cool_down=3600) as app:
        app.namespaces.primary.outage.stop()
        client, order = app.queue_client(), []
        for _ in range(3):
            with_messages = await park(app, client)
            set_status(app, with_messages, "SendDisabled")
            order.append(with_messages)
            await asyncio.sleep(5)
            if len(order) < 3:
                await park(app, client)
        with pytest.raises(NotSent) as raised:
            await client.send(BrokeredMessage("not sent"))
        assert list(raised.value.backlog) == [order[2], order[0], order[1]], (
            "the client's own queue, then the one left out longest"
        )
        await asyncio.sleep(5)
        set_status(app, order[1], "Active")
        assert await park(app, app.queue_client(), "sent") == order[1], "the queue that failed last is tried last"


@in_virtual_time
async def test_q11_a_full_queue_counts_as_failed_and_an_alarm_is_raised_before_it_is_full() -> None:
    async with InMemoryPair() as namespaces:
        await namespaces.primary.create_queue("orders")
        small = "contoso/x-servicebus-transfer/0"
        await namespaces.secondary.create_queue(small)
        object.__setattr__(namespaces.secondary.broker.find_sendable(small).description, "max_size_mb", 1)
        async with paired_application(namespaces, failover_interval=0, backlog_queue_count=1, alarm_after=60) as app:
            namespaces.primary.outage.stop()
            client = app.queue_client()
            for _ in range(3):
                await client.send(BrokeredMessage(b"x" * 200_000))
            await asyncio.sleep(21)
            assert (await app.pairing.status()).alarms == ()
            await client.send(BrokeredMessage(b"x" * 250_000))
            await asyncio.sleep(21)
            (alarm,) = (await app.pairing.status()).alarms
            assert (alarm.kind, alarm.backlog_queue) == (AlarmKind.NEARLY_FULL, small)
            assert "holds 1 MB of 1" in alarm.reason
            await client.send(BrokeredMessage("it is not full"))
            assert not app.events_of(EventKind.QUEUE_OUT)
            with pytest.raises(NotSent, match="maximum entity size"):
                await client.send(BrokeredMessage(b"x" * 240_000))
            assert [event.backlog_queue for event in app.events_of(EventKind.QUEUE_OUT)] == [small]
