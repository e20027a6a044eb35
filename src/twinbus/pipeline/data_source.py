"""The data source `servicebus`: entities as tables and streams of Spark.

    spark.read.format("servicebus").option("connectionString", text).option("entity", "orders").load()

Owns: what Spark calls. What is done then is in `source` and `sink`. Spark makes it, its readers and writers anew in one
process after the other, and pickles them between: they hold options and nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from twinbus.pipeline.columns import DDL

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType


class ServiceBusDataSource(DataSource):
    """Registered by `twinbus.pipeline.register`."""

    @classmethod
    def name(cls) -> str:
        """What it is called in `format(...)`."""
        return "servicebus"

    def schema(self) -> str:
        """The columns that are read."""
        return DDL

    def reader(self, schema: StructType) -> DataSourceReader:
        """For `spark.read`."""
        from twinbus.pipeline.source.batch_reader import BatchReader  # noqa: PLC0415  # who writes does not read
        from twinbus.pipeline.source.options import read_options  # noqa: PLC0415

        return BatchReader(read_options(self.options), schema.fieldNames())

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's name
        """For `spark.readStream`."""
        from twinbus.pipeline.source.options import read_options  # noqa: PLC0415
        from twinbus.pipeline.source.stream_reader import StreamReader  # noqa: PLC0415

        return StreamReader(read_options(self.options), schema.fieldNames())

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001  # as Spark calls it
        """For `df.write`."""
        from twinbus.pipeline.sink import make_writer  # noqa: PLC0415

        return make_writer(self.options, schema, overwrite=overwrite)

    def streamWriter(  # noqa: N802
        self,
        schema: StructType,
        overwrite: bool,  # noqa: FBT001
    ) -> DataSourceStreamWriter:
        """For `df.writeStream`."""
        from twinbus.pipeline.sink import make_stream_writer  # noqa: PLC0415

        return make_stream_writer(self.options, schema, overwrite=overwrite)
