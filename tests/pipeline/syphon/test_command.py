"""`twinbus pipeline syphon`: what it answers to wrong words, and its exit codes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from twinbus.cli.main import app
from twinbus.cli.pipeline import syphon
from twinbus.pipeline.syphon import Report
from twinbus.pipeline.syphon.report import ReportRow

if TYPE_CHECKING:
    from collections.abc import Callable

    from typer.testing import Result

KEY = "c2VjcmV0IG9mIHRoaXMgdGVzdA=="
THERE = f"Endpoint=sb://contoso.example/;SharedAccessKeyName=all;SharedAccessKey={KEY}"
HERE = f"Endpoint=sb://127.0.0.1:1/;SharedAccessKeyName=all;SharedAccessKey={KEY};UseDevelopmentEmulator=true"


def invoke(*words: str) -> Result:
    result = CliRunner().invoke(app, ["pipeline", "syphon", *words])
    assert KEY not in result.output
    return result


@pytest.fixture
def ended_with(monkeypatch: pytest.MonkeyPatch) -> Callable[[Report], None]:
    return lambda report: monkeypatch.setattr(syphon, "_run", lambda _wanted, _master: report)


def report(left: int | None, *, is_over: bool, failure: str | None = None) -> Report:
    rows = [ReportRow("contoso/x-servicebus-transfer/0", "orders", 1_234, 5, left, None, None, 2, left == 0, "too bad")]
    return Report(rows, is_finished=is_over, reason="nothing has moved for 60 s", write_error=failure)


def test_a_secondary_that_is_not_reached_is_named_before_spark_is_started() -> None:
    result = invoke(THERE, HERE, HERE, "--available-now")
    assert result.exit_code == 1
    assert "twinbus pipeline syphon: " in result.output
    assert "127.0.0.1" in result.output


def test_a_primary_without_a_name_has_to_be_named() -> None:
    result = invoke(HERE, HERE, HERE)
    assert result.exit_code == 1
    assert "say --primary-name" in result.output


def test_a_wrong_connection_string_is_refused() -> None:
    assert invoke("nonsense", HERE, HERE).exit_code == 1


def test_a_file_that_is_no_certificate_is_refused(tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.mktemp("trust") / "ca.pem"
    file.write_text("nonsense")
    assert invoke(THERE, HERE, HERE, "--ca-file", str(file)).exit_code == 1


def test_it_ends_with_0_when_all_is_back(ended_with: Callable[[Report], None]) -> None:
    ended_with(report(0, is_over=True))
    result = invoke(THERE, HERE, HERE, "--available-now")
    assert result.exit_code == 0
    assert "1,234 messages were moved, 5 dead-lettered." in result.output


@pytest.mark.parametrize(
    ("left", "said"), [(7, "7 messages are left"), (None, "an unknown number of messages are left")]
)
def test_it_ends_with_2_when_messages_are_left(
    ended_with: Callable[[Report], None], left: int | None, said: str
) -> None:
    ended_with(report(left, is_over=False))
    result = invoke(THERE, HERE, HERE, "--available-now")
    assert result.exit_code == 2
    assert f"{said}: nothing has moved for 60 s" in result.output
    assert "too" in result.output
    assert ">=1,234" in result.output, "a task was lost"


def test_messages_that_are_left_when_it_is_stopped_are_no_failure(ended_with: Callable[[Report], None]) -> None:
    ended_with(report(7, is_over=False))
    assert invoke(THERE, HERE, HERE).exit_code == 0


def test_it_ends_with_1_when_the_report_was_not_written(ended_with: Callable[[Report], None]) -> None:
    ended_with(report(0, is_over=True, failure="/nowhere: it is full"))
    result = invoke(THERE, HERE, HERE, "--report", "/nowhere")
    assert result.exit_code == 1
    assert "the report was not written to /nowhere: it is full" in result.output
