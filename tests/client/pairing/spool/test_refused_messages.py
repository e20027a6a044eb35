"""A spooled message that is refused for good is moved aside with the reason, is counted, and can be sent again."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.client.pairing.spool.fake_namespaces import (
    PRIMARY,
    SECONDARY,
    FakeNamespaces,
    make_fake_namespaces,
    pair_namespaces,
)
from tests.client.pairing.spool.records import make_record, names_in, read_spool, spool_all
from twinbus.client.pairing import AlarmKind, EventKind, SpoolStatus
from twinbus.client.pairing.failover.fragment_outages import RoutingKey
from twinbus.client.pairing.spool.files import SpoolFiles
from twinbus.model.errors import InvalidArgument, InvalidOperation, MessageTooLarge, NotAllowed, ServiceBusError
from twinbus.model.message import BrokeredMessage

if TYPE_CHECKING:
    from pathlib import Path

    from twinbus.client.pairing import Pairing


@pytest.fixture
def namespaces(monkeypatch: pytest.MonkeyPatch) -> FakeNamespaces:
    return make_fake_namespaces(monkeypatch)


def message(name: str, session_id: str | None = None) -> BrokeredMessage:
    return BrokeredMessage(name, message_id=name, session_id=session_id)


async def test_a_refused_message_is_kept_with_the_reason_and_later_messages_are_sent(
    namespaces: FakeNamespaces, tmp_path: Path
) -> None:
    names = [f"refused {number}" for number in range(12)]
    async with pair_namespaces(namespaces, tmp_path) as pairing:
        orders = pairing.primary.create_message_sender("orders")
        gone = pairing.primary.create_message_sender("gone")
        namespaces.down_namespaces = {PRIMARY, SECONDARY}
        for name in names:
            await gone.send(message(name, "a"))
        await orders.send(message("order"))
        namespaces.errors[PRIMARY, "gone"] = NotAllowed("'gone' requires sessions")
        namespaces.end_outage(pairing, "orders", "gone")
        await namespaces.wait_until(lambda: namespaces.event_message_ids(EventKind.SPOOL_REFUSED) == names)
        await namespaces.wait_until(lambda: namespaces.event_message_ids(EventKind.UNSPOOLED) == ["order"])
        reasons = sorted((tmp_path / "contoso" / "refused").glob("*.txt"))
        assert len(reasons) == len(names)
        assert "'gone' requires sessions" in reasons[0].read_text()
        assert "refused 0" in reasons[0].read_text()
        assert pairing.spool_status is not None
        assert pairing.spool_status.count == 0
    namespaces.errors, namespaces.down_namespaces = {}, set()
    for file in (tmp_path / "contoso" / "refused").glob("*.spool"):
        file.rename(tmp_path / "contoso" / file.name)
    async with pair_namespaces(namespaces, tmp_path):
        await namespaces.wait_until(lambda: namespaces.event_message_ids(EventKind.UNSPOOLED)[1:] == names)
    assert namespaces.stored_ids(PRIMARY, "gone") == names


async def test_a_refused_message_that_cannot_be_moved_aside_stays_in_the_spool(
    namespaces: FakeNamespaces, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pair_namespaces(namespaces, tmp_path) as pairing:
        orders = pairing.primary.create_message_sender("orders")
        namespaces.down_namespaces = {PRIMARY, SECONDARY}
        await orders.send(message("order"))
        namespaces.errors[PRIMARY, "orders"] = InvalidArgument("a bad argument")
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", fail_with_full_disk)
            namespaces.end_outage(pairing)
            requests_before = namespaces.request_count
            await namespaces.wait_until(lambda: namespaces.request_count > requests_before + 3)
            assert namespaces.event_message_ids(EventKind.SPOOL_REFUSED) == []
        assert pairing.spool_status is not None
        assert pairing.spool_status.count == 1
        await namespaces.wait_until(lambda: namespaces.event_message_ids(EventKind.SPOOL_REFUSED) == ["order"])


def fail_with_full_disk(_descriptor: int) -> None:
    raise OSError(28, "No space left on device")


async def test_closing_the_factory_refuses_no_spooled_message(namespaces: FakeNamespaces, tmp_path: Path) -> None:
    async with pair_namespaces(namespaces, tmp_path) as pairing:
        orders = pairing.primary.create_message_sender("orders")
        namespaces.down_namespaces = {PRIMARY, SECONDARY}
        await orders.send(message("order"))
        await pairing.primary.close()
        requests_before = namespaces.request_count
        namespaces.end_outage(pairing)
        await namespaces.wait_until(lambda: namespaces.request_count > requests_before)
    assert not list((tmp_path / "contoso" / "refused").iterdir())
    namespaces.down_namespaces = set()
    async with pair_namespaces(namespaces, tmp_path):
        await namespaces.wait_until(lambda: namespaces.stored_ids(PRIMARY) == ["order"])


async def refuse(namespaces: FakeNamespaces, pairing: Pairing, *names: str, path: str = "orders") -> None:
    """Spool messages that their entity then refuses for good."""
    sender = pairing.primary.create_message_sender(path)
    namespaces.down_namespaces = {PRIMARY, SECONDARY}
    for name in names:
        await sender.send(message(name))
    namespaces.errors[PRIMARY, path] = MessageTooLarge("too large")
    namespaces.end_outage(pairing, path)
    await namespaces.wait_until(lambda: set(names) <= set(namespaces.event_message_ids(EventKind.SPOOL_REFUSED)))


def status_of(pairing: Pairing) -> SpoolStatus:
    assert pairing.spool_status is not None
    return pairing.spool_status


def bytes_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in (folder / "contoso" / "refused").glob("*.spool"))


async def test_x08_refused_messages_are_counted_also_after_a_restart_and_raise_an_alarm(
    namespaces: FakeNamespaces, tmp_path: Path
) -> None:
    async with pair_namespaces(namespaces, tmp_path) as pairing:
        assert status_of(pairing).refused == 0
        await refuse(namespaces, pairing, "one", "two")
        assert (status_of(pairing).refused, status_of(pairing).refused_bytes) == (2, bytes_of(tmp_path))
        assert (await pairing.status()).spool == status_of(pairing)
        (alarm,) = [item for item in pairing.observers.alarms.raised if item.kind is AlarmKind.SPOOL_REFUSED]
        assert alarm.reason.startswith(f"2 messages in {tmp_path / 'contoso' / 'refused'}, ")
        assert "`pairing.resend_refused()`" in alarm.reason
    namespaces.down_namespaces = set()
    async with pair_namespaces(namespaces, tmp_path) as pairing:
        assert (status_of(pairing).refused, status_of(pairing).refused_bytes) == (2, bytes_of(tmp_path))
        assert [item.kind for item in pairing.observers.alarms.raised] == [AlarmKind.SPOOL_REFUSED]


async def test_x08_refused_messages_are_sent_again_by_a_running_application(
    namespaces: FakeNamespaces, tmp_path: Path
) -> None:
    async with pair_namespaces(namespaces, tmp_path) as pairing:
        await refuse(namespaces, pairing, "one", "two")
        await refuse(namespaces, pairing, "bill", path="invoices")
        del namespaces.errors[PRIMARY, "orders"]
        assert await pairing.resend_refused("ORDERS") == 2
        await namespaces.wait_until(lambda: namespaces.event_message_ids(EventKind.UNSPOOLED) == ["one", "two"])
        assert namespaces.stored_ids(PRIMARY, "orders") == ["one", "two"]
        assert "x-ms-possible-duplicate" not in namespaces.stored[0].message.properties
        assert status_of(pairing).refused == 1
        assert await pairing.resend_refused() == 1
        await namespaces.wait_until(
            lambda: (
                namespaces.event_message_ids(EventKind.SPOOL_REFUSED)[-1] == "bill" and status_of(pairing).refused == 1
            )
        )
        namespaces.errors.clear()
        assert await pairing.resend_refused() == 1
        await namespaces.wait_until(lambda: namespaces.event_message_ids(EventKind.UNSPOOLED)[-1] == "bill")
        assert (status_of(pairing).count, status_of(pairing).refused) == (0, 0)
        assert pairing.observers.alarms.raised == ()
    assert list((tmp_path / "contoso" / "refused").iterdir()) == []


async def test_q04_x08_a_refused_message_that_may_have_arrived_is_marked_when_it_is_sent_again(
    namespaces: FakeNamespaces, tmp_path: Path
) -> None:
    async with pair_namespaces(namespaces, tmp_path) as pairing:
        namespaces.silent_namespaces = {PRIMARY, SECONDARY}
        await pairing.primary.create_message_sender("orders").send(message("order"))
        namespaces.silent_namespaces = set()
        namespaces.errors[PRIMARY, "orders"] = MessageTooLarge("too large")
        namespaces.end_outage(pairing)
        await namespaces.wait_until(lambda: namespaces.event_message_ids(EventKind.SPOOL_REFUSED) == ["order"])
        namespaces.errors, namespaces.down_namespaces = {}, {PRIMARY}
        pairing.health_of("orders").send_failed(ServiceBusError("gone"), RoutingKey())
        await pairing.resend_refused()
        await namespaces.wait_until(lambda: namespaces.stored_ids(SECONDARY) == ["order"])
        assert namespaces.stored[-1].message.properties["x-ms-possible-duplicate"] is True


def test_x08_a_refusal_that_was_interrupted_by_a_crash_leaves_one_message_not_two(tmp_path: Path) -> None:
    (position,) = spool_all(tmp_path, [make_record("order")])
    files = SpoolFiles(tmp_path)
    files.open(lambda _position, _record: None)
    files.refuse(position, make_record("order"), "why")
    files.close()  # the process crashed before it removed the record
    assert [record.message_ids for record in read_spool(tmp_path)] == [["order"]]
    assert names_in(tmp_path / "refused") == set()


async def test_without_a_spool_resend_refused_is_an_error(namespaces: FakeNamespaces) -> None:
    async with pair_namespaces(namespaces, None) as pairing:
        with pytest.raises(InvalidOperation, match="set spool_dir"):
            await pairing.resend_refused()
