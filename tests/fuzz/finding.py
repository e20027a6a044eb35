"""Exceptions of the fuzzer: a rule of the engine was violated.

Owns: the exception classes, which pass through every `except Exception` of the engine.
"""

from __future__ import annotations


class Finding(BaseException):
    """A violated rule. Not an Exception, so that the code under test does not catch it."""


class Hang(Finding):
    """An input that took too long."""


def require(condition: object, rule: str) -> None:
    """Raise Finding with the text `rule` if `condition` is false."""
    if not condition:
        raise Finding(rule)
