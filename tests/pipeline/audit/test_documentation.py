"""docs/pipeline-audit.md agrees with the code: verdicts, columns, exit codes and gaps."""

from __future__ import annotations

import re
from pathlib import Path

from twinbus.pipeline.audit.journal_gaps import BULK_OUTCOMES, MAX_SILENCE
from twinbus.pipeline.audit.report import EXIT_LOST, EXIT_UNKNOWN, REPORT_COLUMNS
from twinbus.pipeline.audit.verdicts import TABLE

PAGE = (Path(__file__).parents[3] / "docs" / "pipeline-audit.md").read_text()


def test_the_documented_table_of_verdicts_is_that_of_the_code() -> None:
    lines = [f"| {line.verdict.value} | `{line.condition}` | {line.reason} |" for line in TABLE]
    assert "\n".join(["|---|---|---|", *lines, ""]) in PAGE


def test_every_name_in_the_table_is_explained() -> None:
    explained = set(re.findall(r"`(\w+)`", PAGE.partition("| name | what it is |")[2]))
    words = {word for line in TABLE for word in re.findall(r"[a-z_]+", line.condition)}
    known = {"message_id", "detects_duplicates", "is_filtered", "keeps_expired", "parked_at"}
    sql = {"is", "null", "not", "and", "or", "size", "coalesce", "true", "false"}
    assert words - explained - known - sql == set()


def test_columns_and_exit_codes_are_documented() -> None:
    for column in REPORT_COLUMNS:
        assert f"`{column}`" in PAGE, column
    assert f"| {EXIT_LOST} | something is lost" in PAGE
    assert f"| {EXIT_UNKNOWN} | nothing is known to be lost" in PAGE


def test_gaps_are_documented() -> None:
    assert MAX_SILENCE.total_seconds() == 300
    assert "five minutes after its last row" in PAGE
    for outcome in BULK_OUTCOMES:
        assert f"`{outcome}`" in PAGE
