"""A report expires after three of its report intervals, and the number and size of reports are limited."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.server.paired_clients.client_reports import INSTANCE
from tests.server.paired_clients.reporter import make_report
from twinbus.broker.clock import Timers
from twinbus.model.errors import QuotaExceeded
from twinbus.server.paired_clients import report_store
from twinbus.server.paired_clients.report_format import parse_departure, parse_report
from twinbus.server.paired_clients.report_store import ReportStore
from twinbus.testing.clock import FakeClock


class ExpiringReports:
    """The reports of a namespace with a fake clock."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.timers = Timers(self.clock)
        self.store = ReportStore(self.clock, self.timers)

    def put(self, **changed: object) -> None:
        self.store.put(parse_report(make_report(**changed)))

    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.timers.run_due()

    def reports(self) -> list[dict[str, Any]]:
        page = self.store.read(lambda _: True, top=report_store.MAX_PAGE_REPORTS)
        return [msgspec.json.decode(content) for content in page.reports]

    def clients(self) -> list[str]:
        return [report["client"] for report in self.reports()]


def test_a_report_expires_after_three_of_its_report_intervals() -> None:
    expiring = ExpiringReports()
    expiring.put(client="quick", report_interval_s=10)
    expiring.put(client="slow", report_interval_s=60)
    expiring.wait(29.9)
    assert expiring.clients() == ["quick", "slow"]
    expiring.wait(0.1)
    assert expiring.clients() == ["slow"]
    expiring.wait(150)
    assert expiring.clients() == []


def test_a_new_report_restarts_the_expiry_with_its_own_interval() -> None:
    expiring = ExpiringReports()
    expiring.put(client="a", report_interval_s=1_800)
    expiring.wait(1_000)
    expiring.put(client="a", report_interval_s=1)
    expiring.wait(2.9)
    expiring.put(client="a", report_interval_s=2)
    expiring.wait(5.9)
    assert expiring.clients() == ["a"]
    expiring.wait(0.1)
    assert expiring.clients() == []


def test_a_report_without_report_interval_expires_after_three_ping_intervals() -> None:
    expiring = ExpiringReports()
    expiring.put(client="old", ping_interval_s=10, report_interval_s=None)
    expiring.wait(29.9)
    assert expiring.clients() == ["old"]
    expiring.wait(0.1)
    assert expiring.clients() == []


def test_the_report_of_a_leaving_client_is_removed_at_once() -> None:
    expiring = ExpiringReports()
    expiring.put(client="a")
    expiring.put(client="a", instance="another")
    expiring.store.remove(parse_departure({"client": "a", "primary": "CONTOSO", "instance": "another"}))
    assert [report["instance"] for report in expiring.reports()] == [INSTANCE]
    expiring.store.remove(parse_departure(expiring.reports()[0]))
    expiring.store.remove(parse_departure({"client": "unknown", "primary": "contoso"}))
    assert expiring.reports() == []
    expiring.put(client="a")
    assert len(expiring.store) == 1


def test_a_change_of_the_wall_clock_expires_no_report() -> None:
    expiring = ExpiringReports()
    expiring.put(client="a", report_interval_s=10)
    expiring.clock.set_wall_ms(expiring.clock.wall_ms() + 86_400_000)
    expiring.timers.run_due()
    assert expiring.clients() == ["a"]


def test_expired_reports_are_removed_without_a_read() -> None:
    expiring = ExpiringReports()
    for number in range(100):
        expiring.put(client=f"c-{number}", report_interval_s=1 + number % 10)
    expiring.wait(30)
    assert len(expiring.store) == 0
    assert expiring.timers.due_in_s() is None


def test_a_client_has_one_timer_however_often_it_reports() -> None:
    expiring = ExpiringReports()
    for _ in range(1_000):
        expiring.put(client="a", report_interval_s=1_800)
    calls = 0
    while (due_in_s := expiring.timers.due_in_s()) is not None:
        calls += 1
        expiring.wait(due_in_s)
    assert calls == 1


def test_the_number_of_clients_is_limited_and_expired_reports_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    assert report_store.MAX_CLIENTS == 10_000
    monkeypatch.setattr(report_store, "MAX_CLIENTS", 3)
    expiring = ExpiringReports()
    for client in ("a", "b", "c"):
        expiring.put(client=client, report_interval_s=10)
    with pytest.raises(QuotaExceeded, match="clients have reported"):
        expiring.put(client="d")
    expiring.put(client="c", report_interval_s=60)
    expiring.wait(30)
    expiring.put(client="d")
    assert expiring.clients() == ["c", "d"]


def test_the_total_size_of_all_reports_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_store, "MAX_TOTAL_BYTES", 10_000)
    expiring = ExpiringReports()
    expiring.put(client="a", alarms=["x" * 4_000], report_interval_s=10)
    expiring.put(client="a", alarms=["x" * 4_000] * 2, report_interval_s=10)
    with pytest.raises(QuotaExceeded, match="all reports together"):
        expiring.put(client="b", alarms=["x" * 4_000])
    expiring.put(client="c")
    expiring.wait(30)
    expiring.put(client="b", alarms=["x" * 4_000])
    assert expiring.clients() == ["b", "c"]
