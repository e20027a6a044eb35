"""No-op callbacks, for callers that do not wait for a result."""

from __future__ import annotations


def do_nothing() -> None:
    """Ignore a completion without a result."""


def ignore(_outcome: object) -> None:
    """Ignore the result of an operation: an error or None, a count, or a reply."""
