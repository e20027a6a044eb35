"""The manifest of a captured file: what is in it, and which part of the log it covers.

Owns: its fields, and how they are written as JSON. The first eight are those of Event Hubs Capture. A file counts once
its manifest is there: the manifests of a fragment, taken together, are what was captured of it.
"""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import asdict, dataclass, fields
from typing import Final

from twinbus.pipeline.errors import PipelineError

VERSION: Final = 1
DATA_ENDING: Final = ".parquet"
ENDING: Final = ".manifest.json"


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
        return self.file.removesuffix(DATA_ENDING) + ENDING

    @property
    def first(self) -> dt.datetime:
        """The time of its earliest message."""
        return dt.datetime.fromisoformat(self.firstEnqueueTime)

    @property
    def last(self) -> dt.datetime:
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


def iso(microseconds: int) -> str:
    """A moment, given in microseconds since 1970."""
    return (dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=microseconds)).isoformat()
