"""A report is forgotten three of its intervals after it came, and there is a limit to how many there are."""

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


class Register:
    """The reports of a namespace whose clock is set by hand."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.timers = Timers(self.clock)
        self.pairings = ReportStore(self.clock, self.timers)

    def put(self, **changed: object) -> None:
        self.pairings.put(parse_report(make_report(**changed)))

    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.timers.run_due()

    def found(self) -> list[dict[str, Any]]:
        page = self.pairings.read(lambda _: True, top=report_store.MAX_PAGE_REPORTS)
        return [msgspec.json.decode(content) for content in page.reports]

    def clients(self) -> list[str]:
        return [one["client"] for one in self.found()]


def test_three_intervals_of_its_own_are_what_a_report_lasts() -> None:
    register = Register()
    register.put(client="quick", report_interval_s=10)
    register.put(client="slow", report_interval_s=60)
    register.wait(29.9)
    assert register.clients() == ["quick", "slow"]
    register.wait(0.1)
    assert register.clients() == ["slow"]
    register.wait(150)
    assert register.clients() == []


def test_a_new_report_begins_anew_with_its_own_interval() -> None:
    register = Register()
    register.put(client="a", report_interval_s=1_800)
    register.wait(1_000)
    register.put(client="a", report_interval_s=1)
    register.wait(2.9)
    register.put(client="a", report_interval_s=2)
    register.wait(5.9)
    assert register.clients() == ["a"]
    register.wait(0.1)
    assert register.clients() == []


def test_a_report_that_does_not_say_when_the_next_one_comes_lasts_three_ping_intervals() -> None:
    register = Register()
    register.put(client="old", ping_interval_s=10, report_interval_s=None)
    register.wait(29.9)
    assert register.clients() == ["old"]
    register.wait(0.1)
    assert register.clients() == []


def test_a_client_that_leaves_is_forgotten_at_once_and_its_bytes_are_free() -> None:
    register = Register()
    register.put(client="a")
    register.put(client="a", instance="another")
    register.pairings.remove(parse_departure({"client": "a", "primary": "CONTOSO", "instance": "another"}))
    assert [one["instance"] for one in register.found()] == [INSTANCE]
    register.pairings.remove(parse_departure(register.found()[0]))
    register.pairings.remove(parse_departure({"client": "unknown", "primary": "contoso"}))
    assert register.found() == []
    register.put(client="a")
    assert len(register.pairings) == 1


def test_the_wall_clock_makes_nobody_forget() -> None:
    register = Register()
    register.put(client="a", report_interval_s=10)
    register.clock.set_wall_ms(register.clock.wall_ms() + 86_400_000)
    register.timers.run_due()
    assert register.clients() == ["a"]


def test_what_is_forgotten_takes_no_memory_though_nobody_reads() -> None:
    register = Register()
    for number in range(100):
        register.put(client=f"c-{number}", report_interval_s=1 + number % 10)
    register.wait(30)
    assert len(register.pairings) == 0
    assert register.timers.due_in_s() is None


def test_however_often_a_client_reports_one_timer_is_set() -> None:
    register = Register()
    for _ in range(1_000):
        register.put(client="a", report_interval_s=1_800)
    calls = 0
    while (due_in_s := register.timers.due_in_s()) is not None:
        calls += 1
        register.wait(due_in_s)
    assert calls == 1


def test_there_is_a_limit_of_clients_and_room_again_when_one_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    assert report_store.MAX_CLIENTS == 10_000
    monkeypatch.setattr(report_store, "MAX_CLIENTS", 3)
    register = Register()
    for client in ("a", "b", "c"):
        register.put(client=client, report_interval_s=10)
    with pytest.raises(QuotaExceeded, match="clients have reported"):
        register.put(client="d")
    register.put(client="c", report_interval_s=60)
    register.wait(30)
    register.put(client="d")
    assert register.clients() == ["c", "d"]


def test_there_is_a_limit_to_all_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_store, "MAX_TOTAL_BYTES", 10_000)
    register = Register()
    register.put(client="a", alarms=["x" * 4_000], report_interval_s=10)
    register.put(client="a", alarms=["x" * 4_000] * 2, report_interval_s=10)
    with pytest.raises(QuotaExceeded, match="all reports together"):
        register.put(client="b", alarms=["x" * 4_000])
    register.put(client="c")
    register.wait(30)
    register.put(client="b", alarms=["x" * 4_000])
    assert register.clients() == ["b", "c"]
