"""What a factory can be."""

from __future__ import annotations

from enum import Enum


class FactoryState(Enum):
    """What a factory is."""

    OPEN = "open"
    """It can be used; whether it is connected is another question."""
    CLOSED = "closed"
    FAULTED = "faulted"
    """It gave up, or was given up; `fault` says why."""
