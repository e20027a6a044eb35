"""Rehearsed outages, for testing how clients handle failures: the kinds of outages and the limits on their duration.

Owns the names and the limits. The server starts and stops outages; the broker applies them to entities.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

ALL_ENTITIES: Final = "*"
"""Placeholder for an entity's path that means the whole namespace; no entity can have this path."""
MIN_OUTAGE_S: Final = 1.0
MAX_OUTAGE_S: Final = 3_600.0


class OutageKind(Enum):
    """Effect of an outage on clients."""

    REFUSE = "refuse"
    """Requests fail as if the store did not work (unavailable)."""
    BUSY = "busy"
    """Requests fail as if the server were busy (throttled)."""
    SILENT = "silent"
    """Requests get no response during the outage."""
