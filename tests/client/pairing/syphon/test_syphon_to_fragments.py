"""The syphon moves messages to partitioned entities; fragments that are down or full do not hold up others."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.support.paired_application import Application, paired_application
from tests.support.partitioned_namespace import FRAGMENTS, fragment_of_message, key_for_fragment
from twinbus.client import BrokeredMessage
from twinbus.client.pairing import EventKind
from twinbus.testing import InMemoryPair, in_virtual_time, run

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from twinbus.testing import InMemoryNamespace

SYPHON: Final[dict[str, Any]] = {"failover_interval": 0, "enable_syphon": True, "backlog_queue_count": 1}
SESSIONS: Final = [key_for_fragment(fragment) for fragment in range(FRAGMENTS)]
OF_STORE_1: Final = {SESSIONS[number] for number in (1, 5, 9, 13)}


async def park(app: Application, messages: Iterable[BrokeredMessage]) -> None:
    """Send while the whole primary is down."""
    app.namespaces.primary.outage.stop()
    client = app.queue_client()
    for message in messages:
        await client.send(message)


def rounds(count: int, keys: Sequence[str] = SESSIONS) -> list[BrokeredMessage]:
    """Return `count` messages of each session, in turn."""
    return [BrokeredMessage(f"{number}", session_id=key) for number in range(count) for key in keys]


async def arrived(primary: InMemoryNamespace) -> dict[str, list[int]]:
    """The messages of each session in order, from the fragments that respond."""
    by_session: dict[str, list[int]] = {}
    for message in await primary.factory().create_queue_client("orders").peek_batch(10_000):
        by_session.setdefault(str(message.session_id), []).append(int(message.text))
    return by_session


@in_virtual_time
async def test_q17_q18_parked_messages_reach_their_fragments_in_order() -> None:
    async with InMemoryPair(stores=4) as namespaces:
        await namespaces.primary.create_queue("orders", enable_partitioning=True, requires_session=True)
        async with paired_application(namespaces, **SYPHON) as app:
            await park(app, rounds(20))
            namespaces.primary.outage.restore()
            await asyncio.sleep(60)
            stored = await namespaces.primary.messages("orders")
            assert {SESSIONS.index(str(message.session_id)) - fragment_of_message(message) for message in stored} == {0}
            assert await arrived(namespaces.primary) == {key: list(range(20)) for key in SESSIONS}
            assert await app.parked_messages() == []


@in_virtual_time
@pytest.mark.parametrize("kind", ["fails", "hangs"])
async def test_q18_q19_only_messages_whose_fragment_is_down_wait(kind: str) -> None:
    async with InMemoryPair(stores=4) as namespaces:
        await namespaces.primary.create_queue("orders", enable_partitioning=True, requires_session=True)
        async with paired_application(namespaces, **SYPHON) as app:
            outage = namespaces.primary.outage
            await park(app, rounds(20))
            outage.restore()
            (outage.fail_store if kind == "fails" else outage.hang_store)(1)
            await asyncio.sleep(45)
            moved = await arrived(namespaces.primary)
            assert moved == {key: list(range(20)) for key in SESSIONS if key not in OF_STORE_1}, "and no message twice"
            remaining = await app.parked_messages()
            assert {message.properties["x-ms-sessionid"] for message in remaining} == OF_STORE_1
            assert {message.state for message in remaining} == {"deferred"}
            outage.restore()
            await asyncio.sleep(180)
            assert await app.parked_messages() == []
            for key, numbers in (await arrived(namespaces.primary)).items():
                distinct = list(dict.fromkeys(numbers))
                assert distinct == list(range(20)), f"{key}: {numbers}"
                assert len(numbers) == 20 or key in OF_STORE_1, (
                    "messages in flight when the store failed may be stored twice"
                )


@pytest.mark.parametrize("seed", range(4))
def test_q18_sessions_keep_their_order_while_fragments_fail_and_recover(seed: int) -> None:
    async def fail_and_restore_stores() -> None:
        rng = random.Random(seed)
        async with InMemoryPair(stores=4, store_timeout_s=rng.choice([0.2, 2.0])) as namespaces:
            await namespaces.primary.create_queue("orders", enable_partitioning=True, requires_session=True)
            async with paired_application(namespaces, **SYPHON) as app:
                await park(app, rounds(150, [*SESSIONS[:4], *(key_for_fragment(1, number) for number in range(1, 4))]))
                outage = namespaces.primary.outage
                outage.restore()
                outage.slow(0.05)
                for _ in range(20):
                    rng.choice([outage.fail_store, outage.hang_store])(rng.choice([1, 1, 2]))
                    await asyncio.sleep(rng.uniform(0.05, 0.8))
                    outage.restore()
                    outage.slow(0.05)
                    await asyncio.sleep(rng.uniform(0.05, 0.8))
                outage.restore()
                await asyncio.sleep(400)
                assert await app.parked_messages() == []
                by_session: dict[str, list[int]] = {}
                for message in await namespaces.primary.messages("orders"):
                    by_session.setdefault(str(message.session_id), []).append(int(message.text))
                for key, numbers in by_session.items():
                    assert list(dict.fromkeys(numbers)) == list(range(150)), f"{key}: {numbers}"

    run(fail_and_restore_stores())


@in_virtual_time
async def test_q19_later_messages_whose_fragment_is_down_are_deferred_behind_earlier_ones() -> None:
    async with InMemoryPair(stores=4) as namespaces:
        await namespaces.primary.create_queue("orders", enable_partitioning=True, requires_session=True)
        async with paired_application(namespaces, park_on_fragment_outage=True, **SYPHON) as app:
            outage, client = namespaces.primary.outage, app.queue_client()
            await client.send(BrokeredMessage("-1", session_id=SESSIONS[0]))
            outage.fail_store(1)
            for number in range(40):
                for key in SESSIONS[:6]:
                    await client.send(BrokeredMessage(f"{number}", session_id=key))
                await asyncio.sleep(1)
            assert await arrived(namespaces.primary) == {
                SESSIONS[0]: list(range(-1, 40)),
                **{SESSIONS[number]: list(range(40)) for number in (2, 3, 4)},
            }
            assert {message.state for message in await app.parked_messages()} == {"deferred"}
            assert len(await app.parked_messages()) == 80
            outage.restore()
            await asyncio.sleep(180)
            assert await app.parked_messages() == []
            by_session = await arrived(namespaces.primary)
            assert [list(dict.fromkeys(by_session[SESSIONS[number]])) for number in (1, 5)] == [list(range(40))] * 2


@in_virtual_time
async def test_q19_messages_deferred_by_an_earlier_pump_hold_up_no_other_fragment() -> None:
    async with InMemoryPair(stores=4) as namespaces:
        await namespaces.primary.create_queue("orders", enable_partitioning=True, requires_session=True)
        async with paired_application(namespaces, **SYPHON) as app:
            await park(app, rounds(10))
            namespaces.primary.outage.restore()
            namespaces.primary.outage.fail_store(1)
            await asyncio.sleep(20)
            assert len(await app.parked_messages()) == 40
        async with paired_application(namespaces, **SYPHON) as app:
            others = [key for key in SESSIONS if key not in OF_STORE_1]
            for number in range(10, 20):
                for key in others:
                    await app.pairing.secondary.create_message_sender(app.backlog_path(0)).deliver(
                        app.queue_client().sender.park(  # type: ignore[attr-defined]
                            BrokeredMessage(f"{number}", session_id=key).encode(0), 0, is_possible_duplicate=False
                        )
                    )
            await asyncio.sleep(20)
            assert await arrived(namespaces.primary) == {key: list(range(20)) for key in others}
            namespaces.primary.outage.restore()
            await asyncio.sleep(120)
            assert await app.parked_messages() == []


@in_virtual_time
async def test_q19_a_full_fragment_holds_up_no_other_fragment() -> None:
    async with InMemoryPair(stores=4) as namespaces:
        await namespaces.primary.create_queue("orders", enable_partitioning=True)
        async with paired_application(namespaces, **SYPHON) as app:
            await park(app, rounds(10))
            namespaces.primary.outage.restore()
            full_table = namespaces.primary.broker.find_sendable("orders").parts[6].main.local.message_table
            full_table.active_bytes += 2**30
            await asyncio.sleep(30)
            assert await arrived(namespaces.primary) == {
                key: list(range(10)) for number, key in enumerate(SESSIONS) if number != 6
            }
            full_table.active_bytes -= 2**30
            await asyncio.sleep(120)
            assert (await arrived(namespaces.primary))[SESSIONS[6]] == list(range(10))


@in_virtual_time
@pytest.mark.parametrize("detects_duplicates", [True, False])
async def test_q19_messages_with_a_partition_key_or_a_message_id_are_not_held_up_either(
    *, detects_duplicates: bool
) -> None:
    async with InMemoryPair(stores=4) as namespaces:
        await namespaces.primary.create_queue(
            "orders", enable_partitioning=True, requires_duplicate_detection=detects_duplicates
        )
        async with paired_application(namespaces, **SYPHON) as app:
            keyed = [BrokeredMessage(f"{number}", partition_key=key_for_fragment(number % 16)) for number in range(64)]
            others = [
                BrokeredMessage(f"{number}", message_id=key_for_fragment(number % 16, number))
                for number in range(64, 128)
            ]
            await park(app, [message for pair in zip(keyed, others, strict=True) for message in pair])
            namespaces.primary.outage.restore()
            namespaces.primary.outage.fail_store(1)
            await asyncio.sleep(60)
            moved = {number for numbers in (await arrived(namespaces.primary)).values() for number in numbers}
            assert {number for number in range(64) if number % 4 != 1} <= moved
            assert not {number for number in range(64) if number % 4 == 1} & moved
            assert {number for number in range(64, 128) if number % 4 != 1 or not detects_duplicates} <= moved
            namespaces.primary.outage.restore()
            await asyncio.sleep(120)
            texts = [int(message.text) for message in await namespaces.primary.messages("orders")]
            assert set(texts) == set(range(128))
            assert not detects_duplicates or len(texts) == 128
            assert await app.parked_messages() == []


@in_virtual_time
async def test_messages_of_a_batch_that_were_stored_are_not_sent_again() -> None:
    async with InMemoryPair(stores=4, store_timeout_s=5.0) as namespaces:
        await namespaces.primary.create_queue("orders", enable_partitioning=True)
        async with paired_application(namespaces, **SYPHON) as app:
            await park(app, rounds(5))
            namespaces.primary.outage.restore()
            namespaces.primary.outage.hang_store(1)
            await asyncio.sleep(60)
            moved = [event.message_id for event in app.events_of(EventKind.MOVED)]
            assert len(moved) == len(set(moved)) == 60
            assert await arrived(namespaces.primary) == {
                key: list(range(5)) for key in SESSIONS if key not in OF_STORE_1
            }
