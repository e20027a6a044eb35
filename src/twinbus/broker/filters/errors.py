"""Error raised when a rule fails for a message.

A rule that cannot be compiled is rejected with `model.errors.InvalidArgument` instead.
"""

from __future__ import annotations


class FilterError(Exception):
    """A rule cannot be evaluated for a message: for example, it divides by zero or adds a number to a string."""
