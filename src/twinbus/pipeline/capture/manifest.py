"""The manifest of a captured file: what is in it, and which part of the log it covers.

Owns: its fields, how they are written as JSON, the names of captured files, and where a fragment's capture goes on. The
first eight are those of Event Hubs Capture. A file counts once its manifest is there: the manifests of a fragment,
taken together, are what was captured of it.
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
    """Of one file."""

    file: str
    """Relative to the folder that was captured to."""
    fragment: int
    sizeInBytes: int  # noqa: N815  # as in the file, here and below
    eventCount: int  # noqa: N815
    firstSequenceNumber: int  # noqa: N815
    lastSequenceNumber: int  # noqa: N815
    firstEnqueueTime: str  # noqa: N815
    """In UTC, as ISO 8601 has it; the earliest in the file."""
    lastEnqueueTime: str  # noqa: N815
    version: int = VERSION
    namespace: str
    entity: str
    entityId: int  # noqa: N815
    """Another one after the entity was deleted and created again."""
    fromSequenceNumber: int  # noqa: N815
    toSequenceNumber: int  # noqa: N815
    """The file has all that there was from the one to the other, both included: the next file goes on behind it."""

    @property
    def path(self) -> str:
        """Where it lies itself."""
        return self.file.removesuffix(DATA_SUFFIX) + MANIFEST_SUFFIX

    @property
    def first_enqueued(self) -> dt.datetime:
        """The time of its earliest message."""
        return dt.datetime.fromisoformat(self.firstEnqueueTime)

    @property
    def last_enqueued(self) -> dt.datetime:
        """The time of its latest message."""
        return dt.datetime.fromisoformat(self.lastEnqueueTime)

    def encode(self) -> bytes:
        """As it is written."""
        return (json.dumps(asdict(self), indent=2) + "\n").encode()

    @classmethod
    def decode(cls, path: str, content: bytes) -> Manifest:
        """What was read from `path`; PipelineError where it is none, or one of a later twinbus."""
        try:
            found = json.loads(content)
            version = found["version"]
            known = {field.name for field in fields(cls)}
            if version == VERSION:
                return cls(**{name: value for name, value in found.items() if name in known})
        except (ValueError, TypeError, KeyError) as error:
            raise PipelineError(f"{path} is no manifest of a captured file: {error!r:.200}") from error
        raise PipelineError(f"{path} has version {version!r:.20}; this twinbus reads {VERSION}: use a newer one")


def to_iso(microseconds: int) -> str:
    """A moment, given in microseconds since 1970."""
    return (dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=microseconds)).isoformat()


# --- the history of a fragment ----------------------------------------------------------------------------------------

_FOLDER_LEVELS: Final = 5
"""Folders below a fragment's: year, month, day, hour, minute."""
_PATH_TIME_FORMAT: Final = "%Y/%m/%d/%H/%M/%S"


class FragmentHistory:
    """What was captured of one fragment so far, read from its folder.

        {namespace}/{entity}/{fragment}/{year}/{month}/{day}/{hour}/{minute}/{second}-{entity id}-{first number}.parquet

    The time in a path is that of the file's first message, but never earlier than that of the file before, and later
    where numbers begin anew: so the last file of a fragment is found without looking at all of them, and no name is
    given twice. A file without a manifest is one that was not finished: it is removed, and captured again. Only the
    driver of a capture has a history: nobody else names files there.
    """

    def __init__(self, folder: Folder, fragment_path: str) -> None:
        """`place` is the fragment's folder."""
        self._folder = folder
        self._fragment_path = fragment_path
        self._last_file_time: dt.datetime | None = None
        """The time in the path of the last file."""

    def find_last(self) -> Manifest | None:
        """The manifest of the last file; what lies behind it without one is removed."""
        return self._find_last(self._fragment_path, _FOLDER_LEVELS)

    def _find_last(self, path: str, levels: int) -> Manifest | None:
        names = self._folder.list_names(path)
        if levels == 0:
            return self._last_of_minute(path, names)
        for name in reversed([name for name in names if name.isdecimal()]):
            found = self._find_last(posixpath.join(path, name), levels - 1)
            if found is not None:
                return found
        return None

    def _last_of_minute(self, path: str, file_names: list[str]) -> Manifest | None:
        """Of the files of one minute; one that was begun anew counts more, whatever its numbers."""
        whole = {name.removesuffix(MANIFEST_SUFFIX) for name in file_names if name.endswith(MANIFEST_SUFFIX)}
        for name in file_names:
            if name.endswith(DATA_SUFFIX) and name.removesuffix(DATA_SUFFIX) not in whole:
                self._folder.delete(posixpath.join(path, name))
        manifests = [self._read(posixpath.join(path, name + MANIFEST_SUFFIX)) for name in whole]
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
        """Numbers of files that there are come again: what is named from now on is of a later second than these."""
        if self._last_file_time is not None:
            self._last_file_time += dt.timedelta(seconds=1)

    def next_file_path(self, first_enqueued: dt.datetime, entity_id: int, from_sequence_number: int) -> str:
        """The path of a file whose first message is of that time."""
        time = first_enqueued.replace(microsecond=0)
        self._last_file_time = time = time if self._last_file_time is None else max(time, self._last_file_time)
        return posixpath.join(
            self._fragment_path, f"{time.strftime(_PATH_TIME_FORMAT)}-{entity_id}-{from_sequence_number}{DATA_SUFFIX}"
        )


def sort_key(manifest: Manifest) -> tuple[str, int, int]:
    """What the files of a fragment are sorted by: as they were captured, also where numbers began anew."""
    return manifest.file.rsplit("-", 2)[0], manifest.entityId, manifest.toSequenceNumber


def folder_path(namespace: str, entity: str, fragment: int | None = None) -> str:
    """The folder of an entity, or of one of its fragments. Paths of entities compare without regard to case."""
    return posixpath.join(namespace.lower(), entity.lower(), *([] if fragment is None else [str(fragment)]))
