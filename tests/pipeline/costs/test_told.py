"""What is told of a bill: on the screen and on the page, whatever it holds. Spark is not asked."""

from __future__ import annotations

import datetime as dt
import io
from decimal import Decimal
from typing import Any

from rich.console import Console

from tests.pipeline.costs.recorded import NOON
from tests.pipeline.costs.test_page import EVIL, read
from twinbus.cli.pipeline.costs import show
from twinbus.pipeline.costs.account import Account, Day
from twinbus.pipeline.costs.bill import Month, Terms
from twinbus.pipeline.costs.charges import Charges, Stage
from twinbus.pipeline.costs.clients import Clients
from twinbus.pipeline.costs.explained import tell_report
from twinbus.pipeline.costs.outages import Outage
from twinbus.pipeline.costs.page import write_page
from twinbus.pipeline.costs.pulse import Gap, Pulse
from twinbus.pipeline.costs.report import Entity, Parked, Report
from twinbus.pipeline.costs.tariff import read_tariff

NOWHERE: Any = None
OUTAGE = Outage(
    namespace="contoso",
    path=EVIL,
    since=NOON,
    until=NOON + dt.timedelta(hours=2, minutes=5),
    is_over=False,
    clients=8,
    pings=8_640,
    parked=1_000,
    charges=Charges(12_640, 14_640),
    extra=Charges(10_640, 11_640),
    cost=Decimal("0.0117"),
)


def make_report(*, days: int = 40, clients: Clients | None = None, **changed: Any) -> Report:  # noqa: ANN401
    stages = {
        Stage.SEND_TO_BACKLOG: Charges(1_000, 1_000),
        Stage.RECEIVE_FROM_BACKLOG: Charges(1_000, 2_000),
        Stage.SEND_TO_PRIMARY: Charges(1_000, 1_000),
        Stage.RECEIVE_FROM_PRIMARY: Charges(1_000, 2_000),
        Stage.NOT_PARKED: Charges(60_000_000, 90_000_000),
        Stage.PING: Charges(8_640, 8_640),
        Stage.IDLE_SYPHON: Charges(28_800, 28_800),
    }
    months = (
        Month(begins=dt.date(2026, 10, 1), charges=Charges(40_000_000, 60_000_000), hourly_peaks=2_000 * 744),
        Month(begins=dt.date(2026, 11, 1), charges=Charges(20_043_640, 30_043_440), egress_bytes=2**30),
    )
    begins = NOON.date()
    gaps = (Gap("contoso", 0, "5f1c", NOON, f"ended without a last word {EVIL}"),)
    account = Account(
        terms=Terms(tariff=read_tariff()),
        rows=NOWHERE,
        days=tuple(
            Day(begins + dt.timedelta(days=day), stage, "x", "servers", charges, 1, 0, (0.0, 0.0, 0.0))
            for day in range(days)
            for stage, charges in stages.items()
        ),
        months=months,
        pulse=Pulse(NOON, NOON + dt.timedelta(days=days), 3, gaps, 1, {}),
        clients=clients,
        parked_by="moved back",
    )
    told: dict[str, Any] = {
        "account": account,
        "stages": {**dict.fromkeys(Stage, Charges()), **stages},
        "costs": dict.fromkeys(Stage, Decimal("0.01")),
        "parked": Parked(messages=1_000, charges=Charges(4_000, 6_000)),
        "not_parked": Parked(messages=30_000_000, charges=Charges(60_000_000, 90_000_000)),
        "unseen_pings": 8_600,
        "entities": tuple(
            Entity(namespace="contoso", path=path, sent=9, received=8, charges=Charges(7, 6), cost=Decimal("0.5"))
            for path in ("orders", "", EVIL)
        ),
        "entity_count": 300,
        "timeline": {
            begins + dt.timedelta(days=day): {stage: one.operation * (day % 7 + 1) for stage, one in stages.items()}
            for day in range(days)
        },
        "outages": (OUTAGE,),
        "outage_count": 250,
        "outside": 17,
    }
    return Report(**{**told, **changed})


def on_screen(report: Report) -> str:
    console = Console(file=io.StringIO(), width=220)
    show(tell_report(report), console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def texts_of(report: Report) -> str:
    return " ".join(read(write_page(tell_report(report), "today")).texts)


def test_screen_and_page_say_the_same() -> None:
    report = make_report(clients=Clients(NOWHERE, NOWHERE, {"rows lost": 5}))
    for told in (on_screen(report), texts_of(report)):
        for said in (
            "send to backlog",
            "receive from primary",
            "idle syphon",
            "28,800",
            "8,600 pings reached no server",
            "over 2 h 05 min",
            "The 1 dearest of 250",
            "17 messages were parked outside of these",
            "The 3 with the most charges, of 300",
            "5 rows of clients' journals were lost",
            "Usage may be missing: one life",
            "ended without a last word",
            "4.00",
            "6.00",
        ):
            assert said in told


def test_names_that_came_from_elsewhere_are_text() -> None:
    report = make_report(clients=Clients(NOWHERE, NOWHERE, {}))
    page = write_page(tell_report(report), "today")
    assert "<script" not in page
    assert EVIL in texts_of(report)
    assert f"contoso/{EVIL}"[:20] in on_screen(report)


def test_without_journals_outages_are_not_spoken_of() -> None:
    told = on_screen(make_report(outages=(), outage_count=0, outside=0))
    assert "Without the clients' journals outages are not known" in told
    assert "lasted" not in told


def test_with_journals_that_tell_of_none_that_is_said() -> None:
    told = on_screen(make_report(clients=Clients(NOWHERE, NOWHERE, {}), outages=(), outage_count=0, outside=0))
    assert "No client told of one in this time" in told


def test_what_the_pair_added_is_what_the_bills_would_be_lower_by() -> None:
    report = make_report()
    extra = Charges(2_000 + 8_640 + 28_800, 3_000 + 8_640 + 28_800)
    assert report.pairing == extra
    # All of it is in the tier of 0.80 a million; parts of an operation are not charged in either month.
    for model, saved in report.saved_without.items():
        assert abs(saved - extra.by(model) * Decimal("0.0000008")) < Decimal("0.000002")


def test_a_single_day_has_no_line() -> None:
    assert "Over time" not in on_screen(make_report(days=1, timeline={NOON.date(): {Stage.PING: 5}}))
    assert "Over time" in on_screen(make_report())
