"""The writing half of the data source `servicebus`: rows become messages in queues and topics.

    rows.write.format("servicebus").options(connectionString=..., entity="orders").mode("append").save()

Owns the writers that Spark calls; `docs/pipeline-writing.md` describes the guarantees. If a secondary namespace is
given, each task is a paired sender: messages that the primary cannot accept are parked in the secondary.
"""

from twinbus.pipeline.sink.writers import make_stream_writer, make_writer

__all__ = ["make_stream_writer", "make_writer"]
