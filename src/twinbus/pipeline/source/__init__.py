"""Reading: an entity as rows, once or for as long as a query runs.

Owns: which numbers of which fragment are read when, and what becomes of messages that were processed. A range is read
by a browse link, again and again if need be, which takes nothing; what a query has processed is completed, if it says
so, under a claim.

    from twinbus.pipeline.source import read_options, positions_of, read_range

    options = read_options({"connectionString": text, "entity": "orders"})
    for fragment in positions_of(options).fragments:
        for batch in read_range(options, fragment.number, fragment.low, fragment.next - 1):
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
