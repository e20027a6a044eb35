"""`twinbus pipeline costs`, as it is typed."""

from __future__ import annotations

import datetime as dt
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from tests.pipeline.costs.conftest import session_of
from twinbus.cli.main import app
from twinbus.pipeline import spark as spark_module
from twinbus.pipeline.costs import report
from twinbus.pipeline.costs.bill import BillingTerms
from twinbus.pipeline.costs.operation_kinds import Period
from twinbus.pipeline.costs.report import CostReportSettings
from twinbus.pipeline.costs.tariff import read_tariff
from twinbus.pipeline.errors import PipelineError

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession
    from typer.testing import Result

WITHOUT_SPARK = """
import sys
for name in ("pyspark", "pyarrow"):
    sys.modules[name] = None
from twinbus.cli.main import app
app(["pipeline", "costs", *sys.argv[1:]])
"""


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["pipeline", "costs", *arguments])


@pytest.fixture
def here(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command takes the session that there is: a process has one."""
    monkeypatch.setattr(spark_module, "session", lambda *_, **__: session_of(spark))


def test_a_prediction_needs_neither_spark_nor_java(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    arguments = ["--what-if", "--outage-minutes", "45", "--clients", "8", "--factories", "2", "--entities", "12"]
    environment = {**os.environ, "PATH": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    environment.pop("JAVA_HOME", None)
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_SPARK, *arguments, "--html", str(page)],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "8,640" in done.stdout
    assert "28,800" in done.stdout
    assert "What a pair of namespaces would cost" in page.read_text()


def test_a_file_describes_the_pair_and_options_win_over_it(tmp_path: Path) -> None:
    file = tmp_path / "pair.toml"
    file.write_text("queues = 5\nhosts = 4\n")
    done = run("--what-if", "--setup", str(file), "--queues", "10", "--parked", "0.5", "--no-failed-calls")
    assert done.exit_code == 0, done.output
    assert "115,200" in done.output  # 10 queues, 4 hosts


def test_an_own_tariff_is_taken(tmp_path: Path) -> None:
    done = run("--what-if", "--tariff", str(tmp_path / "absent.toml"))
    assert done.exit_code == 1
    assert "absent.toml cannot be read" in done.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "name the data folders of servers"),
        (("--what-if", "data", "--journals", "x"), "DATA, --journals is not for a prediction"),
        (("data", "--queues", "5", "--setup", "x.toml"), "--setup, --queues is for a prediction: say --what-if"),
        (("data", "--since", "yesterday"), "--since yesterday: is to be a time such as 2026-11-01"),
        (("--what-if", "--size", "0", "--days", "0"), "days = 0: is to be a whole number from 1"),
    ],
)
def test_what_cannot_be_is_said_in_a_sentence(arguments: tuple[str, ...], said: str) -> None:
    done = run(*arguments)
    assert done.exit_code == 1
    assert done.output.startswith("twinbus pipeline costs: ")
    assert said in done.output


@pytest.mark.usefixtures("here")
def test_what_is_typed_is_what_a_bill_is_made_by(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[CostReportSettings] = []

    def explain(_spark: SparkSession, wanted: CostReportSettings, _tell: object) -> None:
        asked.append(wanted)
        raise PipelineError("that is enough")

    monkeypatch.setattr(report, "explain", explain)
    places = ["contoso", "backup", "--journals", "audit", "--parquet", "focus"]
    done = run(*places, "--since", "2026-10-01", "--until", "2026-11-01", "--period", "hour", "--no-failed-calls")
    assert "that is enough" in done.output
    october, november = (dt.datetime(2026, month, 1, tzinfo=dt.UTC) for month in (10, 11))
    terms = BillingTerms(tariff=read_tariff(), period=Period.HOUR, since=october, until=november, bills_failed=False)
    assert asked == [
        CostReportSettings(
            usage_folders=["contoso", "backup"], journal_folders=["audit"], parquet_folder="focus", terms=terms
        )
    ]


@pytest.mark.usefixtures("here")
def test_folders_that_are_not_there_are_named(tmp_path: Path) -> None:
    done = run(str(tmp_path / "absent"))
    assert done.exit_code == 1
    assert "absent is no folder" in done.output
