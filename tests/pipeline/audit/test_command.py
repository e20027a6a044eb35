"""`twinbus pipeline audit` shows what was found, names what is lost or doubled, and ends with the code for it."""

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


def shown(outcome: AuditResult, report: str | None = None) -> str:
    out = StringIO()
    show(outcome, report, Console(file=out, width=140))
    return out.getvalue()


def named(name: str, *, sent: int = 1, came: int = 0, numbers: tuple[int, ...] = ()) -> NamedMessage:
    return NamedMessage("orders", name, "s", sent, came, NOON, "shop", numbers, "it is nowhere")


def test_what_is_lost_is_named_with_all_that_helps_to_find_it() -> None:
    outcome = AuditResult(counts={("orders", "delivered"): 9_999, ("orders", "lost"): 1}, lost=[named("order [17]")])
    text = shown(outcome)
    assert "order [17]" in text
    assert "2026-11-17 12:00:00" in text
    assert "shop" in text
    assert "1 of 10,000 messages are LOST." in text
    assert outcome.exit_code == EXIT_LOST


def test_of_very_many_the_first_are_named_and_it_is_said_where_the_others_are() -> None:
    lost = [named(f"order {number}") for number in range(20)]
    text = shown(AuditResult(counts={("orders", "lost"): 1_234}, lost=lost), "/tmp/report")  # noqa: S108
    assert "Lost: 1,234, the first 20; all are in /tmp/report" in text


def test_what_came_twice_is_told_apart_from_what_was_sent_twice() -> None:
    outcome = AuditResult(
        counts={("orders", "delivered"): 3},
        duplicated=[named("came", came=2, numbers=(7, 9))],
        duplicated_count=1,
        sent_repeatedly=[named("again", sent=2, came=2)],
        sent_repeatedly_count=1,
    )
    text = shown(outcome)
    assert text.index("Came more often than they were sent: 1") < text.index("7, 9")
    assert "Sent more than once, by the application: 1" in text
    assert "Nothing is lost: 3 messages." in text
    assert outcome.exit_code == 0


def test_what_is_unknown_is_told_with_the_reason() -> None:
    outcome = AuditResult(
        counts={("orders", "delivered"): 3, ("orders", "unknown"): 2},
        unknown_reasons=[("receivers that write no journal may have had it", 2)],
        missing_inputs=["journal 1-a has no end"],
        until=NOON,
    )
    text = shown(outcome)
    assert "Unknown, 2: receivers that write no journal may have had it" in text
    assert "Missing: journal 1-a has no end" in text
    assert "Sends up to 2026-11-17 12:00:00 UTC were asked about." in text
    assert "none is known to be lost" in text
    assert outcome.exit_code == EXIT_UNKNOWN


@pytest.mark.parametrize(("length_ms", "told"), [(1_250, "1.2 s"), (125_000, "2 min 5 s"), (7_500_000, "2 h 5 min")])
def test_how_long_messages_were_parked_is_told(length_ms: int, told: str) -> None:
    outcome = AuditResult(
        counts={("orders", "delivered"): 3}, parked_durations=[ParkedDurations("orders", 3, 1_000, 1_100, length_ms)]
    )
    assert told in shown(outcome)


# --- from end to end --------------------------------------------------------------------------------------------------


@pytest.fixture
def spark_is_there(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command takes the session that there is: a process has one."""

    @contextlib.contextmanager
    def session(_name: str, *, master: str | None = None) -> Iterator[SparkSession]:
        assert master == "local[2]"
        yield spark

    monkeypatch.setattr("twinbus.pipeline.spark.session", session)


@pytest.mark.usefixtures("spark_is_there")
def test_without_namespaces_it_says_what_receivers_had_and_of_the_rest_that_it_is_unknown(tmp_path: Path) -> None:
    world = AuditInputs(tmp_path)
    with world.run_program() as shop:
        shop.sent("orders", "one", "two")
        shop.settled("orders", "one", 1)
    result = CliRunner().invoke(
        app, ["pipeline", "audit", str(world.journals), "--covered", "*", "--master", "local[2]"]
    )
    assert result.exit_code == EXIT_UNKNOWN, result.output
    assert "no connection string of the primary was given" in result.output
    assert "Of 1 of 2 messages it is unknown" in result.output


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["nowhere"], "there are no journals in nowhere: no such folder"),
        ([".", "--primary", "Endpoint"], "twinbus pipeline audit: "),
    ],
)
@pytest.mark.usefixtures("spark_is_there")
def test_what_has_to_be_mended_is_said_in_a_sentence(words: list[str], why: str) -> None:
    result = CliRunner().invoke(app, ["pipeline", "audit", *words, "--master", "local[2]"])
    assert result.exit_code == 1
    assert why in result.output
    assert "Traceback" not in result.output


@pytest.fixture
def spark_is_not_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
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
@pytest.mark.parametrize("trouble", ["wrong key", "nobody there"])
@pytest.mark.usefixtures("spark_is_not_wanted")
def test_a_namespace_that_does_not_let_in_is_told_before_spark_starts(
    server: InProcessServer, tmp_path: Path, option: str, trouble: str
) -> None:
    string = strings(server)[option]
    if trouble == "wrong key":
        string = string.replace("SharedAccessKey=", "SharedAccessKey=AAAA")
    else:
        string = re.sub(r":\d+", ":1", string)
    result = CliRunner().invoke(app, ["pipeline", "audit", str(tmp_path), option, string])
    assert result.exit_code == 1, result.output
    why = "the signature does not match" if trouble == "wrong key" else "cannot be reached"
    assert why in result.output


def test_namespaces_that_answer_are_asked_once_and_that_is_all(server: InProcessServer) -> None:
    primary, secondary, admin = (NamespaceAccess(string) for string in strings(server).values())
    asyncio.run(check_access(AuditSettings(journals=["."], primary=primary, secondary=secondary, primary_admin=admin)))
