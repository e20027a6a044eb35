"""Fixtures of several files here."""

from tests.support.withholding import cannot_withhold, waiting_state

__all__ = ["cannot_withhold", "waiting_state"]
