"""`twinbus pipeline costs`: its options, predictions without Spark, and error messages."""

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
def existing_session(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the command use the existing session, since a process has only one."""
    monkeypatch.setattr(spark_module, "session", lambda *_, **__: session_of(spark))


def test_a_prediction_needs_neither_spark_nor_java(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    arguments = ["--what-if", "--outage-minutes", "45", "--clients", "8", "--factories", "2", "--entities", "12"]
    environment = {**os.environ, "PATH": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    environment.pop("JAVA_HOME", None)
    result = subprocess.run(
        [sys.executable, "-c", WITHOUT_SPARK, *arguments, "--html", str(page)],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "8,640" in result.stdout
    assert "28,800" in result.stdout
    assert "What a pair of namespaces would cost" in page.read_text()


def test_a_file_describes_the_pair_and_options_win_over_it(tmp_path: Path) -> None:
    file = tmp_path / "pair.toml"
    file.write_text("queues = 5\nhosts = 4\n")
    result = run("--what-if", "--setup", str(file), "--queues", "10", "--parked", "0.5", "--no-failed-calls")
    assert result.exit_code == 0, result.output
    assert "115,200" in result.output  # 10 queues, 4 hosts


def test_a_missing_tariff_file_is_named(tmp_path: Path) -> None:
    result = run("--what-if", "--tariff", str(tmp_path / "absent.toml"))
    assert result.exit_code == 1
    assert "absent.toml cannot be read" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give the data directories of servers"),
        (("--what-if", "data", "--journals", "x"), "DATA, --journals cannot be used with --what-if"),
        (("data", "--queues", "5", "--setup", "x.toml"), "--setup, --queues is only for predictions: add --what-if"),
        (("data", "--since", "yesterday"), "--since yesterday: give a time such as 2026-11-01"),
        (("--what-if", "--size", "0", "--days", "0"), "days = 0: must be a whole number from 1"),
    ],
)
def test_invalid_arguments_are_refused_with_one_sentence(arguments: tuple[str, ...], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 1
    assert result.output.startswith("twinbus pipeline costs: ")
    assert message in result.output


@pytest.mark.usefixtures("existing_session")
def test_the_options_become_the_settings_of_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    received: list[CostReportSettings] = []

    def explain(_spark: SparkSession, settings: CostReportSettings, _tell: object) -> None:
        received.append(settings)
        raise PipelineError("that is enough")

    monkeypatch.setattr(report, "explain", explain)
    folders = ["contoso", "backup", "--journals", "audit", "--parquet", "focus"]
    result = run(*folders, "--since", "2026-10-01", "--until", "2026-11-01", "--period", "hour", "--no-failed-calls")
    assert "that is enough" in result.output
    october, november = (dt.datetime(2026, month, 1, tzinfo=dt.UTC) for month in (10, 11))
    terms = BillingTerms(tariff=read_tariff(), period=Period.HOUR, since=october, until=november, bills_failed=False)
    assert received == [
        CostReportSettings(
            usage_folders=["contoso", "backup"], journal_folders=["audit"], parquet_folder="focus", terms=terms
        )
    ]


@pytest.mark.usefixtures("existing_session")
def test_missing_folders_are_named(tmp_path: Path) -> None:
    result = run(str(tmp_path / "absent"))
    assert result.exit_code == 1
    assert "absent is not a folder" in result.output
