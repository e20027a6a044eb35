"""A send while both namespaces are down succeeds once it is on disk, and is delivered when one of them is back."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from typing import TYPE_CHECKING

import pytest

from tests.client.pairing.spool.fake_namespaces import (
    PRIMARY,
    SECONDARY,
    FakeNamespaces,
    make_fake_namespaces,
    pair_namespaces,
)
from tests.client.pairing.spool.records import bytes_in, make_record
from twinbus.client.errors import TimedOut
from twinbus.client.pairing import POSSIBLE_DUPLICATE, EventKind, NotSent, PairingFailed, send_operation
from twinbus.client.pairing.spool.spool import Spool
from twinbus.model.message import BrokeredMessage

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from twinbus.client.pairing import PairingEvent


@pytest.fixture
def namespaces(monkeypatch: pytest.MonkeyPatch) -> FakeNamespaces:
    return make_fake_namespaces(monkeypatch)


def message(name: str, **properties: str) -> BrokeredMessage:
    return BrokeredMessage(f"body of {name}", message_id=name, **properties)  # type: ignore[arg-type]


async def test_without_a_spool_a_send_fails_when_both_namespaces_are_down(namespaces: FakeNamespaces) -> None:
    async with pair_namespaces(namespaces, None) as pairing:
        sender = pairing.primary.create_message_sender("orders")
        namespaces.down_namespaces = {PRIMARY, SECONDARY}
        with pytest.raises(NotSent) as failed:
            await sender.send(message("1"))
        assert failed.value.spool is None
        assert pairing.spool_status is None


async def test_a_send_is_spooled_when_both_are_down_and_delivered_when_the_primary_is_back(
    namespaces: FakeNamespaces, tmp_path: Path
) -> None:
    async with pair_namespaces(namespaces, tmp_path) as pairing:
        sender = pairing.primary.create_message_sender("orders")
        namespaces.down_namespaces = {PRIMARY, SECONDARY}
        await sender.send(message("1"))
        assert namespaces.event_message_ids(EventKind.SPOOLED) == ["1"]
        status = pairing.spool_status
        assert status is not None
        assert status.count == 1
        assert status.bytes == bytes_in(tmp_path / "contoso") > 0
        assert status.oldest_ms == pairing.primary.settings.clock.wall_ms()
        assert namespaces.stored == []
        namespaces.end_outage(pairing)
        await namespaces.wait_until(lambda: namespaces.event_message_ids(EventKind.UNSPOOLED) == ["1"])
        assert namespaces.stored_ids(PRIMARY, "orders") == ["1"]
        assert namespaces.stored[0].message.text == "body of 1"
        empty = pairing.spool_status
        assert empty is not None
        assert (empty.count, empty.bytes, empty.oldest_ms) == (0, 0, None)
    assert bytes_in(tmp_path / "contoso") == 0


async def test_a_spooled_message_is_parked_when_only_the_secondary_is_back(
    namespaces: FakeNamespaces, tmp_path: Path
) -> None:
    async with pair_namespaces(namespaces, tmp_path) as pairing:
        sender = pairing.primary.create_message_sender("orders")
        namespaces.down_namespaces = {PRIMARY, SECONDARY}
        await sender.send(message("1", session_id="apples"))
        namespaces.down_namespaces = {PRIMARY}
        await namespaces.wait_until(lambda: namespaces.event_message_ids(EventKind.UNSPOOLED) == ["1"])
        (parked,) = namespaces.stored
        assert parked.namespace == SECONDARY
        assert parked.message.properties["x-ms-path"] == "orders"
        assert parked.message.properties["x-ms-sessionid"] == "apples"
        assert POSSIBLE_DUPLICATE not in parked.message.properties, "every attempt got a response"


async def test_a_message_that_may_have_arrived_is_marked_when_it_is_parked_from_the_spool(
    namespaces: FakeNamespaces, tmp_path: Path
) -> None:
    async with pair_namespaces(namespaces, tmp_path) as pairing:
        sender = pairing.primary.create_message_sender("orders")
        namespaces.errors[PRIMARY, "orders"] = TimedOut("no answer", was_sent=True)
        namespaces.down_namespaces = {SECONDARY}
        await sender.send(message("1"))
        namespaces.down_namespaces = {PRIMARY}
        await namespaces.wait_until(lambda: namespaces.event_message_ids(EventKind.UNSPOOLED) == ["1"])
        (parked,) = namespaces.stored
        assert parked.name == "1", "duplicate detection knows it by its id"
        assert parked.message.properties[POSSIBLE_DUPLICATE] is True


async def test_a_message_that_a_backlog_queue_may_have_stored_is_marked_too(
    namespaces: FakeNamespaces, tmp_path: Path
) -> None:
    async with pair_namespaces(namespaces, tmp_path) as pairing:
        sender = pairing.primary.create_message_sender("orders")
        namespaces.down_namespaces, namespaces.silent_namespaces = {PRIMARY}, {SECONDARY}
        await sender.send(message("1"), timeout=0.3)
        namespaces.silent_namespaces = set()
        await namespaces.wait_until(lambda: namespaces.event_message_ids(EventKind.UNSPOOLED) == ["1"])
        assert namespaces.stored[0].message.properties[POSSIBLE_DUPLICATE] is True


async def test_a_batch_is_spooled_and_sent_whole(namespaces: FakeNamespaces, tmp_path: Path) -> None:
    async with pair_namespaces(namespaces, tmp_path) as pairing:
        sender = pairing.primary.create_message_sender("orders")
        namespaces.down_namespaces = {PRIMARY, SECONDARY}
        await sender.send_batch([message("1"), message("2"), message("3")])
        assert pairing.spool_status is not None
        assert pairing.spool_status.count == 3
        requests_before = namespaces.request_count
        namespaces.end_outage(pairing)
        await namespaces.wait_until(lambda: namespaces.event_message_ids(EventKind.UNSPOOLED) == ["1", "2", "3"])
        assert namespaces.stored_ids(PRIMARY) == ["1", "2", "3"]
        assert namespaces.request_count > requests_before


async def test_after_a_restart_the_next_application_sends_the_spooled_messages(
    namespaces: FakeNamespaces, tmp_path: Path
) -> None:
    async with pair_namespaces(namespaces, tmp_path) as pairing:
        sender = pairing.primary.create_message_sender("orders")
        namespaces.down_namespaces = {PRIMARY, SECONDARY}
        for name in "123":
            await sender.send(message(name))
    namespaces.down_namespaces = {PRIMARY}
    async with pair_namespaces(namespaces, tmp_path) as pairing:
        await namespaces.wait_until(lambda: len(namespaces.event_message_ids(EventKind.UNSPOOLED)) == 3)
        assert sorted(map(str, namespaces.stored_ids(SECONDARY))) == ["1", "2", "3"]
        flags = {item.message.properties.get(POSSIBLE_DUPLICATE) for item in namespaces.stored}
        assert flags == {True}, "the earlier application may have sent them just before it ended"


async def test_a_message_that_is_spooled_while_the_last_one_is_removed_is_sent_too(
    namespaces: FakeNamespaces, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pair_namespaces(namespaces, tmp_path) as pairing:
        spool, following = pairing.spool, set[asyncio.Task[None]]()
        assert spool is not None

        def spool_another(event: PairingEvent) -> None:
            if event.kind is EventKind.UNSPOOLED and event.message_id == "1":
                following.add(asyncio.ensure_future(spool.append(make_record("2"))))

        async def run_at_once(_spool: Spool, work: Callable[..., object], *arguments: object) -> object:
            return work(*arguments)

        monkeypatch.setattr(
            Spool, "_on_thread", run_at_once
        )  # the disk is fast enough to hit the moment of the removal
        pairing.on_event(spool_another)
        await spool.append(make_record("1"))
        await namespaces.wait_until(lambda: namespaces.event_message_ids(EventKind.UNSPOOLED) == ["1", "2"])
        assert namespaces.stored_ids(PRIMARY) == ["1", "2"]


async def test_an_unprotected_pairing_spools_too(namespaces: FakeNamespaces, tmp_path: Path) -> None:
    namespaces.down_namespaces = {PRIMARY, SECONDARY}
    async with pair_namespaces(namespaces, tmp_path, require_secondary=False) as pairing:
        assert not pairing.is_protected
        sender = pairing.primary.create_message_sender("orders")
        await sender.send(message("1"))
        assert namespaces.event_message_ids(EventKind.SPOOLED) == ["1"]
        namespaces.end_outage(pairing)
        await namespaces.wait_until(lambda: namespaces.stored_ids(PRIMARY) == ["1"])


async def test_with_a_full_spool_a_send_fails_with_all_reasons(namespaces: FakeNamespaces, tmp_path: Path) -> None:
    async with pair_namespaces(namespaces, tmp_path, spool_max_bytes=10) as pairing:
        sender = pairing.primary.create_message_sender("orders")
        namespaces.down_namespaces = {PRIMARY, SECONDARY}
        with pytest.raises(NotSent, match=r"contoso is down.*contoso-backup is down.*spool_max_bytes"):
            await sender.send(message("1"))
        namespaces.down_namespaces = {PRIMARY}
        await sender.send(message("2"))
        assert namespaces.stored_ids(SECONDARY) == ["2"]


async def test_a_send_leaves_time_for_the_spool_when_both_namespaces_are_silent(
    namespaces: FakeNamespaces, tmp_path: Path
) -> None:
    async with pair_namespaces(namespaces, tmp_path) as pairing:
        sender = pairing.primary.create_message_sender("orders")
        namespaces.silent_namespaces = {PRIMARY, SECONDARY}
        started_s = time.monotonic()
        await sender.send(message("1"), timeout=0.5)
        assert namespaces.event_message_ids(EventKind.SPOOLED) == ["1"]
        assert time.monotonic() - started_s < 5
        namespaces.silent_namespaces = set()
        await namespaces.wait_until(lambda: namespaces.event_message_ids(EventKind.UNSPOOLED) == ["1"])
        assert namespaces.stored[0].message.properties[POSSIBLE_DUPLICATE] is True


async def test_a_hanging_disk_fails_the_send_within_its_timeout(
    namespaces: FakeNamespaces, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pair_namespaces(namespaces, tmp_path) as pairing:
        sender = pairing.primary.create_message_sender("orders")
        namespaces.down_namespaces = {PRIMARY, SECONDARY}
        monkeypatch.setattr(send_operation, "MIN_SPOOL_TIMEOUT_S", 0.01)
        may_sync, real_sync = threading.Event(), os.fsync

        def fsync(descriptor: int) -> None:
            assert may_sync.wait(20)
            real_sync(descriptor)

        monkeypatch.setattr(os, "fsync", fsync)
        with pytest.raises(NotSent, match="the disk did not answer") as failed:
            await sender.send(message("1"), timeout=0.1)
        assert failed.value.may_have_arrived
        may_sync.set()


async def test_two_pairs_that_share_a_spool_dir_have_separate_spools(
    namespaces: FakeNamespaces, tmp_path: Path
) -> None:
    async with pair_namespaces(namespaces, tmp_path, primary_namespace_name="fabrikam") as pairing:
        sender = pairing.primary.create_message_sender("orders")
        namespaces.down_namespaces = {PRIMARY, SECONDARY}
        await sender.send(message("of fabrikam"))
        namespaces.down_namespaces = set()
        async with pair_namespaces(namespaces, tmp_path) as other:
            assert other.spool_status is not None
            assert other.spool_status.count == 0


async def test_a_pairing_that_failed_releases_the_spool(namespaces: FakeNamespaces, tmp_path: Path) -> None:
    namespaces.down_namespaces = {SECONDARY}
    with pytest.raises(PairingFailed, match="cannot be listed"):
        async with pair_namespaces(namespaces, tmp_path):
            pytest.fail("the pairing did not fail")
    namespaces.down_namespaces = set()
    async with pair_namespaces(namespaces, tmp_path) as pairing:
        assert pairing.spool_status is not None


async def test_pairing_with_a_spool_that_is_in_use_fails(namespaces: FakeNamespaces, tmp_path: Path) -> None:
    async with pair_namespaces(namespaces, tmp_path):
        with pytest.raises(PairingFailed, match="spool_dir of its own"):
            async with pair_namespaces(namespaces, tmp_path):
                pytest.fail("both use the spool")
