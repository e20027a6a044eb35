"""R010 to R027: which backlog queues exist, and how they are created."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.support.paired_application import in_memory_pair_application, paired_application
from twinbus.client import BrokeredMessage
from twinbus.client.management import NamespaceManager
from twinbus.client.pairing import (
    EventKind,
    NotSent,
    PairingFailed,
    PairingRefused,
    SendAvailabilityPairedNamespaceOptions,
)
from twinbus.model.description import FOREVER_MS
from twinbus.model.errors import Unauthorized
from twinbus.model.limits import NamespaceLimits
from twinbus.model.queue import QueueDescription
from twinbus.testing import InMemoryPair, in_virtual_time

if TYPE_CHECKING:
    from twinbus.client.pairing import Pairing


@in_virtual_time
async def test_r010_r021_pairing_creates_a_backlog_queue_for_each_index_below_the_count() -> None:
    async with in_memory_pair_application(backlog_queue_count=3) as app:
        paths = sorted([queue.path async for queue in app.manager.get_queues()])
        assert paths == [f"contoso/x-servicebus-transfer/{index}" for index in range(3)]


@in_virtual_time
async def test_r011_the_first_backlog_queue_has_the_documented_path() -> None:
    async with in_memory_pair_application(backlog_queue_count=1) as app:
        assert await app.manager.queue_exists("contoso/x-servicebus-transfer/0")


@in_virtual_time
async def test_r012_to_r019_a_backlog_queue_has_the_documented_description() -> None:
    async with in_memory_pair_application() as app:
        description = await app.manager.get_queue(app.backlog_path(0))
        assert description.max_size_mb == 5120
        assert description.max_delivery_count == 2_147_483_647
        assert description.default_time_to_live_ms == FOREVER_MS
        assert description.auto_delete_on_idle_ms == FOREVER_MS
        assert description.lock_duration_ms == 60_000
        assert description.dead_lettering_on_expiration
        assert description.enable_batched_operations
        assert description == QueueDescription(
            max_size_mb=5120, max_delivery_count=2_147_483_647, dead_lettering_on_expiration=True
        )


@in_virtual_time
async def test_r020_r026_an_existing_backlog_queue_is_not_changed() -> None:
    async with InMemoryPair() as namespaces:
        await namespaces.secondary.create_queue("contoso/x-servicebus-transfer/0", max_delivery_count=7)
        _, secondary = namespaces.factories()
        await secondary.create_queue_client("contoso/x-servicebus-transfer/0").send(BrokeredMessage("mine"))
        async with paired_application(namespaces) as app:
            assert (await app.manager.get_queue(app.backlog_path(0))).max_delivery_count == 7
            assert [message.text for message in await app.parked_messages()] == ["mine"]


@in_virtual_time
async def test_r022_r023_r024_extra_backlog_queues_stay_and_are_not_used() -> None:
    async with InMemoryPair() as namespaces:
        await namespaces.primary.create_queue("orders")
        await namespaces.secondary.create_queue("contoso/x-servicebus-transfer/7")
        async with paired_application(namespaces, backlog_queue_count=5, failover_interval=0) as app:
            namespaces.primary.outage.stop()
            for number in range(200):
                await app.queue_client().send(BrokeredMessage(str(number)))
            assert len(await app.parked_messages()) == 200
            assert await namespaces.secondary.messages("contoso/x-servicebus-transfer/7") == []
            assert app.pairing.rotation.extra_paths == ["contoso/x-servicebus-transfer/7"]


@in_virtual_time
async def test_r025_closing_does_not_delete_the_backlog_queues() -> None:
    async with in_memory_pair_application() as app:
        await app.pairing.close()
        assert await app.manager.queue_exists(app.backlog_path(2))


@in_virtual_time
async def test_q15_the_count_is_the_number_of_backlog_queues_that_exist_if_some_cannot_be_created() -> None:
    async with InMemoryPair(limits=NamespaceLimits(max_entities=3)) as namespaces:
        await namespaces.primary.create_queue("orders")
        await namespaces.secondary.create_queue("contoso/x-servicebus-transfer/4")
        async with paired_application(namespaces, backlog_queue_count=5, failover_interval=0) as app:
            assert app.pairing.backlog_queue_count == 3
            assert app.pairing.options.backlog_queue_count == 3
            used = sorted(queue.path for queue in app.pairing.rotation.queues)
            assert used == sorted([queue.path async for queue in app.manager.get_queues()])
            assert app.backlog_path(4) in used
            namespaces.primary.outage.stop()
            for number in range(60):
                await app.queue_client().send(BrokeredMessage(str(number)))
            assert sorted({event.backlog_queue for event in app.events_of(EventKind.PARKED)}, key=str) == used


@in_virtual_time
async def test_q15_pairing_without_any_backlog_queue_fails_and_can_be_repeated() -> None:
    async with InMemoryPair(limits=NamespaceLimits(max_entities=1)) as namespaces:
        await namespaces.secondary.create_queue("another")
        primary, secondary = namespaces.factories()
        string = namespaces.secondary.admin_connection_string
        async with NamespaceManager.from_connection_string(string, clock=namespaces.clock) as manager:
            options = SendAvailabilityPairedNamespaceOptions(
                secondary_factory=secondary, secondary_namespace_manager=manager, backlog_queue_count=3
            )
            with pytest.raises(PairingFailed, match="none of 3 backlog queues exists or could be created"):
                await primary.pair_namespace(options)
            assert primary.pairing is None
            await namespaces.secondary.entities.delete("another")
            pairing = await primary.pair_namespace(options)
            assert pairing.backlog_queue_count == 1


@in_virtual_time
async def test_q15_pairing_with_an_unavailable_secondary_fails_and_can_be_repeated() -> None:
    async with InMemoryPair() as namespaces:
        namespaces.secondary.outage.stop()
        with pytest.raises(PairingFailed, match="the backlog queues of the secondary cannot be listed"):
            async with paired_application(namespaces):
                pass
        namespaces.secondary.outage.restore()
        async with paired_application(namespaces) as app:
            assert app.pairing.backlog_queue_count == 3


class CountingManager(NamespaceManager):
    """A manager that counts its attempts to create each queue."""

    creates: Counter[str]

    async def create_queue(self, path: str, description: QueueDescription | None = None) -> QueueDescription:
        self.creates[path[-1]] += 1
        return await super().create_queue(path, description)


def counting_manager(namespaces: InMemoryPair, key: str = "") -> CountingManager:
    """A counting manager of the secondary; if `key` is given, with a key that the secondary refuses."""
    string = namespaces.secondary.admin_connection_string.replace("SharedAccessKey=", f"SharedAccessKey={key}")
    manager = CountingManager.from_connection_string(string, clock=namespaces.clock)
    manager.creates = Counter()
    return manager


async def pair_by(namespaces: InMemoryPair, manager: NamespaceManager, count: int) -> Pairing:
    primary, secondary = namespaces.factories()
    options = SendAvailabilityPairedNamespaceOptions(
        secondary_factory=secondary, secondary_namespace_manager=manager, backlog_queue_count=count
    )
    return await primary.pair_namespace(options)


@in_virtual_time
async def test_r020_q16_creating_a_missing_queue_is_tried_three_times_and_an_existing_one_never() -> None:
    async with (
        InMemoryPair(limits=NamespaceLimits(max_entities=1)) as namespaces,
        counting_manager(namespaces) as manager,
    ):
        await namespaces.secondary.create_queue("contoso/x-servicebus-transfer/0")
        pairing = await pair_by(namespaces, manager, 2)
        assert manager.creates == {"1": 3}
        assert pairing.backlog_queue_count == 1


@in_virtual_time
async def test_q16_the_third_attempt_can_succeed() -> None:
    async with (
        InMemoryPair(limits=NamespaceLimits(max_entities=1)) as namespaces,
        counting_manager(namespaces) as manager,
    ):
        await namespaces.secondary.create_queue("another")
        pairing = asyncio.ensure_future(pair_by(namespaces, manager, 1))
        await asyncio.sleep(0.7)  # two attempts have failed
        assert manager.creates == {"0": 2}
        await namespaces.secondary.entities.delete("another")
        assert (await pairing).backlog_queue_count == 1
        assert manager.creates == {"0": 3}


@pytest.mark.parametrize("may_list", [False, True])
@in_virtual_time
async def test_q16_an_authorisation_error_aborts_at_once(monkeypatch: pytest.MonkeyPatch, *, may_list: bool) -> None:
    async with (
        InMemoryPair() as namespaces,
        counting_manager(namespaces) as admin,
        counting_manager(namespaces, "no") as unauthorised,
    ):
        if may_list:  # the key is changed after the queues were listed
            monkeypatch.setattr(unauthorised, "get_queues", admin.get_queues)
        before_ms = namespaces.clock.wall_ms()
        with pytest.raises(Unauthorized):
            await pair_by(namespaces, unauthorised, 2)
        assert namespaces.clock.wall_ms() - before_ms < 400
        assert unauthorised.creates == ({"0": 1, "1": 1} if may_list else {})


@in_virtual_time
async def test_q16_two_applications_that_create_the_same_queues_at_once_both_succeed() -> None:
    async with (
        InMemoryPair() as namespaces,
        counting_manager(namespaces) as first,
        counting_manager(namespaces) as second,
    ):
        pairings = await asyncio.gather(pair_by(namespaces, first, 3), pair_by(namespaces, second, 3))
        assert first.creates == second.creates == {"0": 1, "1": 1, "2": 1}, (
            "both tried to create them: there was a race"
        )
        assert [pairing.backlog_queue_count for pairing in pairings] == [3, 3]
        assert len([queue async for queue in first.get_queues()]) == 3


@in_virtual_time
async def test_q23_the_namespace_name_is_required_if_the_host_does_not_contain_it() -> None:
    async with InMemoryPair() as namespaces:
        primary, secondary = namespaces.factories()
        object.__setattr__(primary.where, "host", "127.0.0.1")
        string = namespaces.secondary.admin_connection_string
        async with NamespaceManager.from_connection_string(string, clock=namespaces.clock) as manager:
            options = SendAvailabilityPairedNamespaceOptions(
                secondary_factory=secondary, secondary_namespace_manager=manager, backlog_queue_count=1
            )
            with pytest.raises(PairingRefused, match="set primary_namespace_name"):
                await primary.pair_namespace(options)
            options.primary_namespace_name = "fabrikam"
            await primary.pair_namespace(options)
            assert await manager.queue_exists("fabrikam/x-servicebus-transfer/0")


@in_virtual_time
async def test_backlog_queues_that_are_deleted_while_paired_are_created_again() -> None:
    async with in_memory_pair_application(failover_interval=0, backlog_queue_count=2) as app:
        app.namespaces.primary.outage.stop()
        for index in range(2):
            await app.namespaces.secondary.entities.delete(app.backlog_path(index))
        with pytest.raises(NotSent):
            await app.queue_client().send(BrokeredMessage("apples"))
        await asyncio.sleep(1)
        await app.queue_client().send(BrokeredMessage("pears"))
        assert [message.text for message in await app.parked_messages()] == ["pears"]
        assert len(app.events_of(EventKind.QUEUE_BACK)) == 2
