"""The data source `servicebus`: entities as Spark tables and streams.

    spark.read.format("servicebus").option("connectionString", text).option("entity", "orders").load()

Owns the interface that Spark calls; `source` implements reading, and `sink` implements writing. Spark recreates the
data source, its readers and its writers in several processes and pickles these objects in between, so the objects hold
only options.
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
    """The data source that `twinbus.pipeline.register` registers."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(...)`."""
        return "servicebus"

    def schema(self) -> str:
        """Return the columns that a query reads."""
        return DDL

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader for `spark.read`."""
        from twinbus.pipeline.source.batch_reader import BatchReader  # noqa: PLC0415  # a writer does not need it
        from twinbus.pipeline.source.options import read_options  # noqa: PLC0415

        return BatchReader(read_options(self.options), schema.fieldNames())

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's name
        """Return the reader for `spark.readStream`."""
        from twinbus.pipeline.source.options import read_options  # noqa: PLC0415
        from twinbus.pipeline.source.stream_reader import StreamReader  # noqa: PLC0415

        return StreamReader(read_options(self.options), schema.fieldNames())

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001  # as Spark calls it
        """Return the writer for `df.write`."""
        from twinbus.pipeline.sink import make_writer  # noqa: PLC0415

        return make_writer(self.options, schema, overwrite=overwrite)

    def streamWriter(  # noqa: N802
        self,
        schema: StructType,
        overwrite: bool,  # noqa: FBT001
    ) -> DataSourceStreamWriter:
        """Return the writer for `df.writeStream`."""
        from twinbus.pipeline.sink import make_stream_writer  # noqa: PLC0415

        return make_stream_writer(self.options, schema, overwrite=overwrite)
