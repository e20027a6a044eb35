"""The writing half of the data source `servicebus`: rows become messages of queues and topics.

    rows.write.format("servicebus").options(connectionString=..., entity="orders").mode("append").save()

Owns: what Spark calls to write. `docs/pipeline-writing.md` says what holds. With a second namespace each task is the
sender of a pair: what the first does not take is parked there.
"""

from twinbus.pipeline.sink.writers import make_stream_writer, make_writer

__all__ = ["make_stream_writer", "make_writer"]
