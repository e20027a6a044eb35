"""The data source can be registered several times, also in a copy of a session."""

from __future__ import annotations

from pyspark.sql import SparkSession

from twinbus.pipeline import register


def test_a_session_and_its_copy_can_both_be_registered(spark: SparkSession) -> None:
    register(spark)
    register(SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession()))  # noqa: SLF001  # `foreachBatch` runs in such a copy
