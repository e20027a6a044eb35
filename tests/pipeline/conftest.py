"""Fixtures for Spark: one session for each pytest process, and a cluster of one master and two workers.

The Java processes of the tests are short-lived. They use only the quick compiler (C1) and load Spark's classes from
an archive (`tools/archive_spark.py`). Each of the two halves the duration of a test.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.pipeline.spark_cluster import SparkCluster
from twinbus.pipeline.spark import start_session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

TUNED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:cds=off -Xlog:cds+dynamic=off"
ARCHIVE = Path(sys.prefix) / "spark.jsa"

os.environ["JDK_JAVA_OPTIONS"] = f"{TUNED} -XX:SharedArchiveFile={ARCHIVE}" if ARCHIVE.exists() else TUNED

SMALL = {
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.driver.memory": "1g",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}
"""Optimisations that pay off only for millions of rows are off: here, planning a query takes longer than running it."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if isinstance(item, pytest.Function) and "cluster" in item.fixturenames:
            item.add_marker(pytest.mark.cluster)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = start_session("tests", master="local[2]", settings=SMALL)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """A cluster for jobs in separate processes, since the pytest process has a session already."""
    with SparkCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster
