"""The reading half of the data source `servicebus`: an entity as rows, once or as a stream.

Owns the choice of sequence numbers to read from each fragment, and the completion of processed messages. A range is
read through a browse link, which removes nothing, so a range can be read repeatedly. A query that completes processed
messages is the exclusive receiver of the entity.

    from twinbus.pipeline.source import read_options, read_positions, read_range

    options = read_options({"connectionString": text, "entity": "orders"})
    for position in read_positions(options).fragments:
        first, end = position.low_sequence_number, position.next_sequence_number
        for batch in read_range(options, position.fragment, first, end - 1):
            ...
"""

from twinbus.pipeline.source.checkpoint import complete_checkpoint
from twinbus.pipeline.source.options import SourceOptions, read_options
from twinbus.pipeline.source.positions import FragmentPosition, Positions, read_positions
from twinbus.pipeline.source.range_reader import read_range

__all__ = [
    "FragmentPosition",
    "Positions",
    "SourceOptions",
    "complete_checkpoint",
    "read_options",
    "read_positions",
    "read_range",
]
