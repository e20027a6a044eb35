"""Temporarily smaller limits, so that few messages reach them."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def patched_constants(constants: list[tuple[Any, str, int]]) -> Iterator[None]:
    """Replace constants of modules, given as module, name and value, and restore them at the end."""
    before = [(module, name, getattr(module, name)) for module, name, _ in constants]
    for module, name, value in constants:
        setattr(module, name, value)
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)
