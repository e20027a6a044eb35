"""What the fuzzer looks for: something that must never happen.

Owns: the exceptions that carry it out of the engine, past every `except` in it.
"""

from __future__ import annotations


class Finding(BaseException):
    """A rule was broken. No Exception, so that no code under test takes it for one of its own."""


class Hang(Finding):
    """One input took too long."""


def require(condition: object, rule: str) -> None:
    """`rule` must hold."""
    if not condition:
        raise Finding(rule)
