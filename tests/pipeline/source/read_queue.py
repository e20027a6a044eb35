"""Prints the number of messages in a queue, read with Spark: `python read_queue.py CONNECTION_STRING QUEUE`."""

from __future__ import annotations

import sys

from twinbus.pipeline.spark import session

if __name__ == "__main__":
    connection_string, queue = sys.argv[1:]
    with session("walkthrough", master="local[1]") as spark:
        messages = spark.read.format("servicebus").option("connectionString", connection_string)
        count = len(messages.option("entity", queue).load().select("messageId").collect())
        sys.stdout.write(f"{count}\n")
