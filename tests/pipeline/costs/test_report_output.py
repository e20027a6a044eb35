"""The report of a bill on the screen and on the page, without Spark."""

from __future__ import annotations

import datetime as dt
import io
from decimal import Decimal
from typing import Any

from rich.console import Console

from tests.pipeline.costs.recorded_usage import NOON
from tests.pipeline.costs.test_html_page import EVIL, read
from twinbus.cli.pipeline.costs import show
from twinbus.pipeline.costs.bill import BillingTerms, MonthlyUsage
from twinbus.pipeline.costs.billing_account import BillingAccount, DailyCharges
from twinbus.pipeline.costs.charges import Charges, Stage
from twinbus.pipeline.costs.client_events import ClientEvents
from twinbus.pipeline.costs.html_page import render_page
from twinbus.pipeline.costs.outages import Outage
from twinbus.pipeline.costs.report import CostReport, EntityCost, MessageCharges
from twinbus.pipeline.costs.report_document import report_document
from twinbus.pipeline.costs.server_activity import ServerActivity, UsageGap
from twinbus.pipeline.costs.tariff import read_tariff

UNUSED: Any = None
OUTAGE = Outage(
    namespace="contoso",
    path=EVIL,
    since=NOON,
    until=NOON + dt.timedelta(hours=2, minutes=5),
    is_over=False,
    client_count=8,
    ping_count=8_640,
    parked_count=1_000,
    charges=Charges(12_640, 14_640),
    extra_charges=Charges(10_640, 11_640),
    cost=Decimal("0.0117"),
)


def make_report(*, days: int = 40, clients: ClientEvents | None = None, **overrides: Any) -> CostReport:  # noqa: ANN401
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
        MonthlyUsage(
            first_day=dt.date(2026, 10, 1), charges=Charges(40_000_000, 60_000_000), hourly_connection_peaks=2_000 * 744
        ),
        MonthlyUsage(first_day=dt.date(2026, 11, 1), charges=Charges(20_043_640, 30_043_440), egress_bytes=2**30),
    )
    first_day = NOON.date()
    gaps = (UsageGap("contoso", 0, "5f1c", NOON, f"ended unexpectedly {EVIL}"),)
    account = BillingAccount(
        terms=BillingTerms(tariff=read_tariff()),
        rows=UNUSED,
        days=tuple(
            DailyCharges(first_day + dt.timedelta(days=day), stage, "x", "servers", charges, 1, 0, (0.0, 0.0, 0.0))
            for day in range(days)
            for stage, charges in stages.items()
        ),
        months=months,
        server_activity=ServerActivity(NOON, NOON + dt.timedelta(days=days), 3, gaps, 1, {}),
        client_events=clients,
        parked_source="moved back",
    )
    fields: dict[str, Any] = {
        "account": account,
        "stage_charges": {**dict.fromkeys(Stage, Charges()), **stages},
        "stage_costs": dict.fromkeys(Stage, Decimal("0.01")),
        "parked": MessageCharges(messages=1_000, charges=Charges(4_000, 6_000)),
        "not_parked": MessageCharges(messages=30_000_000, charges=Charges(60_000_000, 90_000_000)),
        "unreceived_pings": 8_600,
        "entities": tuple(
            EntityCost(namespace="contoso", path=path, sent=9, received=8, charges=Charges(7, 6), cost=Decimal("0.5"))
            for path in ("orders", "", EVIL)
        ),
        "entity_count": 300,
        "timeline": {
            first_day + dt.timedelta(days=day): {
                stage: charges_of_stage.operation * (day % 7 + 1) for stage, charges_of_stage in stages.items()
            }
            for day in range(days)
        },
        "outages": (OUTAGE,),
        "outage_count": 250,
        "parked_outside_outages": 17,
    }
    return CostReport(**{**fields, **overrides})


def on_screen(report: CostReport) -> str:
    console = Console(file=io.StringIO(), width=220)
    show(report_document(report), console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def texts_of(report: CostReport) -> str:
    return " ".join(read(render_page(report_document(report), "today")).texts)


def test_screen_and_page_show_the_same() -> None:
    report = make_report(clients=ClientEvents(UNUSED, UNUSED, {"rows lost": 5}))
    for output in (on_screen(report), texts_of(report)):
        for text in (
            "send to backlog",
            "receive from primary",
            "idle syphon",
            "28,800",
            "8,600 pings reached no server",
            "over 2 h 05 min",
            "The 1 most expensive of 250",
            "17 messages were parked outside these outages",
            "The 3 with the most charges, of 300",
            "5 rows of clients' journals were lost",
            "Usage may be missing: one run",
            "ended unexpectedly",
            "4.00",
            "6.00",
        ):
            assert text in output


def test_external_names_are_escaped() -> None:
    report = make_report(clients=ClientEvents(UNUSED, UNUSED, {}))
    page = render_page(report_document(report), "today")
    assert "<script" not in page
    assert EVIL in texts_of(report)
    assert f"contoso/{EVIL}"[:20] in on_screen(report)


def test_without_journals_no_outage_is_shown() -> None:
    output = on_screen(make_report(outages=(), outage_count=0, parked_outside_outages=0))
    assert "Without the clients' journals, outages" in output
    assert "lasted" not in output


def test_journals_without_an_outage_are_reported_as_such() -> None:
    output = on_screen(
        make_report(clients=ClientEvents(UNUSED, UNUSED, {}), outages=(), outage_count=0, parked_outside_outages=0)
    )
    assert "No client reported an outage in this period" in output


def test_the_cost_of_the_pair_equals_the_savings_without_it() -> None:
    report = make_report()
    extra = Charges(2_000 + 8_640 + 28_800, 3_000 + 8_640 + 28_800)
    assert report.pairing_charges == extra
    # All of it is in the tier of 0.80 a million; parts of an operation are not charged in either month.
    for model, saved in report.savings_without_pair.items():
        assert abs(saved - extra.for_model(model) * Decimal("0.0000008")) < Decimal("0.000002")


def test_a_single_day_has_no_timeline() -> None:
    assert "Over time" not in on_screen(make_report(days=1, timeline={NOON.date(): {Stage.PING: 5}}))
    assert "Over time" in on_screen(make_report())
