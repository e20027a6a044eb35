"""The folder for captured files, on any file system that pyarrow supports.

    folder = Folder("/srv/captured")        # or s3://bucket/captured, hdfs://..., gs://..., abfss://...

Owns atomic writes: a file is either complete or absent. On a local disk, this holds even after a power cut. Knows
nothing of the contents of files.
"""

from __future__ import annotations

import fcntl
import os
import posixpath
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyarrow import fs

from twinbus.pipeline.errors import PipelineError

if TYPE_CHECKING:
    from collections.abc import Iterator

TEMPORARY_FOLDER: Final = "_temporary"
"""Folder for unfinished files. Spark and other tools ignore names that begin with an underscore."""
_LOCK_FILE: Final = "_lock"


class Folder:
    """A folder and everything below it. Paths are relative to the folder and use slashes."""

    def __init__(self, uri: str) -> None:
        """Open the folder at `uri`, a URL or a local path. Raise PipelineError if pyarrow does not support the URL."""
        self.uri = uri if "://" in uri else str(Path(uri).absolute())
        try:
            self._file_system, self._root = fs.FileSystem.from_uri(self.uri)
        except (pa.ArrowException, ValueError, OSError) as error:
            raise PipelineError(f"{uri!r:.200} is not a supported folder: {error}") from error
        self._is_local = self._file_system.type_name == "local"

    def full_path(self, path: str) -> str:
        """Return a path as the file system expects it."""
        return posixpath.join(self._root, path) if path else str(self._root)

    def uri_of(self, path: str) -> str:
        """Return a path as a URL or an absolute local path."""
        return posixpath.join(self.uri, path)

    # --- reading ------------------------------------------------------------------------------------------------------

    def list_names(self, path: str) -> list[str]:
        """Return the sorted names in a folder, or an empty list if the folder does not exist."""
        selector = fs.FileSelector(self.full_path(path), allow_not_found=True)
        return sorted(entry.base_name for entry in self._file_system.get_file_info(selector))

    def walk(self, path: str, suffix: str) -> list[str]:
        """Return the sorted paths of all files under `path` that end with `suffix`, excluding temporary files."""
        selector = fs.FileSelector(self.full_path(path), allow_not_found=True, recursive=True)
        start = len(self.full_path("").rstrip("/")) + 1
        paths = [file.path[start:] for file in self._file_system.get_file_info(selector) if file.is_file]
        return sorted(file for file in paths if file.endswith(suffix) and f"{TEMPORARY_FOLDER}/" not in file)

    def exists(self, path: str) -> bool:
        """Return whether a file exists."""
        return bool(self._file_system.get_file_info(self.full_path(path)).is_file)

    def size(self, path: str) -> int:
        """Return the size of a file in bytes."""
        return int(self._file_system.get_file_info(self.full_path(path)).size)

    def read(self, path: str) -> bytes:
        """Return the contents of a file."""
        with self._file_system.open_input_stream(self.full_path(path)) as stream:
            return bytes(stream.read())

    def open_input(self, path: str) -> pa.NativeFile:
        """Open a file for random access."""
        return self._file_system.open_input_file(self.full_path(path))

    # --- writing ------------------------------------------------------------------------------------------------------

    def open_output(self, path: str) -> pa.NativeFile:
        """Create a file. The caller must close the file, and then call `sync`."""
        self._file_system.create_dir(self.full_path(posixpath.dirname(path)), recursive=True)
        return self._file_system.open_output_stream(self.full_path(path))

    def sync(self, path: str) -> None:
        """Sync a file to the local disk, so that its contents survive a power cut."""
        if self._is_local:
            _fsync(self.full_path(path))

    def write_atomically(self, path: str, content: bytes, temporary_path: str) -> None:
        """Write a file atomically and durably."""
        with self.open_output(temporary_path) as stream:
            stream.write(content)
        self.sync(temporary_path)
        self.move(temporary_path, path)

    def move(self, source: str, target: str) -> None:
        """Rename a file durably."""
        parent = self.full_path(posixpath.dirname(target))
        self._file_system.create_dir(parent, recursive=True)
        self._file_system.move(self.full_path(source), self.full_path(target))
        if self._is_local:
            _fsync_folders(parent, self.full_path(""))

    def delete(self, path: str) -> None:
        """Delete a file if it exists."""
        with suppress(FileNotFoundError):
            self._file_system.delete_file(self.full_path(path))

    def delete_folder(self, path: str) -> None:
        """Delete a folder and its contents if it exists."""
        with suppress(FileNotFoundError):
            self._file_system.delete_dir(self.full_path(path))

    @contextmanager
    def lock(self, path: str) -> Iterator[None]:
        """Lock a folder. Raise PipelineError if another process holds the lock. Only local folders can be locked."""
        if not self._is_local:
            yield
            return
        self._file_system.create_dir(self.full_path(path), recursive=True)
        lock = os.open(posixpath.join(self.full_path(path), _LOCK_FILE), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise PipelineError(f"another capture writes to {self.uri_of(path)}: stop it first") from None
            yield
        finally:
            os.close(lock)


def _fsync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _fsync_folders(path: str, root: str) -> None:
    """Sync a folder and its parents up to the root, because a new folder is durable only if its parent is synced."""
    while path.startswith(root) and path != root:
        _fsync(path)
        path = posixpath.dirname(path)
    _fsync(root)
