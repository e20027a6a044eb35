"""The data source is made known to a session, and to copies of it, as often as somebody asks for it."""

from __future__ import annotations

from pyspark.sql import SparkSession

from twinbus.pipeline import register


def test_a_session_may_be_told_twice_and_so_may_its_copies(spark: SparkSession) -> None:
    register(spark)
    register(SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession()))  # noqa: SLF001  # as `foreachBatch` has one
