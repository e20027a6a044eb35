"""Query checkpoints, read without Spark: the offsets up to which batches were processed.

    complete_checkpoint("/checkpoints/orders", {"connectionString": text, "entity": "orders", "complete": "processed"})

Spark tells a source that a batch was processed when it plans the next batch. Messages in a query's last batch are
therefore completed when the query is started again, or immediately by `complete_checkpoint`.

Owns the locations where Spark stores offsets and commits, and the search for this source's offsets in a checkpoint.
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
    "it is unavailable, ends before the checkpoint's offset, or belongs to a recreated entity"
)

log: Final = logging.getLogger(__name__)


def complete_checkpoint(checkpoint: str | Path, source_options: Mapping[str, str]) -> Offsets | None:
    """Complete the messages that a stopped query has processed. Return the offsets, or None if no batch was committed.

    `checkpoint` is the query's checkpointLocation, a folder or a URL that pyarrow supports (s3://, hdfs://, ...);
    `source_options` are the options of the query's source. Do not call this for a running query: the query would lose
    its exclusive receiver.
    """
    from twinbus.pipeline.source.entity import SourceEntity  # noqa: PLC0415  # it starts the client's thread

    options = read_options(source_options)
    if not options.completes_processed:
        raise PipelineError("the option complete is none: set complete=processed to complete messages")
    offsets = read_processed_offsets(checkpoint, options.entity)
    if offsets is not None:
        entity = SourceEntity(options)
        try:
            completable = offsets.limited_to(entity.positions())
            for fragment in offsets.fragments.keys() - completable.fragments.keys():
                log.warning("fragment %d of '%s' is not completed: %s", fragment, offsets.entity, _NOT_COMPLETED_REASON)
            if completable.fragments:
                entity.acquire()
                entity.complete(completable)
        finally:
            entity.close()
    return offsets


def read_processed_offsets(checkpoint: str | Path, entity: str) -> Offsets | None:
    """Return the offsets at the end of the last committed batch, or None if no batch was committed."""
    file_system, root = open_checkpoint(str(checkpoint))
    batches = sorted(_batch_numbers(file_system, f"{root}/{_COMMITS_FOLDER}"), reverse=True)
    if not batches:
        return None
    all_offsets = _read_batch_offsets(file_system, f"{root}/{_OFFSETS_FOLDER}/{batches[0]}")
    matching = [
        read_offsets(offsets, entity)
        for offsets in all_offsets
        if canonical_key(str(offsets["entity"])) == canonical_key(entity)
    ]
    if not matching:
        raise PipelineError(f"the checkpoint {checkpoint} belongs to a query that does not read '{entity}'")
    return matching[0]


def open_checkpoint(checkpoint: str) -> tuple[pyarrow.fs.FileSystem, str]:
    """Return a checkpoint's file system and its path there. Raise PipelineError if pyarrow does not support the URL."""
    from pyarrow import fs  # noqa: PLC0415  # slow to import, and only needed for checkpoints

    try:
        if "://" in checkpoint or checkpoint.startswith("file:"):
            file_system, root = fs.FileSystem.from_uri(checkpoint)
        else:
            file_system, root = fs.LocalFileSystem(), checkpoint
    except Exception as error:
        raise PipelineError(f"the checkpoint {checkpoint} cannot be read: {error}") from error
    return file_system, root.rstrip("/")


def _batch_numbers(file_system: pyarrow.fs.FileSystem, path: str) -> Iterator[int]:
    from pyarrow import fs  # noqa: PLC0415

    for entry in file_system.get_file_info(fs.FileSelector(path, allow_not_found=True)):
        if entry.base_name.isdecimal():
            yield int(entry.base_name)


def _read_batch_offsets(file_system: pyarrow.fs.FileSystem, path: str) -> Iterator[dict[str, object]]:
    """Yield this source's offsets from a batch's file: a version, the batch's settings, and one line per source."""
    try:
        with file_system.open_input_stream(path) as file:
            lines = file.read().decode().splitlines()
    except OSError as error:
        raise PipelineError(f"the checkpoint has no offsets of its last batch: {error}") from error
    for line in lines[1:]:
        try:
            document = json.loads(line)
        except ValueError:
            continue  # a source without offsets yet, or with a format of its own
        for candidate in (document, *document.values()) if isinstance(document, dict) else ():
            if is_offsets(candidate):
                yield candidate
