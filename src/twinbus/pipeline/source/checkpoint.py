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

from twinbus.model.path import key_of
from twinbus.pipeline.errors import PipelineError
from twinbus.pipeline.source.offsets import is_one, read_offsets
from twinbus.pipeline.source.options import read_options

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    import pyarrow.fs

    from twinbus.pipeline.source.offsets import Offsets

_OFFSETS: Final = "offsets"
_COMMITS: Final = "commits"
_LEFT: Final = "it is not available now, or ends before the checkpoint's offset, or is of another entity of the name"

log: Final = logging.getLogger(__name__)


def complete_checkpoint(checkpoint: str | Path, given: Mapping[str, str]) -> Offsets | None:
    """Complete what a query that has ended has processed; up to where. None if it has processed nothing.

    `checkpoint` is the query's checkpointLocation, a folder or an address that pyarrow knows (s3://, hdfs://, ...);
    `given` the options that it reads with. A query that runs must not be meddled with: it loses its claim.
    """
    from twinbus.pipeline.source.entity import Entity  # noqa: PLC0415  # it starts the client's thread

    options = read_options(given)
    if not options.completes:
        raise PipelineError("the option complete is none: nothing is to be completed")
    offsets = processed(checkpoint, options.entity)
    if offsets is not None:
        entity = Entity(options)
        try:
            done = offsets.within(entity.positions())
            for fragment in offsets.fragments.keys() - done.fragments.keys():
                log.warning("fragment %d of '%s' is not completed: %s", fragment, offsets.entity, _LEFT)
            if done.fragments:
                entity.claim()
                entity.complete(done)
        finally:
            entity.close()
    return offsets


def processed(checkpoint: str | Path, entity: str) -> Offsets | None:
    """The offsets at which the last batch that is done ended; None where there is none."""
    folder, root = open_checkpoint(str(checkpoint))
    batches = sorted(_numbers(folder, f"{root}/{_COMMITS}"), reverse=True)
    if not batches:
        return None
    there = _offsets(folder, f"{root}/{_OFFSETS}/{batches[0]}")
    found = [read_offsets(one, entity) for one in there if key_of(str(one["entity"])) == key_of(entity)]
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


def _numbers(folder: pyarrow.fs.FileSystem, path: str) -> Iterator[int]:
    from pyarrow import fs  # noqa: PLC0415

    for one in folder.get_file_info(fs.FileSelector(path, allow_not_found=True)):
        if one.base_name.isdecimal():
            yield int(one.base_name)


def _offsets(folder: pyarrow.fs.FileSystem, path: str) -> Iterator[dict[str, object]]:
    """Those of this source in the file of a batch: a version, the batch's own settings, then a line for each source."""
    try:
        with folder.open_input_stream(path) as file:
            lines = file.read().decode().splitlines()
    except OSError as error:
        raise PipelineError(f"the checkpoint has no offsets of its last batch: {error}") from error
    for line in lines[1:]:
        try:
            found = json.loads(line)
        except ValueError:
            continue  # a source that is not there yet, or another's own form
        for one in (found, *found.values()) if isinstance(found, dict) else ():
            if is_one(one):
                yield one
