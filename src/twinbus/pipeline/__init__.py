"""Spark jobs: a source and sink for entities, the syphon at scale, capture, costs, the audit that nothing was lost.

from twinbus.pipeline import register

register(spark) spark.read.format("servicebus").option("connectionString", text).option("entity", "orders").load()

Owns: how the log of an entity becomes rows, and rows become messages. Knows nothing of the server or the broker: it
reaches a namespace through the client, as any application does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from twinbus.pipeline.data_source import ServiceBusDataSource

__all__ = ["ServiceBusDataSource", "register"]


def register(spark: SparkSession) -> None:
    """Let a session read and write entities: `format("servicebus")`. It may be called again."""
    from twinbus.pipeline.data_source import ServiceBusDataSource  # noqa: PLC0415  # needs PySpark, as who calls this has
    from twinbus.pipeline.spark import register_data_source  # noqa: PLC0415

    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")  # else Spark refuses a source that can
    register_data_source(spark, ServiceBusDataSource)


def __getattr__(name: str) -> object:
    """The data source itself, for who has PySpark."""
    if name != "ServiceBusDataSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from twinbus.pipeline.data_source import ServiceBusDataSource  # noqa: PLC0415

    return ServiceBusDataSource
