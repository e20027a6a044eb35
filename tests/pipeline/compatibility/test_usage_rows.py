"""Usage of an earlier version is read as Spark rows: complete hours, and the journal of a killed server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.compatibility.archives import unpack
from twinbus.model.usage import COUNTS
from twinbus.pipeline.usage import read_usage

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


def test_all_counts_are_read(spark: SparkSession, tmp_path: Path) -> None:
    expected = unpack("data-directory", tmp_path)["usage"]
    rows = read_usage(spark, [tmp_path / "data"]).where("entity <> ''").collect()
    counts_by_entity: dict[str, dict[str, int]] = {}
    for row in rows:
        counts = counts_by_entity.setdefault(row.entity, {})
        for name in COUNTS:
            if row[name]:
                counts[name] = counts.get(name, 0) + row[name]
    assert counts_by_entity == expected
