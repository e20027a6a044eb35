"""With `journal_dir`, a journal contains the outcome of each send of a pair, and each event."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

from tests.client.pairing.observe.fake_pair import QUEUE_0, FakeBacklog, FakePair, run_scenario
from twinbus.client.errors import ConnectionFailed, TimedOut
from twinbus.client.journal_file import SUFFIX, read
from twinbus.client.pairing import NotSent, PairingFailed
from twinbus.model.errors import EntityDisabled, ServiceBusError
from twinbus.model.message import BrokeredMessage

if TYPE_CHECKING:
    from pathlib import Path


def rows_in(folder: Path, kind: str = "send") -> list[dict[str, Any]]:
    rows = [record for path in sorted(folder.glob(f"*{SUFFIX}")) for record in read(path).to_pylist()]
    return [row for row in rows if row["kind"] == kind]


def test_a_message_that_the_primary_accepted_is_written_as_sent(tmp_path: Path) -> None:
    async def scenario(pair: FakePair) -> None:
        await pair.sender("orders").send(BrokeredMessage(message_id="one", session_id="s"))
        await pair.sender("orders").send_batch([BrokeredMessage(message_id="two"), BrokeredMessage(message_id="three")])

    run_scenario(scenario, journal_dir=tmp_path)
    rows = rows_in(tmp_path)
    assert [(row["message_id"], row["session_id"], row["outcome"]) for row in rows] == [
        ("one", "s", "sent"),
        ("two", None, "sent"),
        ("three", None, "sent"),
    ]
    assert {(row["entity"], row["namespace"], row["client_id"]) for row in rows} == {
        ("orders", "127.0.0.1:1", "client-1")
    }


def test_a_message_that_was_held_and_then_accepted_is_written_once(tmp_path: Path) -> None:
    async def scenario(pair: FakePair) -> None:
        await pair.sender("orders", [ConnectionFailed("refused")]).send(BrokeredMessage(message_id="one"))

    run_scenario(scenario, journal_dir=tmp_path, failover_interval=60, hold_during_failover_interval=True)
    (row,) = rows_in(tmp_path)
    assert (row["message_id"], row["outcome"]) == ("one", "sent")


def test_a_message_that_was_parked_is_written_once_with_its_backlog_queue(tmp_path: Path) -> None:
    async def scenario(pair: FakePair) -> None:
        pair.set_parking_outcomes()
        await pair.sender("orders", [ConnectionFailed("refused")]).send(BrokeredMessage(message_id="one"))

    run_scenario(scenario, journal_dir=tmp_path, backlog_queue_count=1)
    (row,) = rows_in(tmp_path)
    assert (row["message_id"], row["outcome"], row["backlog_queue"]) == ("one", "parked", QUEUE_0)
    outcomes = [event["outcome"] for event in rows_in(tmp_path, "event")]
    assert outcomes == ["suspected", "failed over"]


@pytest.mark.parametrize(
    ("primary", "backlog", "outcome"),
    [
        ([EntityDisabled("no")], [], "failed"),
        ([ConnectionFailed("refused")], [ServiceBusError("full")], "failed"),
        ([TimedOut("late", was_sent=True)], [ServiceBusError("full")], "unknown"),
        ([ConnectionFailed("refused")], [TimedOut("late", was_sent=True)], "unknown"),
        ([asyncio.CancelledError()], [], "unknown"),
    ],
)
def test_a_failed_send_is_written_as_unknown_if_the_message_may_have_been_stored(
    tmp_path: Path, primary: list[BaseException], backlog: list[BaseException], outcome: str
) -> None:
    async def scenario(pair: FakePair) -> None:
        pair.set_parking_outcomes(backlog)
        with pytest.raises(NotSent if backlog else type(primary[0])):
            await pair.sender("orders", primary).send(BrokeredMessage(message_id="one"))

    run_scenario(scenario, journal_dir=tmp_path, backlog_queue_count=1)
    (row,) = rows_in(tmp_path)
    assert (row["message_id"], row["outcome"]) == ("one", outcome)
    assert row["reason"].startswith("NotSent: " if backlog else f"{type(primary[0]).__name__}: ")


def test_the_factories_of_a_closed_pair_have_no_listeners(tmp_path: Path) -> None:
    async def scenario(pair: FakePair) -> None:
        factories = (pair.pairing.primary, pair.pairing.secondary)
        assert all(factory.events.listened_kinds for factory in factories)
        await pair.pairing.close()
        assert not any(factory.events.listened_kinds for factory in factories)

    run_scenario(scenario, journal_dir=tmp_path)


def test_a_pairing_that_failed_leaves_no_journal_open(tmp_path: Path) -> None:
    async def scenario(_: FakePair) -> None:
        raise AssertionError("the pairing did not fail")

    with pytest.raises(PairingFailed):
        run_scenario(scenario, journal_dir=tmp_path, backlog=FakeBacklog(is_down=True))
    assert not [thread.name for thread in threading.enumerate() if thread.name == "twinbus-journal"]


def test_without_journal_dir_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    async def scenario(pair: FakePair) -> None:
        await pair.sender("orders").send(BrokeredMessage())
        assert not pair.pairing.primary.events.listened_kinds

    run_scenario(scenario)
    assert list(tmp_path.iterdir()) == []
