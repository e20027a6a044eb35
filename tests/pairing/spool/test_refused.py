"""A spooled message with a fault of its own is put aside with the reason, is counted, and can be sent again."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.pairing.spool.records import found_in, names_in, record, spool_all
from tests.pairing.spool.world import PRIMARY, SECONDARY, World, make_world, paired
from twinbus.client.pairing import AlarmKind, EventKind, SpoolStatus
from twinbus.client.pairing.fragments import Key
from twinbus.client.pairing.spool_files import SpoolFiles
from twinbus.model.errors import InvalidArgument, InvalidOperation, MessageTooLarge, NotAllowed, ServiceBusError
from twinbus.model.message import BrokeredMessage

if TYPE_CHECKING:
    from pathlib import Path

    from twinbus.client.pairing import Pairing


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return make_world(monkeypatch)


def message(name: str, session_id: str | None = None) -> BrokeredMessage:
    return BrokeredMessage(name, message_id=name, session_id=session_id)


async def test_a_refused_message_is_kept_with_the_reason_and_what_is_behind_it_goes_on(
    world: World, tmp_path: Path
) -> None:
    names = [f"refused {number}" for number in range(12)]
    async with paired(world, tmp_path) as pairing:
        orders = pairing.primary.create_message_sender("orders")
        gone = pairing.primary.create_message_sender("gone")
        world.down = {PRIMARY, SECONDARY}
        for name in names:
            await gone.send(message(name, "a"))
        await orders.send(message("order"))
        world.errors[PRIMARY, "gone"] = NotAllowed("'gone' requires sessions")
        world.end_outage(pairing, "orders", "gone")
        await world.until(lambda: world.heard(EventKind.SPOOL_REFUSED) == names)
        await world.until(lambda: world.heard(EventKind.UNSPOOLED) == ["order"])
        reasons = sorted((tmp_path / "contoso" / "refused").glob("*.txt"))
        assert len(reasons) == len(names)
        assert "'gone' requires sessions" in reasons[0].read_text()
        assert "refused 0" in reasons[0].read_text()
        assert pairing.spool_status is not None
        assert pairing.spool_status.count == 0
    world.errors, world.down = {}, set()
    for file in (tmp_path / "contoso" / "refused").glob("*.spool"):
        file.rename(tmp_path / "contoso" / file.name)
    async with paired(world, tmp_path):
        await world.until(lambda: world.heard(EventKind.UNSPOOLED)[1:] == names)
    assert world.names(PRIMARY, "gone") == names


async def test_a_refused_message_that_cannot_be_put_aside_stays_in_the_spool(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with paired(world, tmp_path) as pairing:
        orders = pairing.primary.create_message_sender("orders")
        world.down = {PRIMARY, SECONDARY}
        await orders.send(message("order"))
        world.errors[PRIMARY, "orders"] = InvalidArgument("a bad argument")
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", full)
            world.end_outage(pairing)
            asked = world.asked
            await world.until(lambda: world.asked > asked + 3)
            assert world.heard(EventKind.SPOOL_REFUSED) == []
        assert pairing.spool_status is not None
        assert pairing.spool_status.count == 1
        await world.until(lambda: world.heard(EventKind.SPOOL_REFUSED) == ["order"])


def full(_descriptor: int) -> None:
    raise OSError(28, "No space left on device")


async def test_a_closed_factory_refuses_nothing(world: World, tmp_path: Path) -> None:
    async with paired(world, tmp_path) as pairing:
        orders = pairing.primary.create_message_sender("orders")
        world.down = {PRIMARY, SECONDARY}
        await orders.send(message("order"))
        await pairing.primary.close()
        asked = world.asked
        world.end_outage(pairing)
        await world.until(lambda: world.asked > asked)
    assert not list((tmp_path / "contoso" / "refused").iterdir())
    world.down = set()
    async with paired(world, tmp_path):
        await world.until(lambda: world.names(PRIMARY) == ["order"])


async def refuse(world: World, pairing: Pairing, *names: str, path: str = "orders") -> None:
    """Spool messages that their entity then refuses for good."""
    sender = pairing.primary.create_message_sender(path)
    world.down = {PRIMARY, SECONDARY}
    for name in names:
        await sender.send(message(name))
    world.errors[PRIMARY, path] = MessageTooLarge("too large")
    world.end_outage(pairing, path)
    await world.until(lambda: set(names) <= set(world.heard(EventKind.SPOOL_REFUSED)))


def status_of(pairing: Pairing) -> SpoolStatus:
    assert pairing.spool_status is not None
    return pairing.spool_status


def bytes_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in (folder / "contoso" / "refused").glob("*.spool"))


async def test_x08_refused_messages_are_counted_also_after_a_restart_and_raise_an_alarm(
    world: World, tmp_path: Path
) -> None:
    async with paired(world, tmp_path) as pairing:
        assert status_of(pairing).refused == 0
        await refuse(world, pairing, "one", "two")
        assert (status_of(pairing).refused, status_of(pairing).refused_bytes) == (2, bytes_of(tmp_path))
        assert (await pairing.status()).spool == status_of(pairing)
        (alarm,) = [one for one in pairing.seen.alarms.raised if one.kind is AlarmKind.SPOOL_REFUSED]
        assert alarm.reason.startswith(f"2 messages in {tmp_path / 'contoso' / 'refused'}, ")
        assert "`pairing.resend_refused()`" in alarm.reason
    world.down = set()
    async with paired(world, tmp_path) as pairing:
        assert (status_of(pairing).refused, status_of(pairing).refused_bytes) == (2, bytes_of(tmp_path))
        assert [one.kind for one in pairing.seen.alarms.raised] == [AlarmKind.SPOOL_REFUSED]


async def test_x08_refused_messages_are_sent_again_by_a_running_application(world: World, tmp_path: Path) -> None:
    async with paired(world, tmp_path) as pairing:
        await refuse(world, pairing, "one", "two")
        await refuse(world, pairing, "bill", path="invoices")
        del world.errors[PRIMARY, "orders"]
        assert await pairing.resend_refused("ORDERS") == 2
        await world.until(lambda: world.heard(EventKind.UNSPOOLED) == ["one", "two"])
        assert world.names(PRIMARY, "orders") == ["one", "two"]
        assert "x-ms-possible-duplicate" not in world.taken[0].message.properties
        assert status_of(pairing).refused == 1
        assert await pairing.resend_refused() == 1
        await world.until(
            lambda: world.heard(EventKind.SPOOL_REFUSED)[-1] == "bill" and status_of(pairing).refused == 1
        )
        world.errors.clear()
        assert await pairing.resend_refused() == 1
        await world.until(lambda: world.heard(EventKind.UNSPOOLED)[-1] == "bill")
        assert (status_of(pairing).count, status_of(pairing).refused) == (0, 0)
        assert pairing.seen.alarms.raised == ()
    assert list((tmp_path / "contoso" / "refused").iterdir()) == []


async def test_q04_x08_a_refused_message_that_may_have_arrived_says_so_when_it_is_sent_again(
    world: World, tmp_path: Path
) -> None:
    async with paired(world, tmp_path) as pairing:
        world.silent = {PRIMARY, SECONDARY}
        await pairing.primary.create_message_sender("orders").send(message("order"))
        world.silent = set()
        world.errors[PRIMARY, "orders"] = MessageTooLarge("too large")
        world.end_outage(pairing)
        await world.until(lambda: world.heard(EventKind.SPOOL_REFUSED) == ["order"])
        world.errors, world.down = {}, {PRIMARY}
        pairing.health_of("orders").send_failed(ServiceBusError("gone"), Key())
        await pairing.resend_refused()
        await world.until(lambda: world.names(SECONDARY) == ["order"])
        assert world.taken[-1].message.properties["x-ms-possible-duplicate"] is True


def test_x08_a_refusal_that_was_cut_off_by_a_crash_leaves_one_message_not_two(tmp_path: Path) -> None:
    (position,) = spool_all(tmp_path, [record("order")])
    files = SpoolFiles(tmp_path)
    files.open(lambda _position, _record: None)
    files.refuse(position, record("order"), "why")
    files.close()  # and the record was not removed
    assert [one.message_ids for one in found_in(tmp_path)] == [["order"]]
    assert names_in(tmp_path / "refused") == set()


async def test_without_a_spool_there_is_nothing_to_send_again(world: World) -> None:
    async with paired(world, None) as pairing:
        with pytest.raises(InvalidOperation, match="say spool_dir"):
            await pairing.resend_refused()
