"""What a job tells its user when it cannot go on.

Owns: the one kind of error that is shown as its text alone. Its text says what was wrong, with what, and what to do.
"""

from __future__ import annotations


class PipelineError(Exception):
    """Something that the user can mend: an option, a file, a machine without Java."""
