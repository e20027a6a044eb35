"""An outage of the queue `orders` of contoso, as usage of the servers and journals of the clients."""

from __future__ import annotations

import contextlib
import datetime as dt
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from tests.pipeline.costs.recorded_usage import NOON, JournalRecorder, UsageRecorder, usage_row
from twinbus.cli.main import app
from twinbus.pipeline import spark as spark_module
from twinbus.pipeline.costs import report

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession
    from typer.testing import Result

    from twinbus.pipeline.costs.report import CostReport, CostReportSettings

BACKLOG = "contoso/x-servicebus-transfer/3"
PARKED = 1_000
DIRECT = 4_000


@dataclass
class Outage:
    """The data folders of the servers, and the folder of the journals."""

    data: list[str]
    journals: str


@pytest.fixture(scope="session")
def outage(tmp_path_factory: pytest.TempPathFactory) -> Outage:
    """4,000 messages sent to orders, 1,000 parked and moved back, and all received; a topic with two subscriptions."""
    folder = tmp_path_factory.mktemp("outage")
    return Outage(write_usage(folder), write_journals(folder))


@dataclass
class ExplainedBill:
    """The output of `twinbus pipeline costs` for the outage."""

    report: CostReport
    result: Result
    page: Path
    focus: Path


@pytest.fixture(scope="session")
def explained(spark: SparkSession, outage: Outage, tmp_path_factory: pytest.TempPathFactory) -> ExplainedBill:
    """Run the command once for all tests, since it is slow."""
    folder = tmp_path_factory.mktemp("explained")
    page, focus = folder / "costs.html", folder / "focus"
    reports: list[CostReport] = []

    def explain(spark: SparkSession, settings: CostReportSettings, on_progress: Callable[[str], None]) -> CostReport:
        reports.append(real_explain(spark, settings, on_progress))
        return reports[-1]

    real_explain = report.explain
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spark_module, "session", lambda *_, **__: session_of(spark))
        patch.setattr(report, "explain", explain)
        options = ["--journals", outage.journals, "--parquet", str(focus), "--html", str(page)]
        result = CliRunner().invoke(app, ["pipeline", "costs", *outage.data, *options])
    assert result.exit_code == 0, result.output
    return ExplainedBill(reports[0], result, page, focus)


@contextlib.contextmanager
def session_of(spark: SparkSession) -> Iterator[SparkSession]:
    """Give a command the existing session, since a process has only one."""
    yield spark


def write_usage(folder: Path) -> list[str]:
    primary = UsageRecorder(folder / "contoso", "contoso")
    secondary = UsageRecorder(folder / "contoso-backup", "contoso-backup")
    sent = {"sends": DIRECT, "send_units": DIRECT, "send_bytes": DIRECT * 1000}
    primary.record_minute(NOON, usage_row("orders", **sent), usage_row("", management=2), connections=3, mark="begin")
    secondary.record_minute(NOON, usage_row("", management=11), connections=2, mark="begin")
    parked = {"sends": PARKED, "send_units": PARKED + 10, "send_bytes": PARKED * 1100}
    failed_over = NOON + dt.timedelta(minutes=3)
    secondary.record_minute(failed_over, usage_row(BACKLOG, **parked), connections=4)
    restored = NOON + dt.timedelta(minutes=61)
    received_back = {
        "receives": PARKED,
        "receive_units": PARKED + 10,
        "receive_bytes": PARKED * 1100,
        "settlements": PARKED,
    }
    secondary.record_minute(restored, usage_row(BACKLOG, "syphon", empty_receives=7, **received_back), connections=2)
    moved = {"sends": PARKED, "send_units": PARKED, "send_bytes": PARKED * 1000}
    everything = DIRECT + PARKED
    received = {"receives": everything, "receive_units": everything, "receive_bytes": everything * 1000}
    primary.record_minute(
        restored,
        usage_row("orders", "syphon", **moved),
        usage_row("orders", pings=1),
        usage_row("orders", "billing", settlements=everything, empty_receives=2, **received),
        usage_row("news", sends=10, send_units=10),
        usage_row("news/Subscriptions/all", "reader", receives=20, receive_units=20, settlements=20),
        usage_row("orders/$DeadLetterQueue", "operator", peeks=1),
        connections=5,
    )
    primary.end(NOON + dt.timedelta(minutes=70))
    primary.roll()
    return [str(folder / "contoso"), str(folder / "contoso-backup")]


def write_journals(folder: Path) -> str:
    client = JournalRecorder(folder / "journals", "shop")
    client.add_row(NOON + dt.timedelta(minutes=2), "suspected")
    client.add_row(NOON + dt.timedelta(minutes=3), "failed over", reason="TimedOut: no answer")
    client.add_row(NOON + dt.timedelta(minutes=3), "parked", kind="send", backlog_queue=BACKLOG, count=PARKED)
    for minute in range(4, 60):
        client.add_row(NOON + dt.timedelta(minutes=minute), "pinged", reason="TimedOut: no answer")
    client.add_row(NOON + dt.timedelta(minutes=60), "pinged")
    client.add_row(NOON + dt.timedelta(minutes=60), "restored")
    client.write_file()
    syphon = JournalRecorder(folder / "journals", "syphon")
    syphon.add_row(NOON + dt.timedelta(minutes=61), "moved back", backlog_queue=BACKLOG, count=PARKED)
    syphon.write_file()
    return str(folder / "journals")
