"""Spark for tests: one session for each process of pytest, and a cluster of one master and two workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.pipeline.cluster import Cluster
from twinbus.pipeline.spark import start

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

SMALL = {
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.driver.memory": "1g",
}


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = start("tests", master="local[2]", settings=SMALL)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Jobs on it run in processes of their own: this process has a session already."""
    with Cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster
