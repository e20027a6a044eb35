"""Where captured files lie: any place that pyarrow has a file system for.

    folder = Folder("/srv/captured")        # or s3://bucket/captured, hdfs://..., gs://..., abfss://...

Owns: how a file comes there so that it is there as a whole or not at all, also after a power cut on a local disk. Knows
nothing of what the files are.
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
"""What is not whole yet. Spark and others leave out what begins with an underscore."""
_LOCK_FILE: Final = "_lock"


class Folder:
    """A place, and what is below it. Paths are relative to it, with slashes."""

    def __init__(self, uri: str) -> None:
        """`uri` may be a path of this machine."""
        self.uri = uri if "://" in uri else str(Path(uri).absolute())
        try:
            self._file_system, self._root = fs.FileSystem.from_uri(self.uri)
        except (pa.ArrowException, ValueError, OSError) as error:
            raise PipelineError(f"{uri!r:.200} is no place for files: {error}") from error
        self._is_local = self._file_system.type_name == "local"

    def full_path(self, path: str) -> str:
        """What the file system calls it."""
        return posixpath.join(self._root, path) if path else str(self._root)

    def uri_of(self, path: str) -> str:
        """What anyone calls it."""
        return posixpath.join(self.uri, path)

    # --- reading ------------------------------------------------------------------------------------------------------

    def list_names(self, path: str) -> list[str]:
        """What is directly in a folder, in order; nothing where there is none."""
        selector = fs.FileSelector(self.full_path(path), allow_not_found=True)
        return sorted(found.base_name for found in self._file_system.get_file_info(selector))

    def walk(self, path: str, suffix: str) -> list[str]:
        """All files below a folder whose names end so, in order; nothing of what is not whole."""
        selector = fs.FileSelector(self.full_path(path), allow_not_found=True, recursive=True)
        start = len(self.full_path("").rstrip("/")) + 1
        found = [one.path[start:] for one in self._file_system.get_file_info(selector) if one.is_file]
        return sorted(one for one in found if one.endswith(suffix) and f"{TEMPORARY_FOLDER}/" not in one)

    def exists(self, path: str) -> bool:
        """There is such a file."""
        return bool(self._file_system.get_file_info(self.full_path(path)).is_file)

    def size(self, path: str) -> int:
        """Bytes of a file."""
        return int(self._file_system.get_file_info(self.full_path(path)).size)

    def read(self, path: str) -> bytes:
        """All that is in a file."""
        with self._file_system.open_input_stream(self.full_path(path)) as stream:
            return bytes(stream.read())

    def open_input(self, path: str) -> pa.NativeFile:
        """A file to be read from anywhere in it."""
        return self._file_system.open_input_file(self.full_path(path))

    # --- writing ------------------------------------------------------------------------------------------------------

    def open_output(self, path: str) -> pa.NativeFile:
        """A new file, to be closed by who asked for it; then `keep` makes it stay."""
        self._file_system.create_dir(self.full_path(posixpath.dirname(path)), recursive=True)
        return self._file_system.open_output_stream(self.full_path(path))

    def sync(self, path: str) -> None:
        """A file that was written stays after a power cut."""
        if self._is_local:
            _fsync(self.full_path(path))

    def write_atomically(self, path: str, content: bytes, temporary_path: str) -> None:
        """Write a file: it is there as a whole, and stays, or not at all."""
        with self.open_output(temporary_path) as stream:
            stream.write(content)
        self.sync(temporary_path)
        self.move(temporary_path, path)

    def move(self, source: str, target: str) -> None:
        """Give a file its name; it stays."""
        parent = self.full_path(posixpath.dirname(target))
        self._file_system.create_dir(parent, recursive=True)
        self._file_system.move(self.full_path(source), self.full_path(target))
        if self._is_local:
            _fsync_folders(parent, self.full_path(""))

    def delete(self, path: str) -> None:
        """Remove a file, if it is there."""
        with suppress(FileNotFoundError):
            self._file_system.delete_file(self.full_path(path))

    def delete_folder(self, path: str) -> None:
        """Remove a folder with all that is in it, if it is there."""
        with suppress(FileNotFoundError):
            self._file_system.delete_dir(self.full_path(path))

    @contextmanager
    def lock(self, path: str) -> Iterator[None]:
        """Have a folder for oneself; PipelineError if somebody else has it. Only a local disk can tell."""
        if not self._is_local:
            yield
            return
        self._file_system.create_dir(self.full_path(path), recursive=True)
        lock = os.open(posixpath.join(self.full_path(path), _LOCK_FILE), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise PipelineError(f"another capture writes to {self.uri_of(path)}: one at a time") from None
            yield
        finally:
            os.close(lock)


def _fsync(path: str) -> None:
    opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _fsync_folders(path: str, root: str) -> None:
    """A new folder is in its parent only once that was synced, too."""
    while path.startswith(root) and path != root:
        _fsync(path)
        path = posixpath.dirname(path)
    _fsync(root)
