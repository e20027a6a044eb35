"""The primary runs and refuses some or all sends: an untrusted certificate, a full disk, a busy server."""

from __future__ import annotations

import asyncio
import datetime as dt
from typing import TYPE_CHECKING

import pytest

from tests.support.in_process_server import run_server_in_process
from tests.support.partitioned_namespace import key_for_fragment
from tests.support.relay import Relay
from tests.support.server_pair import (
    OPERATION_TIMEOUT_S,
    QUEUE,
    connect_manager,
    connection_string,
    create_queue,
    paired_application,
    receive_all_texts,
    run_server_pair,
)
from tests.support.server_process import AMQPS_PORT, run_server
from twinbus.broker.ports.outage import Outage
from twinbus.client import BrokeredMessage, MessagingFactory
from twinbus.client.pairing import EntityState, EventKind
from twinbus.client.retry import RetryPolicy
from twinbus.model.errors import ServerBusy
from twinbus.model.outage import OutageKind
from twinbus.model.queue import QueueDescription
from twinbus.server.runtime import rocksdb_backend
from twinbus.server.runtime.disk_space import low_space_reason
from twinbus.server.tls.development_certificates import ensure_development_certificate

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.server_process import ServerProcess


def factory_with_tls(primary: ServerProcess, *, ca_file: str, port: int = AMQPS_PORT) -> MessagingFactory:
    return MessagingFactory.from_connection_string(
        connection_string(primary, port=port, tls=True), operation_timeout=OPERATION_TIMEOUT_S, ca_file=ca_file
    )


async def test_an_untrusted_certificate_is_an_outage_and_the_reason_says_so(tmp_path: Path) -> None:
    async with run_server_pair(tmp_path) as (primary, secondary):
        foreign = ensure_development_certificate(tmp_path / "foreign", "localhost", dt.datetime.now(dt.UTC))
        factory = factory_with_tls(primary, ca_file=str(foreign.ca_file))
        async with paired_application(primary, secondary, factory=factory) as app:
            await app.send("apples")
            assert app.is_in(EntityState.FAILED_OVER)
            assert "certificate verify failed" in app.unhealthy_reason
            assert await app.parked_texts() == ["apples"]


async def test_a_connection_reset_in_the_tls_handshake_is_an_outage(tmp_path: Path) -> None:
    async with run_server_pair(tmp_path) as (primary, secondary), Relay(primary.host, AMQPS_PORT) as relay:
        factory = factory_with_tls(primary, ca_file=primary.ca_file, port=relay.port)
        relay.reset_first_bytes()
        async with paired_application(primary, secondary, factory=factory, enable_syphon=True) as app:
            assert await app.seconds_to_send("apples") < 1
            assert app.is_in(EntityState.FAILED_OVER)
            assert "cannot be reached" in app.unhealthy_reason
            await relay.restore()
            await app.wait_for_event(EventKind.RESTORED)
            await app.wait_for_event(EventKind.MOVED)
            await app.send("pears")
        assert await receive_all_texts(primary, 2) == ["apples", "pears"]


async def test_a_full_disk_is_an_outage_until_a_ping_finds_space_again(tmp_path: Path) -> None:
    async with run_server_pair(tmp_path, primary_options=["--min-free=1000000GiB"]) as (primary, secondary):
        async with paired_application(primary, secondary, enable_syphon=True) as app:
            await app.send("apples")
            assert app.is_in(EntityState.FAILED_OVER)
            assert "its disk is full" in app.unhealthy_reason
            await app.wait_for_event(EventKind.PINGED, 2)
            assert app.is_in(EntityState.FAILED_OVER), "a ping needs space on the disk, too"
            assert not app.events_of(EventKind.MOVED)
            primary.kill()
            primary.options = ["contoso"]
            await asyncio.to_thread(primary.start)
            await app.wait_for_event(EventKind.RESTORED)
            await app.wait_for_event(EventKind.MOVED)
        assert await receive_all_texts(primary, 1) == ["apples"]


async def test_a_busy_server_is_no_outage_and_is_retried(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "other").mkdir()
    with (
        run_server_in_process(tmp_path / "one") as primary,
        run_server(tmp_path / "other", name="contoso-backup") as secondary,
    ):
        await create_queue(primary, QUEUE)
        factory = MessagingFactory.from_connection_string(
            connection_string(primary),
            operation_timeout=OPERATION_TIMEOUT_S,
            retry_policy=RetryPolicy(busy_pause_s=0.2),
        )
        async with paired_application(primary, secondary, factory=factory) as app:
            entity = primary.namespace.find_sendable(QUEUE)
            busy = Outage(QUEUE, OutageKind.BUSY, since_ms=0, until_ms=0)
            entity.set_outage(busy)
            sending = asyncio.ensure_future(app.send("apples"))
            await asyncio.sleep(0.5)
            assert not sending.done()
            entity.set_outage(None)
            await sending
            assert await receive_all_texts(primary, 1) == ["apples"]
            entity.set_outage(busy)
            with pytest.raises(ServerBusy, match="is too busy"):
                await app.send("pears")
            entity.set_outage(None)
            assert app.events == []
            assert await app.parked_messages() == []


async def test_x07_a_keyed_send_whose_fragment_is_down_is_parked_and_all_others_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        rocksdb_backend, "CHECK_INTERVAL_S", 3_600
    )  # a check of the disks would find that store 1 has space
    (tmp_path / "one").mkdir()
    (tmp_path / "other").mkdir()
    with (
        run_server_in_process(tmp_path / "one", stores=4) as primary,
        run_server(tmp_path / "other", name="contoso-backup") as secondary,
    ):
        async with connect_manager(primary) as manager:
            await manager.create_queue(QUEUE, QueueDescription(enable_partitioning=True))
        async with paired_application(primary, secondary, park_on_fragment_outage=True, enable_syphon=True) as app:
            store = primary.namespace.stores[1]
            store.disk_full_reason = low_space_reason(2**30)
            for text, session_id in (("apples", key_for_fragment(1)), ("pears", key_for_fragment(2)), ("plums", None)):
                await app.queue.send(BrokeredMessage(text, message_id=text, session_id=session_id))
            assert [event.message_id for event in app.events_of(EventKind.PARKED)] == ["apples"]
            assert [event.fragment for event in app.events_of(EventKind.FRAGMENT_DOWN)] == [1]
            assert app.is_in(EntityState.HEALTHY)
            keys = [key_for_fragment(fragment) for fragment in range(16)]
            batch = [BrokeredMessage(key, message_id=key, session_id=key) for key in keys]
            assert app.queue.can_be_parked(batch)
            await app.queue.send_batch(batch)
            parked = [event.message_id for event in app.events_of(EventKind.PARKED)]
            assert parked == ["apples", *(keys[fragment] for fragment in (1, 5, 9, 13))]
            others = sorted(["pears", "plums", *(key for key in keys if key not in parked)])
            assert await receive_all_texts(primary, 14) == others
            store.disk_full_reason = None
            await app.wait_until(lambda: len(app.events_of(EventKind.FRAGMENT_BACK)) == 4)
            await app.wait_until(lambda: len(app.events_of(EventKind.MOVED)) == 5)
            assert await receive_all_texts(primary, 5) == sorted(str(message_id) for message_id in parked)
