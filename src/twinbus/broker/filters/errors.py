"""What can go wrong with a rule after it was made.

Owns: that one error. A rule that cannot be made at all is refused with `model.errors.InvalidArgument`.
"""

from __future__ import annotations


class FilterError(Exception):
    """A rule that cannot be evaluated for this message: something is divided by zero, or a number added to a text."""
