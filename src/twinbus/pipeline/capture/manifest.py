"""The manifest of a captured file: the file's contents, and the part of the log that the file covers.

Owns the fields, their JSON format, the names of captured files, and the search for a fragment's last file. The first
eight fields are the same as in Event Hubs Capture. A file counts only if it has a manifest: a fragment's manifests
describe everything that was captured from the fragment.
"""

from __future__ import annotations

import datetime as dt
import json
import posixpath
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Final

from twinbus.pipeline.errors import PipelineError

if TYPE_CHECKING:
    from twinbus.pipeline.capture.folder import Folder

VERSION: Final = 1
DATA_SUFFIX: Final = ".parquet"
MANIFEST_SUFFIX: Final = ".manifest.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Manifest of one file."""

    file: str
    """Path of the file, relative to the capture folder."""
    fragment: int
    sizeInBytes: int  # noqa: N815  # as in the file, here and below
    eventCount: int  # noqa: N815
    firstSequenceNumber: int  # noqa: N815
    lastSequenceNumber: int  # noqa: N815
    firstEnqueueTime: str  # noqa: N815
    """Enqueued time of the earliest message, in UTC as ISO 8601."""
    lastEnqueueTime: str  # noqa: N815
    version: int = VERSION
    namespace: str
    entity: str
    entityId: int  # noqa: N815
    """Id of the entity, which changes when the entity is deleted and created again."""
    fromSequenceNumber: int  # noqa: N815
    toSequenceNumber: int  # noqa: N815
    """Last sequence number covered. The file has all messages from `fromSequenceNumber` to this number (inclusive)."""

    @property
    def path(self) -> str:
        """Path of the manifest itself."""
        return self.file.removesuffix(DATA_SUFFIX) + MANIFEST_SUFFIX

    @property
    def first_enqueued(self) -> dt.datetime:
        """Enqueued time of the earliest message."""
        return dt.datetime.fromisoformat(self.firstEnqueueTime)

    @property
    def last_enqueued(self) -> dt.datetime:
        """Enqueued time of the latest message."""
        return dt.datetime.fromisoformat(self.lastEnqueueTime)

    def encode(self) -> bytes:
        """Return the manifest as JSON."""
        return (json.dumps(asdict(self), indent=2) + "\n").encode()

    @classmethod
    def decode(cls, path: str, content: bytes) -> Manifest:
        """Parse a manifest read from `path`. Raise PipelineError if the manifest is invalid or too new."""
        try:
            document = json.loads(content)
            version = document["version"]
            known = {field.name for field in fields(cls)}
            if version == VERSION:
                return cls(**{name: value for name, value in document.items() if name in known})
        except (ValueError, TypeError, KeyError) as error:
            raise PipelineError(f"{path} is not the manifest of a captured file: {error!r:.200}") from error
        raise PipelineError(f"{path} has version {version!r:.20}; this twinbus reads {VERSION}: use a newer one")


def to_iso(microseconds: int) -> str:
    """Convert microseconds since 1970 to ISO 8601."""
    return (dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=microseconds)).isoformat()


# --- the history of a fragment ----------------------------------------------------------------------------------------

_FOLDER_LEVELS: Final = 5
"""Levels of folders below a fragment's folder: year, month, day, hour, minute."""
_PATH_TIME_FORMAT: Final = "%Y/%m/%d/%H/%M/%S"


class FragmentHistory:
    """The captured files of one fragment, read from its folder.

        {namespace}/{entity}/{fragment}/{year}/{month}/{day}/{hour}/{minute}/{second}-{entity id}-{first number}.parquet

    The time in a path is the enqueued time of the file's first message, but never earlier than the time in the previous
    path. If sequence numbers are reused, the time is later than in the previous path. So names are unique, and the last
    file of a fragment can be found without listing all files. A file without a manifest is unfinished: it is deleted
    and captured again. Only the driver of a capture uses this class, so no other process creates files in the folder.
    """

    def __init__(self, folder: Folder, fragment_path: str) -> None:
        """Create a history for the fragment with the folder `fragment_path`."""
        self._folder = folder
        self._fragment_path = fragment_path
        self._last_file_time: dt.datetime | None = None
        """Time in the path of the last file."""

    def find_last(self) -> Manifest | None:
        """Return the manifest of the last file, or None. Delete later files without a manifest."""
        return self._find_last(self._fragment_path, _FOLDER_LEVELS)

    def _find_last(self, path: str, levels: int) -> Manifest | None:
        names = self._folder.list_names(path)
        if levels == 0:
            return self._last_of_minute(path, names)
        for name in reversed([name for name in names if name.isdecimal()]):
            last = self._find_last(posixpath.join(path, name), levels - 1)
            if last is not None:
                return last
        return None

    def _last_of_minute(self, path: str, file_names: list[str]) -> Manifest | None:
        """Return the last manifest in a minute. A file from a recreated entity sorts after earlier files."""
        finished = {name.removesuffix(MANIFEST_SUFFIX) for name in file_names if name.endswith(MANIFEST_SUFFIX)}
        for name in file_names:
            if name.endswith(DATA_SUFFIX) and name.removesuffix(DATA_SUFFIX) not in finished:
                self._folder.delete(posixpath.join(path, name))
        manifests = [self._read(posixpath.join(path, name + MANIFEST_SUFFIX)) for name in finished]
        last = max(manifests, key=sort_key, default=None)
        if last is not None:
            self._last_file_time = self._time_in(last.file)
        return last

    def _read(self, path: str) -> Manifest:
        return Manifest.decode(self._folder.uri_of(path), self._folder.read(path))

    def _time_in(self, file: str) -> dt.datetime:
        text = posixpath.relpath(file, self._fragment_path).split("-", 1)[0]
        return dt.datetime.strptime(text, _PATH_TIME_FORMAT).replace(tzinfo=dt.UTC)

    def allow_number_reuse(self) -> None:
        """Use a later second for the next file, because sequence numbers in existing files are assigned again."""
        if self._last_file_time is not None:
            self._last_file_time += dt.timedelta(seconds=1)

    def next_file_path(self, first_enqueued: dt.datetime, entity_id: int, from_sequence_number: int) -> str:
        """Return the path of the next file, whose first message was enqueued at `first_enqueued`."""
        time = first_enqueued.replace(microsecond=0)
        self._last_file_time = time = time if self._last_file_time is None else max(time, self._last_file_time)
        return posixpath.join(
            self._fragment_path, f"{time.strftime(_PATH_TIME_FORMAT)}-{entity_id}-{from_sequence_number}{DATA_SUFFIX}"
        )


def sort_key(manifest: Manifest) -> tuple[str, int, int]:
    """Return the sort key for a fragment's files: the order of capture, even if sequence numbers were reused."""
    return manifest.file.rsplit("-", 2)[0], manifest.entityId, manifest.toSequenceNumber


def folder_path(namespace: str, entity: str, fragment: int | None = None) -> str:
    """Return the folder of an entity or of one of its fragments. Entity paths are case-insensitive."""
    return posixpath.join(namespace.lower(), entity.lower(), *([] if fragment is None else [str(fragment)]))
