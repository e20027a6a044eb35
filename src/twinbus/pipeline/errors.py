"""The error that a job reports to its user.

Owns `PipelineError`. Commands print the text of a PipelineError without a traceback, so the text says what failed, with
which value, and what to do.
"""

from __future__ import annotations


class PipelineError(Exception):
    """An error that the user can fix: a wrong option, a missing file, a machine without Java."""
