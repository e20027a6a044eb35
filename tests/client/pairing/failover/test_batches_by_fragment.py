"""X07, Q22: `park_on_fragment_outage` parks only those messages of a batch whose fragment is down."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.client.pairing.failover.test_fragment_outages import DOWN, UP, partitioned, peeked, texts_of_parked
from tests.support.paired_application import Application, paired_application
from tests.support.partitioned_namespace import key_for_fragment
from twinbus.client import BrokeredMessage
from twinbus.client.events import SendFailed, Sent
from twinbus.client.pairing import EntityState, EventKind, MessageCannotBeParked, NotSent
from twinbus.client.pairing.backlog.rewriting import MAX_PROPERTIES_BYTES, properties_size
from twinbus.model.errors import EntityDisabled, PartlyStored
from twinbus.model.message import encode_batch
from twinbus.testing import InMemoryPair, in_virtual_time

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

LIMIT = 262_144
DUPLICATE_MARK = "x-ms-possible-duplicate"
FRAGMENTS, STORES = 16, 4
KEYS = [key_for_fragment(fragment) for fragment in range(FRAGMENTS)]


def batch(name: str = "", *, rounds: int = 4) -> list[BrokeredMessage]:
    """A batch with several messages for each fragment: `<name><fragment>.<round>`."""
    return [
        BrokeredMessage(f"{name}{fragment}.{number}", session_id=KEYS[fragment])
        for number in range(rounds)
        for fragment in range(FRAGMENTS)
    ]


def is_down(message: BrokeredMessage) -> bool:
    """Return whether the message's fragment is in the store that is down."""
    return KEYS.index(str(message.session_id)) % STORES == 1


def texts(messages: Sequence[BrokeredMessage], *, down: bool) -> list[str]:
    return [message.text for message in messages if is_down(message) is down]


def by_fragment(bodies: Sequence[str]) -> dict[str, list[str]]:
    """Message texts by fragment, in their order."""
    fragments: dict[str, list[str]] = {}
    for body in bodies:
        fragments.setdefault(body.partition(".")[0], []).append(body)
    return fragments


async def stored_texts_without(app: Application, uncertain: Sequence[str]) -> list[str]:
    """The message texts in the primary, without messages that its failed store may have."""
    messages = await app.queue_client().peek_batch(1_000)
    return [message.text for message in messages if message.text not in {"the last", *uncertain}]


async def marked_texts(app: Application) -> set[str]:
    """The texts of messages, parked or in the primary, that are marked as possible duplicates."""
    messages = [*await app.parked_messages(), *await app.queue_client().peek_batch(1_000)]
    return {message.text for message in messages if DUPLICATE_MARK in message.properties}


@pytest.mark.parametrize("is_known", [False, True])
@in_virtual_time
async def test_x07_q22_only_messages_whose_fragment_is_down_are_parked_and_in_order(*, is_known: bool) -> None:
    async with partitioned(failover_interval=60) as app:
        orders, sent = app.queue_client(), batch()
        if is_known:
            for fragment in range(1, FRAGMENTS, STORES):
                await orders.send(BrokeredMessage("before", session_id=KEYS[fragment]))
        await orders.send_batch(sent)
        parked = [text for text in await texts_of_parked(app) if text != "before"]
        assert parked == texts(sent, down=True)
        assert by_fragment(await peeked(app)) == by_fragment(texts(sent, down=False))
        assert len({event.backlog_queue for event in app.events_of(EventKind.PARKED)}) == 1
        assert await marked_texts(app) - {"before"} == set(), "the primary said that it had stored nothing"
        assert app.pairing.health_of("orders").state is EntityState.HEALTHY
        assert not app.events_of(EventKind.SUSPECTED, EventKind.FAILED_OVER)
        assert sorted(event.fragment or 0 for event in app.events_of(EventKind.FRAGMENT_DOWN)) == [1, 5, 9, 13]


@pytest.mark.parametrize("kind", ["fail_store", "hang_store"])
@in_virtual_time
async def test_x07_stored_messages_of_a_batch_are_not_sent_again_and_uncertain_ones_are_marked(
    kind: str,
) -> None:
    async with partitioned(None, failover_interval=60) as app:
        sent = batch()
        getattr(app.namespaces.primary.outage, kind)(1)
        await app.queue_client().send_batch(sent)
        assert await texts_of_parked(app) == texts(sent, down=True)
        assert by_fragment(await peeked(app)) == by_fragment(texts(sent, down=False)), "each message is stored once"
        assert await marked_texts(app) == set(texts(sent, down=True)), "that store may have written them"
        assert not app.events_of(EventKind.SUSPECTED, EventKind.FAILED_OVER)


def full_batch(keys: Sequence[str]) -> list[BrokeredMessage]:
    """A batch that an entity accepts, and that is too large with a mark in each message."""
    size = 1_000
    while True:
        messages = [BrokeredMessage(f"{number}." + "x" * size, session_id=key) for number, key in enumerate(keys)]
        if len(encode_batch([message.encode(0) for message in messages], messages[0])) > LIMIT - 2 * len(keys):
            return messages
        size += 1


@in_virtual_time
async def test_x07_q04_a_full_batch_is_sent_again_in_parts_without_messages_stored_of_a_part() -> None:
    async with partitioned(None, failover_interval=60) as app:
        orders, outage = app.queue_client(), app.namespaces.primary.outage
        await orders.send(BrokeredMessage("the last", session_id=UP))
        sent = full_batch([UP] * 60 + [DOWN, key_for_fragment(3)] * 30)
        outage.hang()
        sending = asyncio.ensure_future(orders.send_batch(sent))
        await asyncio.sleep(1)
        outage.fail_store(1)
        outage.cut()  # nothing arrived, but the client cannot know
        outage.slow(0)
        await sending
        down = [message.text for message in sent if message.session_id == DOWN]
        others = [message.text for message in sent if message.session_id != DOWN]
        assert await texts_of_parked(app) == down
        assert by_fragment(await stored_texts_without(app, down)) == by_fragment(others), "each message is stored once"
        assert await marked_texts(app) >= set(down)


@in_virtual_time
async def test_x07_messages_without_a_key_are_not_parked() -> None:
    async with partitioned() as app:
        orders = app.queue_client()
        keyless = [BrokeredMessage(f"none.{number}") for number in range(8)]
        keyed = [BrokeredMessage(f"1.{number}", session_id=DOWN) for number in range(8)]
        mixed = [message for pair in zip(keyless, keyed, strict=True) for message in pair]
        await orders.send_batch(mixed)
        await orders.send_batch(mixed)
        assert await texts_of_parked(app) == 2 * [message.text for message in keyed]
        assert sorted(await peeked(app)) == sorted(2 * [message.text for message in keyless])


@in_virtual_time
async def test_q18_x07_batches_and_single_sends_of_the_same_keys_keep_their_order() -> None:
    async with partitioned() as app:
        orders = app.queue_client()
        await asyncio.gather(
            orders.send(BrokeredMessage("1.a", session_id=DOWN)),
            orders.send_batch(
                [BrokeredMessage(f"{fragment}.b", session_id=key) for fragment, key in ((1, DOWN), (2, UP))]
            ),
            orders.send(BrokeredMessage("1.c", session_id=DOWN)),
            orders.send_batch(
                [BrokeredMessage(f"{fragment}.d", session_id=key) for fragment, key in ((2, UP), (1, DOWN))]
            ),
            orders.send(BrokeredMessage("2.e", session_id=UP)),
            orders.send(BrokeredMessage("1.e", session_id=DOWN)),
        )
        assert await texts_of_parked(app) == ["1.a", "1.b", "1.c", "1.d", "1.e"]
        assert sorted(await peeked(app)) == ["2.b", "2.d", "2.e"]
        await asyncio.gather(
            orders.send_batch(batch("f")),
            orders.send(BrokeredMessage("1.g", session_id=DOWN)),
            orders.send_batch(batch("h")),
        )
        of_fragment = [text for text in await texts_of_parked(app) if text.partition(".")[0] in ("f1", "1", "h1")]
        assert of_fragment[5:] == ["f1.0", "f1.1", "f1.2", "f1.3", "1.g", "h1.0", "h1.1", "h1.2", "h1.3"]


@in_virtual_time
async def test_q22_if_the_secondary_is_down_too_the_error_lists_the_messages_the_primary_stored() -> None:
    async with partitioned(operation_timeout=20) as app:
        sent = batch(rounds=1)
        app.namespaces.secondary.outage.stop()
        with pytest.raises(NotSent, match="12 of its messages are safe") as failed:
            await app.queue_client().send_batch(sent)
        assert [sent[index].text for index in failed.value.stored] == texts(sent, down=False)
        assert failed.value.safe == 1
        assert sorted(await peeked(app)) == sorted(texts(sent, down=False))


@in_virtual_time
async def test_x08_if_the_secondary_is_down_messages_whose_fragment_is_down_are_spooled(tmp_path: Path) -> None:
    async with partitioned(operation_timeout=20, spool_dir=tmp_path) as app:
        sent = batch()
        app.namespaces.secondary.outage.stop()
        await app.queue_client().send_batch(sent)
        assert app.pairing.spool_status is not None
        assert app.pairing.spool_status.count == len(texts(sent, down=True))
        app.namespaces.secondary.outage.restore()
        await asyncio.sleep(120)
        assert await texts_of_parked(app) == texts(sent, down=True)
        assert by_fragment(await peeked(app)) == by_fragment(texts(sent, down=False))


def with_largest_properties(session_id: str) -> BrokeredMessage:
    """A message with as many bytes of properties as a message can have."""
    size = 5_500
    while True:
        properties = {"a": "x" * 30_000, "b": "x" * 30_000, "c": "x" * size}
        message = BrokeredMessage("large", session_id=session_id, properties=properties)
        if properties_size(message.encode(0)) <= MAX_PROPERTIES_BYTES:
            return message
        size -= 1


@in_virtual_time
async def test_q08_q22_nothing_of_a_batch_is_sent_if_a_message_for_a_down_fragment_cannot_be_parked() -> None:
    async with partitioned() as app:
        large = with_largest_properties(DOWN)
        sender = app.primary.create_message_sender("orders")
        assert not sender.can_be_parked([BrokeredMessage("small", session_id=UP), large])
        with pytest.raises(MessageCannotBeParked):
            await app.queue_client().send_batch([BrokeredMessage("small", session_id=UP), large])
        assert (await app.parked_messages(), await peeked(app)) == ([], [])


@in_virtual_time
async def test_q22_if_the_primary_refuses_the_others_nothing_is_parked_and_the_error_is_the_primarys() -> None:
    async with partitioned() as app:
        orders = app.queue_client()
        await orders.send(BrokeredMessage("before", session_id=DOWN))
        app.namespaces.primary.broker.find_sendable("orders").set_status("SendDisabled")
        with pytest.raises(EntityDisabled):
            await orders.send_batch(batch())
        assert await texts_of_parked(app) == ["before"]


def texts_of(events: Sequence[Sent | SendFailed], kind: type[Sent | SendFailed]) -> list[str]:
    return [message.text for event in events if isinstance(event, kind) for message in event.messages]


@in_virtual_time
async def test_x09_if_a_batch_is_stored_in_part_only_the_other_messages_are_reported_as_failed() -> None:
    async with partitioned(None, park_on_fragment_outage=False, failover_interval=60) as app:
        events: list[Sent | SendFailed] = []
        sent = batch(rounds=1)
        app.primary.events.listen(events.append, {Sent, SendFailed})
        app.namespaces.primary.outage.fail_store(1)
        with pytest.raises(PartlyStored) as failed:
            await app.queue_client().send_batch(sent)
        assert [sent[index].text for index in failed.value.stored] == texts(sent, down=False)
        assert texts_of(events, SendFailed) == texts(sent, down=True)
        assert texts_of(events, Sent) == texts(sent, down=False)


@pytest.mark.parametrize("parks", [False, True])
@in_virtual_time
async def test_x08_if_the_primary_stores_a_spooled_batch_in_part_only_the_rest_is_sent_again(
    tmp_path: Path, *, parks: bool
) -> None:
    async with InMemoryPair(stores=STORES) as namespaces:
        await namespaces.primary.create_queue("orders", enable_partitioning=True)
        options = {"failover_interval": 0, "operation_timeout": 20, "park_on_fragment_outage": parks}
        async with paired_application(namespaces, spool_dir=tmp_path, ping_primary_interval=10, **options) as app:
            sent = batch()
            namespaces.primary.outage.stop()
            namespaces.secondary.outage.stop()
            await app.queue_client().send_batch(sent)
            namespaces.primary.outage.restore()
            namespaces.primary.outage.fail_store(1)
            await asyncio.sleep(120)
            assert by_fragment(await peeked(app)) == by_fragment(texts(sent, down=False)), "each message is stored once"
            assert app.pairing.spool_status is not None
            assert app.pairing.spool_status.count > 0
            namespaces.primary.outage.restore()
            await asyncio.sleep(300)
            arrived = await namespaces.primary.messages("orders")
            assert {message.text for message in arrived} == {message.text for message in sent}
            unmarked = [message.text for message in arrived if DUPLICATE_MARK not in message.properties]
            assert len(unmarked) == len(set(unmarked)), "every second copy is marked"
            assert app.pairing.spool_status.count == 0
