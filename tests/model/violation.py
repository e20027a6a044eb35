"""What is wrong with a queue."""

from __future__ import annotations


class Violation(AssertionError):
    """The queue did what no queue should do, or did not what it should."""
