"""Which batches of a stream may have been sent before: a file in the checkpoint, made before the first row is sent.

    begin(checkpoint, batch=17, run="<the query's run id>")     # in each task; True if an earlier run began this batch
    forget_before(checkpoint, batch=17)                         # in the driver, when batch 17 is written

A query that is started again runs its last batch again unless its commit is in the checkpoint. Spark does not tell a
task of that; so each run leaves its id with the batch it begins, and a task that finds another run's id knows. The
files of a batch stay until the next one is written: Spark notes the commit of a batch only after the writer's own.

Owns: the folder `twinbus-begun` of a checkpoint.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twinbus.pipeline.errors import PipelineError
from twinbus.pipeline.source.checkpoint import open_checkpoint

if TYPE_CHECKING:
    import pyarrow.fs

FOLDER: Final = "twinbus-begun"


def begin(checkpoint: str, batch: int, run: str) -> bool:
    """Note that a run begins a batch; whether another run may have sent rows of it. PipelineError if unknown."""
    files, root = open_checkpoint(checkpoint)
    folder = f"{root}/{FOLDER}/{batch}"
    try:
        runs = set(_names(files, folder))
        if run not in runs:
            files.create_dir(folder, recursive=True)
            with files.open_output_stream(f"{folder}/{run}"):
                pass  # that it is there says it all
    except OSError as error:
        raise PipelineError(f"{folder} cannot be written: {error}") from error
    return bool(runs - {run})


def forget_before(checkpoint: str, batch: int) -> None:
    """Remove what is noted of earlier batches: all of them are committed. PipelineError if that is not possible."""
    files, root = open_checkpoint(checkpoint)
    try:
        for name in _names(files, f"{root}/{FOLDER}"):
            if name.isdecimal() and int(name) < batch:
                files.delete_dir(f"{root}/{FOLDER}/{name}")
    except OSError as error:
        raise PipelineError(f"{root}/{FOLDER} cannot be cleared: {error}") from error


def _names(files: pyarrow.fs.FileSystem, folder: str) -> list[str]:
    from pyarrow import fs  # noqa: PLC0415  # slow to import

    return [one.base_name for one in files.get_file_info(fs.FileSelector(folder, allow_not_found=True))]
