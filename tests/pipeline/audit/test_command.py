"""`twinbus pipeline audit`: its output, the named lost and duplicated messages, and its exit codes."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import re
from io import StringIO
from typing import TYPE_CHECKING

import pytest
from rich.console import Console
from typer.testing import CliRunner

from tests.pipeline.audit.audit_inputs import AuditInputs
from tests.support.in_process_server import run_server_in_process
from twinbus.cli.main import app
from twinbus.cli.pipeline.audit_view import show
from twinbus.pipeline.audit.contents import NamespaceAccess
from twinbus.pipeline.audit.inspection import check_access
from twinbus.pipeline.audit.job import AuditSettings
from twinbus.pipeline.audit.report import EXIT_LOST, EXIT_UNKNOWN, AuditResult, NamedMessage, ParkedDurations

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.support.in_process_server import InProcessServer

NOON = dt.datetime(2026, 11, 17, 12, tzinfo=dt.UTC)


def screen_output(result: AuditResult, report: str | None = None) -> str:
    output = StringIO()
    show(result, report, Console(file=output, width=140))
    return output.getvalue()


def named_message(name: str, *, sent: int = 1, came: int = 0, numbers: tuple[int, ...] = ()) -> NamedMessage:
    return NamedMessage("orders", name, "s", sent, came, NOON, "shop", numbers, "copies are missing")


def test_a_lost_message_is_shown_with_its_id_time_and_client() -> None:
    result = AuditResult(
        counts={("orders", "delivered"): 9_999, ("orders", "lost"): 1}, lost=[named_message("order [17]")]
    )
    text = screen_output(result)
    assert "order [17]" in text
    assert "2026-11-17 12:00:00" in text
    assert "shop" in text
    assert "1 of 10,000 messages are LOST." in text
    assert result.exit_code == EXIT_LOST


def test_only_the_first_lost_messages_are_shown_and_the_report_has_all() -> None:
    lost = [named_message(f"order {number}") for number in range(20)]
    text = screen_output(AuditResult(counts={("orders", "lost"): 1_234}, lost=lost), "/tmp/report")  # noqa: S108
    assert "Lost: 1,234, the first 20; all are in /tmp/report" in text


def test_duplicates_and_repeated_sends_are_shown_separately() -> None:
    result = AuditResult(
        counts={("orders", "delivered"): 3},
        duplicated=[named_message("came", came=2, numbers=(7, 9))],
        duplicated_count=1,
        sent_repeatedly=[named_message("again", sent=2, came=2)],
        sent_repeatedly_count=1,
    )
    text = screen_output(result)
    assert text.index("Delivered more often than sent: 1") < text.index("7, 9")
    assert "Sent more than once by the application: 1" in text
    assert "Nothing is lost: 3 messages." in text
    assert result.exit_code == 0


def test_unknown_messages_are_shown_with_the_reason() -> None:
    result = AuditResult(
        counts={("orders", "delivered"): 3, ("orders", "unknown"): 2},
        unknown_reasons=[("receivers without a journal may have received it", 2)],
        missing_inputs=["journal 1-a did not end"],
        until=NOON,
    )
    text = screen_output(result)
    assert "Unknown, 2: receivers without a journal may have received it" in text
    assert "Missing: journal 1-a did not end" in text
    assert "Sends up to 2026-11-17 12:00:00 UTC were audited." in text
    assert "none is known to be lost" in text
    assert result.exit_code == EXIT_UNKNOWN


@pytest.mark.parametrize(("length_ms", "text"), [(1_250, "1.2 s"), (125_000, "2 min 5 s"), (7_500_000, "2 h 5 min")])
def test_the_parked_duration_is_shown(length_ms: int, text: str) -> None:
    result = AuditResult(
        counts={("orders", "delivered"): 3}, parked_durations=[ParkedDurations("orders", 3, 1_000, 1_100, length_ms)]
    )
    assert text in screen_output(result)


# --- end to end -------------------------------------------------------------------------------------------------------


@pytest.fixture
def existing_session(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the command use the existing session, since a process has only one."""

    @contextlib.contextmanager
    def session(_name: str, *, master: str | None = None) -> Iterator[SparkSession]:
        assert master == "local[2]"
        yield spark

    monkeypatch.setattr("twinbus.pipeline.spark.session", session)


@pytest.mark.usefixtures("existing_session")
def test_without_namespaces_messages_that_no_receiver_settled_are_unknown(tmp_path: Path) -> None:
    inputs = AuditInputs(tmp_path)
    with inputs.run_program() as shop:
        shop.sent("orders", "one", "two")
        shop.settled("orders", "one", 1)
    result = CliRunner().invoke(
        app, ["pipeline", "audit", str(inputs.journals), "--covered", "*", "--master", "local[2]"]
    )
    assert result.exit_code == EXIT_UNKNOWN, result.output
    assert "no connection string of the primary was given" in result.output
    assert "1 of 2 messages could not be traced" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "there are no journals in nowhere: no such folder"),
        ([".", "--primary", "Endpoint"], "twinbus pipeline audit: "),
    ],
)
@pytest.mark.usefixtures("existing_session")
def test_errors_of_the_user_are_shown_in_one_sentence(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["pipeline", "audit", *arguments, "--master", "local[2]"])
    assert result.exit_code == 1
    assert message in result.output
    assert "Traceback" not in result.output


@pytest.fixture
def spark_must_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def session(_name: str, *, master: str | None = None) -> None:
        pytest.fail(f"Spark was started at {master}")

    monkeypatch.setattr("twinbus.pipeline.spark.session", session)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessServer]:
    with run_server_in_process(tmp_path_factory.mktemp("server")) as served:
        yield served


def strings(server: InProcessServer) -> dict[str, str]:
    string = server.connection_string
    admin = string.replace(f":{server.amqp_port}", f":{server.http_port}")
    return {"--primary": string, "--secondary": string, "--primary-admin": admin}


@pytest.mark.parametrize("option", ["--primary", "--secondary", "--primary-admin"])
@pytest.mark.parametrize("problem", ["wrong key", "nobody there"])
@pytest.mark.usefixtures("spark_must_not_start")
def test_an_inaccessible_namespace_is_reported_before_spark_starts(
    server: InProcessServer, tmp_path: Path, option: str, problem: str
) -> None:
    string = strings(server)[option]
    if problem == "wrong key":
        string = string.replace("SharedAccessKey=", "SharedAccessKey=AAAA")
    else:
        string = re.sub(r":\d+", ":1", string)
    result = CliRunner().invoke(app, ["pipeline", "audit", str(tmp_path), option, string])
    assert result.exit_code == 1, result.output
    message = "the signature does not match" if problem == "wrong key" else "cannot be reached"
    assert message in result.output


def test_accessible_namespaces_pass_the_check(server: InProcessServer) -> None:
    primary, secondary, admin = (NamespaceAccess(string) for string in strings(server).values())
    asyncio.run(check_access(AuditSettings(journals=["."], primary=primary, secondary=secondary, primary_admin=admin)))
