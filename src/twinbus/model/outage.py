"""An outage that somebody makes on purpose, to see what becomes of it: how it shows, and how long it may last.

Owns: the words and the limits. Who switches one on is the server's affair, what it does to an entity the broker's.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

ALL_ENTITIES: Final = "*"
"""In place of an entity's path: the whole namespace. No entity can be called so."""
MIN_OUTAGE_S: Final = 1.0
MAX_OUTAGE_S: Final = 3_600.0


class OutageKind(Enum):
    """What clients see of it."""

    REFUSE = "refuse"
    """They are told that the store does not work: unavailable."""
    BUSY = "busy"
    """They are told to wait: throttled."""
    SILENT = "silent"
    """They are not told anything while it lasts."""
