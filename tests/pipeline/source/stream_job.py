"""A streaming job from an entity to Parquet files that reads all available messages and ends; runs as a driver.

TWINBUS=<connection string> python -m tests.pipeline.source.stream_job MASTER ENTITY FOLDER LIMIT
"""

from __future__ import annotations

import os
import sys

from twinbus.pipeline.spark import session


def main(master: str, entity: str, folder: str, limit: str) -> None:
    settings = {"spark.executor.memory": "512m", "spark.driver.memory": "512m"}
    with session("a stream to files", master=master, settings=settings) as spark:
        source = spark.readStream.format("servicebus").option("connectionString", os.environ["TWINBUS"])
        source = source.option("entity", entity).option("complete", "processed").option("maxOffsetsPerTrigger", limit)
        sink = source.load().writeStream.format("parquet").option("path", f"{folder}/output")
        query = sink.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True).start()
        query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
