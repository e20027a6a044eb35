"""Callbacks that do nothing: for callers that do not wait for an answer."""

from __future__ import annotations


def do_nothing() -> None:
    """Be called when something is done."""


def ignore(_outcome: object) -> None:
    """Take an outcome: an error or None, a count, an answer."""
