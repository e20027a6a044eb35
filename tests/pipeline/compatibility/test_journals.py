"""Journals of an earlier version are read as rows, also those of a killed program."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.compatibility.archives import unpack
from twinbus.pipeline.journals import find_journal_files, read_journals

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


def test_every_outcome_of_a_send_is_read(spark: SparkSession, tmp_path: Path) -> None:
    expected = unpack("pair", tmp_path)
    assert [file.is_complete for file in find_journal_files([tmp_path / "journals"])] == [True, False]
    sends = read_journals(spark, tmp_path / "journals").where("kind = 'send' and entity = 'orders'").collect()
    by_outcome: dict[str, list[str]] = {}
    for row in sends:
        by_outcome.setdefault(row.outcome, []).append(row.message_id)
    assert {outcome: sorted(ids) for outcome, ids in by_outcome.items()} == {
        "sent": sorted(expected["sent"] + expected["killed"]),
        "parked": sorted(expected["parked"]),
        "spooled": sorted(expected["spooled"]),
    }
