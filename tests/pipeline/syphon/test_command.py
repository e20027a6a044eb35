"""`twinbus pipeline syphon`: its errors for invalid arguments, and its exit codes."""

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
REMOTE = f"Endpoint=sb://contoso.example/;SharedAccessKeyName=all;SharedAccessKey={KEY}"
LOCAL = f"Endpoint=sb://127.0.0.1:1/;SharedAccessKeyName=all;SharedAccessKey={KEY};UseDevelopmentEmulator=true"


def invoke(*arguments: str) -> Result:
    result = CliRunner().invoke(app, ["pipeline", "syphon", *arguments])
    assert KEY not in result.output
    return result


@pytest.fixture
def set_report(monkeypatch: pytest.MonkeyPatch) -> Callable[[Report], None]:
    return lambda report: monkeypatch.setattr(syphon, "_run", lambda _wanted, _master: report)


def report(left: int | None, *, is_finished: bool, write_error: str | None = None) -> Report:
    rows = [ReportRow("contoso/x-servicebus-transfer/0", "orders", 1_234, 5, left, None, None, 2, left == 0, "too bad")]
    return Report(rows, is_finished=is_finished, reason="nothing has moved for 60 s", write_error=write_error)


def test_an_unreachable_secondary_is_named_before_spark_is_started() -> None:
    result = invoke(REMOTE, LOCAL, LOCAL, "--available-now")
    assert result.exit_code == 1
    assert "twinbus pipeline syphon: " in result.output
    assert "127.0.0.1" in result.output


def test_a_primary_without_a_name_needs_the_option() -> None:
    result = invoke(LOCAL, LOCAL, LOCAL)
    assert result.exit_code == 1
    assert "set --primary-name" in result.output


def test_a_wrong_connection_string_is_refused() -> None:
    result = invoke("--connection-string", "nonsense", "--secondary-connection-string", LOCAL)
    assert result.exit_code == 2
    assert "--connection-string: unknown field" in result.output


def test_an_invalid_certificate_file_is_refused(tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.mktemp("trust") / "ca.pem"
    file.write_text("nonsense")
    assert invoke(REMOTE, LOCAL, LOCAL, "--ca-file", str(file)).exit_code == 1


def test_the_exit_code_is_0_if_all_messages_were_moved(set_report: Callable[[Report], None]) -> None:
    set_report(report(0, is_finished=True))
    result = invoke(REMOTE, LOCAL, LOCAL, "--available-now")
    assert result.exit_code == 0
    assert "1,234 messages were moved, 5 dead-lettered." in result.output


@pytest.mark.parametrize(
    ("left", "output"), [(7, "7 messages are left"), (None, "an unknown number of messages are left")]
)
def test_the_exit_code_is_2_if_messages_are_left(
    set_report: Callable[[Report], None], left: int | None, output: str
) -> None:
    set_report(report(left, is_finished=False))
    result = invoke(REMOTE, LOCAL, LOCAL, "--available-now")
    assert result.exit_code == 2
    assert f"{output}: nothing has moved for 60 s" in result.output
    assert "too" in result.output
    assert ">=1,234" in result.output, "a task was lost"


def test_the_exit_code_is_0_if_messages_are_left_after_a_stop(set_report: Callable[[Report], None]) -> None:
    set_report(report(7, is_finished=False))
    assert invoke(REMOTE, LOCAL, LOCAL).exit_code == 0


def test_the_exit_code_is_1_if_the_report_was_not_written(set_report: Callable[[Report], None]) -> None:
    set_report(report(0, is_finished=True, write_error="/nowhere: it is full"))
    result = invoke(REMOTE, LOCAL, LOCAL, "--report", "/nowhere")
    assert result.exit_code == 1
    assert "the report was not written to /nowhere: it is full" in result.output
