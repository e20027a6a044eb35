"""Of a range the columns that a query asked for: what tasks of batches and streams yield.

Spark does not tell a source which columns a query uses. A user who names some by `schema(...)` has the others left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.pipeline.columns import COLUMNS
from twinbus.pipeline.errors import PipelineError
from twinbus.pipeline.source.ranges import read_range

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from twinbus.pipeline.source.options import SourceOptions
    from twinbus.pipeline.source.planning import Range


def check_columns(columns: Sequence[str]) -> None:
    """PipelineError where one is not there."""
    unknown = [name for name in columns if name not in COLUMNS]
    if unknown or not columns:
        what = f"has no column {unknown[0]!r:.60}" if unknown else "needs a column"
        raise PipelineError(f"servicebus {what}; it has {', '.join(COLUMNS)}")


def read_partition(options: SourceOptions, columns: Sequence[str], range_: Range | None) -> Iterator[pa.RecordBatch]:
    """A range of one fragment."""
    if range_ is None:
        return
    batches = read_range(options, range_.fragment, range_.first, range_.last, entity_id=range_.entity_id)
    is_all = tuple(columns) == COLUMNS
    for batch in batches:
        yield batch if is_all else batch.select(list(columns))
