"""What a capture is told.

Owns: the settings, their ranges, and what is wrong with one that cannot be.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from twinbus.client.connection_string import ConnectionString
from twinbus.pipeline.capture.window import WindowLimits
from twinbus.pipeline.errors import PipelineError
from twinbus.pipeline.source import read_options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinbus.pipeline.source import SourceOptions

WINDOW_RANGE_S: Final = (60.0, 900.0)
SIZE_RANGE_MB: Final = (10, 500)
MEGABYTE: Final = 1_000_000
DEFAULT_LIMITS: Final = WindowLimits(300.0, 300 * MEGABYTE)


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureSettings:
    """All of it."""

    connection_string: str = field(repr=False)
    entities: Sequence[str]
    target_uri: str
    """Where files go: a folder, or an address of one."""
    limits: WindowLimits = DEFAULT_LIMITS
    namespace: str | None = None
    """What paths begin with; None: what the host is called."""
    ca_file: str | None = None
    completes_captured: bool = False
    """What was captured is completed: nobody else may receive meanwhile."""
    allows_data_loss: bool = False
    """Go on where messages were lost before they could be captured."""
    available_now: bool = False
    """End when all is captured that was there at the start."""

    def namespace_name(self) -> str:
        """The first folder of all paths."""
        where = ConnectionString.parse(self.connection_string)
        return self.namespace or where.namespace or f"{where.host}-{where.amqp_port}"

    def source_options(self, path: str) -> SourceOptions:
        """How one of the entities is read."""
        given = {"connectionString": self.connection_string, "entity": path, "caFile": self.ca_file or ""}
        return read_options(given)


def make_limits(window_s: float, size_mb: int) -> WindowLimits:
    """PipelineError where they are out of range."""
    if not WINDOW_RANGE_S[0] <= window_s <= WINDOW_RANGE_S[1]:
        raise PipelineError(f"a window of {window_s:g} s; it can be {WINDOW_RANGE_S[0]:g} to {WINDOW_RANGE_S[1]:g} s")
    if not SIZE_RANGE_MB[0] <= size_mb <= SIZE_RANGE_MB[1]:
        raise PipelineError(f"a size of {size_mb} MB; it can be {SIZE_RANGE_MB[0]} to {SIZE_RANGE_MB[1]} MB")
    return WindowLimits(window_s, size_mb * MEGABYTE)
