"""Fixtures of several files here."""

from tests.withholding import cannot_withhold, waiting

__all__ = ["cannot_withhold", "waiting"]
