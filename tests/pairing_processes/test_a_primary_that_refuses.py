"""The primary is there and takes nothing, or not all: an untrusted certificate, a full disk, a busy server."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.pairing_processes.namespaces import (
    OPERATION_S,
    QUEUE,
    application,
    connection_string,
    make_queue,
    manager_of,
    received_texts,
    servers,
)
from tests.partitioned.bus import key_of
from tests.relay import Relay
from tests.served import AMQPS_PORT, started
from tests.served_here import serving_here
from twinbus.broker.ports.outage import Outage
from twinbus.client import BrokeredMessage, MessagingFactory
from twinbus.client.pairing import EntityState, EventKind
from twinbus.client.retry import RetryPolicy
from twinbus.model.errors import ServerBusy
from twinbus.model.outage import OutageKind
from twinbus.model.queue import QueueDescription
from twinbus.server import rocks_disks
from twinbus.server.disk import low_space

if TYPE_CHECKING:
    from pathlib import Path

    from tests.served import Served


def factory_with_tls(primary: Served, *, ca_file: str, port: int = AMQPS_PORT) -> MessagingFactory:
    return MessagingFactory.from_connection_string(
        connection_string(primary, port=port, tls=True), operation_timeout=OPERATION_S, ca_file=ca_file
    )


async def test_a_certificate_that_nobody_vouches_for_is_an_outage_and_says_so(tmp_path: Path) -> None:
    async with servers(tmp_path) as (primary, secondary):
        factory = factory_with_tls(primary, ca_file=secondary.ca_file)
        async with application(primary, secondary, factory=factory) as app:
            await app.send("apples")
            assert app.is_in(EntityState.FAILED_OVER)
            assert "certificate verify failed" in app.why
            assert await app.parked_texts() == ["apples"]


async def test_a_connection_reset_in_the_handshake_of_tls_is_an_outage(tmp_path: Path) -> None:
    async with servers(tmp_path) as (primary, secondary), Relay(primary.host, AMQPS_PORT) as relay:
        factory = factory_with_tls(primary, ca_file=primary.ca_file, port=relay.port)
        relay.reset_first_bytes()
        async with application(primary, secondary, factory=factory, enable_syphon=True) as app:
            assert await app.seconds_to_send("apples") < 1
            assert app.is_in(EntityState.FAILED_OVER)
            assert "cannot be reached" in app.why
            await relay.mend()
            await app.until_told(EventKind.RESTORED)
            await app.until_told(EventKind.MOVED)
            await app.send("pears")
        assert await received_texts(primary, 2) == ["apples", "pears"]


async def test_a_full_disk_is_an_outage_until_pings_find_that_it_is_not_full_any_more(tmp_path: Path) -> None:
    async with servers(tmp_path, primary_options=["--min-free=1000000GiB"]) as (primary, secondary):
        async with application(primary, secondary, enable_syphon=True) as app:
            await app.send("apples")
            assert app.is_in(EntityState.FAILED_OVER)
            assert "its disk is full" in app.why
            await app.until_told(EventKind.PINGED, 2)
            assert app.is_in(EntityState.FAILED_OVER), "a ping needs the disk, too"
            assert not app.told(EventKind.MOVED)
            primary.kill()
            primary.options = ["contoso"]
            await asyncio.to_thread(primary.start)
            await app.until_told(EventKind.RESTORED)
            await app.until_told(EventKind.MOVED)
        assert await received_texts(primary, 1) == ["apples"]


async def test_a_busy_server_is_no_outage_and_is_asked_again(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "other").mkdir()
    with serving_here(tmp_path / "one") as primary, started(tmp_path / "other", name="contoso-backup") as secondary:
        await make_queue(primary, QUEUE)
        factory = MessagingFactory.from_connection_string(
            connection_string(primary), operation_timeout=OPERATION_S, retry_policy=RetryPolicy(busy_pause_s=0.2)
        )
        async with application(primary, secondary, factory=factory) as app:
            entity = primary.namespace.find_sendable(QUEUE)
            busy = Outage(QUEUE, OutageKind.BUSY, since_ms=0, until_ms=0)
            entity.set_outage(busy)
            sending = asyncio.ensure_future(app.send("apples"))
            await asyncio.sleep(0.5)
            assert not sending.done()
            entity.set_outage(None)
            await sending
            assert await received_texts(primary, 1) == ["apples"]
            entity.set_outage(busy)
            with pytest.raises(ServerBusy, match="is too busy"):
                await app.send("pears")
            entity.set_outage(None)
            assert app.events == []
            assert await app.parked() == []


async def test_x07_a_keyed_send_whose_fragment_is_down_is_parked_and_all_others_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rocks_disks, "LOOK_S", 3_600)  # a look at the disks would find that store 1 has space
    (tmp_path / "one").mkdir()
    (tmp_path / "other").mkdir()
    with (
        serving_here(tmp_path / "one", stores=4) as primary,
        started(tmp_path / "other", name="contoso-backup") as secondary,
    ):
        async with manager_of(primary) as manager:
            await manager.create_queue(QUEUE, QueueDescription(enable_partitioning=True))
        async with application(primary, secondary, park_on_fragment_outage=True, enable_syphon=True) as app:
            store = primary.namespace.journals[1]
            store.refusal = low_space(2**30)
            for text, session_id in (("apples", key_of(1)), ("pears", key_of(2)), ("plums", None)):
                await app.queue.send(BrokeredMessage(text, message_id=text, session_id=session_id))
            assert [event.message_id for event in app.told(EventKind.PARKED)] == ["apples"]
            assert [event.fragment for event in app.told(EventKind.FRAGMENT_DOWN)] == [1]
            assert app.is_in(EntityState.HEALTHY)
            keys = [key_of(fragment) for fragment in range(16)]
            batch = [BrokeredMessage(key, message_id=key, session_id=key) for key in keys]
            assert app.queue.can_be_parked(batch)
            await app.queue.send_batch(batch)
            parked = [event.message_id for event in app.told(EventKind.PARKED)]
            assert parked == ["apples", *(keys[fragment] for fragment in (1, 5, 9, 13))]
            others = sorted(["pears", "plums", *(key for key in keys if key not in parked)])
            assert await received_texts(primary, 14) == others
            store.refusal = None
            await app.until(lambda: len(app.told(EventKind.FRAGMENT_BACK)) == 4)
            await app.until(lambda: len(app.told(EventKind.MOVED)) == 5)
            assert await received_texts(primary, 5) == sorted(str(one) for one in parked)
