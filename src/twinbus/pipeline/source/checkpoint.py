"""A query's checkpoint, read without Spark: up to where its batches are done.

    complete_checkpoint("/checkpoints/orders", {"connectionString": text, "entity": "orders", "complete": "processed"})

Spark tells a source that a batch is done when it makes the next one. So what the last batch of a query has processed is
completed when it is started again; or at once, by this.

Owns: where Spark keeps offsets and commits, and how an offset is found among those of other sources.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Final

from twinbus.model.path import canonical_key
from twinbus.pipeline.errors import PipelineError
from twinbus.pipeline.source.offsets import is_offsets, read_offsets
from twinbus.pipeline.source.options import read_options

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    import pyarrow.fs

    from twinbus.pipeline.source.offsets import Offsets

_OFFSETS_FOLDER: Final = "offsets"
_COMMITS_FOLDER: Final = "commits"
_NOT_COMPLETED_REASON: Final = (
    "it is not available now, or ends before the checkpoint's offset, or is of another entity of the name"
)

log: Final = logging.getLogger(__name__)


def complete_checkpoint(checkpoint: str | Path, source_options: Mapping[str, str]) -> Offsets | None:
    """Complete what a query that has ended has processed; up to where. None if it has processed nothing.

    `checkpoint` is the query's checkpointLocation, a folder or an address that pyarrow knows (s3://, hdfs://, ...);
    `given` the options that it reads with. A query that runs must not be meddled with: it loses its claim.
    """
    from twinbus.pipeline.source.entity import SourceEntity  # noqa: PLC0415  # it starts the client's thread

    options = read_options(source_options)
    if not options.completes_processed:
        raise PipelineError("the option complete is none: nothing is to be completed")
    offsets = read_processed_offsets(checkpoint, options.entity)
    if offsets is not None:
        entity = SourceEntity(options)
        try:
            done = offsets.limited_to(entity.positions())
            for fragment in offsets.fragments.keys() - done.fragments.keys():
                log.warning("fragment %d of '%s' is not completed: %s", fragment, offsets.entity, _NOT_COMPLETED_REASON)
            if done.fragments:
                entity.acquire()
                entity.complete(done)
        finally:
            entity.close()
    return offsets


def read_processed_offsets(checkpoint: str | Path, entity: str) -> Offsets | None:
    """The offsets at which the last batch that is done ended; None where there is none."""
    folder, root = open_checkpoint(str(checkpoint))
    batches = sorted(_batch_numbers(folder, f"{root}/{_COMMITS_FOLDER}"), reverse=True)
    if not batches:
        return None
    there = _read_batch_offsets(folder, f"{root}/{_OFFSETS_FOLDER}/{batches[0]}")
    found = [read_offsets(one, entity) for one in there if canonical_key(str(one["entity"])) == canonical_key(entity)]
    if not found:
        raise PipelineError(f"the checkpoint {checkpoint} is of a query that does not read '{entity}'")
    return found[0]


def open_checkpoint(checkpoint: str) -> tuple[pyarrow.fs.FileSystem, str]:
    """Return the file system that a checkpoint is in, and its path there. PipelineError if pyarrow does not know it."""
    from pyarrow import fs  # noqa: PLC0415  # slow to import, and only who reads a checkpoint needs it

    try:
        if "://" in checkpoint or checkpoint.startswith("file:"):
            found, root = fs.FileSystem.from_uri(checkpoint)
        else:
            found, root = fs.LocalFileSystem(), checkpoint
    except Exception as error:
        raise PipelineError(f"the checkpoint {checkpoint} cannot be read: {error}") from error
    return found, root.rstrip("/")


def _batch_numbers(file_system: pyarrow.fs.FileSystem, path: str) -> Iterator[int]:
    from pyarrow import fs  # noqa: PLC0415

    for one in file_system.get_file_info(fs.FileSelector(path, allow_not_found=True)):
        if one.base_name.isdecimal():
            yield int(one.base_name)


def _read_batch_offsets(file_system: pyarrow.fs.FileSystem, path: str) -> Iterator[dict[str, object]]:
    """Those of this source in the file of a batch: a version, the batch's own settings, then a line for each source."""
    try:
        with file_system.open_input_stream(path) as file:
            lines = file.read().decode().splitlines()
    except OSError as error:
        raise PipelineError(f"the checkpoint has no offsets of its last batch: {error}") from error
    for line in lines[1:]:
        try:
            found = json.loads(line)
        except ValueError:
            continue  # a source that is not there yet, or another's own form
        for one in (found, *found.values()) if isinstance(found, dict) else ():
            if is_offsets(one):
                yield one
