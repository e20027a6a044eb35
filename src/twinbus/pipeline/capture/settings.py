"""Settings for a capture.

Owns the settings, their ranges and their validation.
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
    """The settings for a capture."""

    connection_string: str = field(repr=False)
    entities: Sequence[str]
    target_uri: str
    """Folder or URL to which files are written."""
    limits: WindowLimits = DEFAULT_LIMITS
    namespace: str | None = None
    """First folder of all paths (default: derived from the host name)."""
    ca_file: str | None = None
    completes_captured: bool = False
    """Whether captured messages are completed. If so, the capture is the exclusive receiver."""
    allows_data_loss: bool = False
    """Whether to continue if messages were lost before they were captured."""
    available_now: bool = False
    """Whether to stop once all messages present at startup are captured."""

    def namespace_name(self) -> str:
        """Return the first folder of all paths."""
        endpoint = ConnectionString.parse(self.connection_string)
        return self.namespace or endpoint.namespace or f"{endpoint.host}-{endpoint.amqp_port}"

    def source_options(self, path: str) -> SourceOptions:
        """Return the options for reading one of the entities."""
        options = {"connectionString": self.connection_string, "entity": path, "caFile": self.ca_file or ""}
        return read_options(options)


def make_limits(window_s: float, size_mb: int) -> WindowLimits:
    """Create limits. Raise PipelineError if a value is out of range."""
    if not WINDOW_RANGE_S[0] <= window_s <= WINDOW_RANGE_S[1]:
        raise PipelineError(f"a window of {window_s:g} s; use {WINDOW_RANGE_S[0]:g} to {WINDOW_RANGE_S[1]:g} s")
    if not SIZE_RANGE_MB[0] <= size_mb <= SIZE_RANGE_MB[1]:
        raise PipelineError(f"a size of {size_mb} MB; use {SIZE_RANGE_MB[0]} to {SIZE_RANGE_MB[1]} MB")
    return WindowLimits(window_s, size_mb * MEGABYTE)
