"""Fixtures that several test files of this folder share."""

from tests.support.withholding import cannot_withhold, waiting_state

__all__ = ["cannot_withhold", "waiting_state"]
