"""Spark jobs: source and sink for entities, distributed syphon, capture, costs, and the audit of sent messages.

    from twinbus.pipeline import register

    register(spark)
    spark.read.format("servicebus").option("connectionString", text).option("entity", "orders").load()

Owns the conversion of an entity's messages to rows, and of rows to messages. Knows nothing about the server or the
broker: jobs reach a namespace through the client, as any application does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from twinbus.pipeline.data_source import ServiceBusDataSource

__all__ = ["ServiceBusDataSource", "register"]


def register(spark: SparkSession) -> None:
    """Register the data source `servicebus` with a Spark session. Repeated calls are allowed."""
    from twinbus.pipeline.data_source import ServiceBusDataSource  # noqa: PLC0415  # needs PySpark, as the caller does
    from twinbus.pipeline.spark import register_data_source  # noqa: PLC0415

    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")  # otherwise Spark rejects `pushFilters`
    register_data_source(spark, ServiceBusDataSource)


def __getattr__(name: str) -> object:
    """Import `ServiceBusDataSource` on first access, because the import needs PySpark."""
    if name != "ServiceBusDataSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from twinbus.pipeline.data_source import ServiceBusDataSource  # noqa: PLC0415

    return ServiceBusDataSource
