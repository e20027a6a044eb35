"""Each event of a pair is one log record with structured fields, which contains no message body and no key."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from tests.client.pairing.observe.fake_pair import QUEUE_0, FakePair, run_scenario
from twinbus.client.errors import ConnectionFailed
from twinbus.client.pairing import EventKind
from twinbus.client.pairing.observe.event_publisher import LOG_LEVELS
from twinbus.model.errors import QuotaExceeded
from twinbus.model.message import BrokeredMessage

if TYPE_CHECKING:
    import pytest

NAME = "twinbus.client.pairing"


def records(caplog: pytest.LogCaptureFixture) -> list[Any]:
    return [record for record in caplog.records if record.name == NAME]


def test_every_kind_of_event_has_a_level() -> None:
    assert set(LOG_LEVELS) == set(EventKind)


def test_a_change_of_state_is_one_record_with_its_fields(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(pair: FakePair) -> None:
        pair.fail_over("orders")

    with caplog.at_level(logging.INFO):
        run_scenario(scenario, failover_interval=60)
    (record,) = records(caplog)
    assert (record.levelname, record.getMessage()) == ("WARNING", "'orders' is suspect: it is gone")
    assert (record.event, record.path, record.state, record.reason) == ("suspected", "orders", "suspect", "it is gone")
    assert not hasattr(record, "backlog_queue")


def test_a_parked_message_is_logged_at_debug_without_its_body(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(pair: FakePair) -> None:
        pair.set_parking_outcomes()
        message = BrokeredMessage("the secret body", message_id="one", properties={"name": "secret property"})
        await pair.sender("orders", [ConnectionFailed("gone")]).send(message)

    with caplog.at_level(logging.DEBUG):
        run_scenario(scenario, backlog_queue_count=1)
    (parked,) = [record for record in records(caplog) if record.event == "parked"]
    assert parked.levelname == "DEBUG"
    assert (parked.path, parked.backlog_queue, parked.message_id) == ("orders", QUEUE_0, "one")
    everything = " ".join(str(vars(record)) for record in caplog.records)
    assert "secret" not in everything
    assert "c2Vj" not in everything, "the key of the factories"


def test_there_are_as_many_records_as_events(caplog: pytest.LogCaptureFixture) -> None:
    event_kinds: list[str] = []

    async def scenario(pair: FakePair) -> None:
        pair.set_parking_outcomes([QuotaExceeded("full"), None])
        await pair.sender("orders", [ConnectionFailed("gone")]).send(BrokeredMessage())
        pair.pairing.mark_path_healthy("orders")
        event_kinds.extend(pair.event_kinds())

    with caplog.at_level(logging.DEBUG):
        run_scenario(scenario)
    assert event_kinds == ["suspected", "failed over", "backlog queue out of rotation", "parked", "restored"]
    assert [record.event for record in records(caplog)] == event_kinds


def test_events_of_single_messages_are_not_logged_at_info(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(pair: FakePair) -> None:
        for kind in (EventKind.PARKED, EventKind.MOVED, EventKind.DEFERRED, EventKind.PINGED):
            pair.pairing.event_publisher.emit(kind, path="orders")

    with caplog.at_level(logging.INFO):
        run_scenario(scenario)
    assert records(caplog) == []
