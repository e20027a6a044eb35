"""Durations and sizes as people write them: 30s, 1h30m, 14d, never; 5GB, 256KiB.

Owns parsing both notations in options, and formatting them in tables. ISO 8601 durations, which entity files and the
wire protocols use, are also accepted.
"""

from __future__ import annotations

import re
from typing import Final

import typer

from twinbus.model.description import FOREVER_MS

NEVER: Final = "never"
_UNITS_MS: Final = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
_MAX_CHARACTERS: Final = 60
_DURATION: Final = re.compile(r"(?:[0-9]{1,12}(?:\.[0-9]{1,6})?(?:d|h|ms|m|s))+")
_PART: Final = re.compile(r"([0-9.]+)(d|h|ms|m|s)")
_SIZE_UNITS: Final = (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


def parse_duration(text: str) -> int:
    """Return a duration in milliseconds. Raise BadParameter if the text is not a duration above zero."""
    from twinbus.model.atom import durations  # noqa: PLC0415  # `--help` starts faster
    from twinbus.model.errors import InvalidArgument  # noqa: PLC0415

    normal = text.strip().lower()
    if normal == NEVER:
        return FOREVER_MS
    if len(normal) <= _MAX_CHARACTERS and _DURATION.fullmatch(normal):
        total_ms = round(sum(float(amount) * _UNITS_MS[unit] for amount, unit in _PART.findall(normal)))
        if total_ms > 0:
            return min(total_ms, FOREVER_MS)
        raise typer.BadParameter(f"{text!r:.60} is too short: use 1ms or more")
    try:
        return durations.parse_duration(text.strip().upper())
    except InvalidArgument:
        raise typer.BadParameter(
            f"{text!r:.60} is not a duration: use 30s, 5m, 1h30m, 14d, ISO 8601 (PT30S), or never"
        ) from None


def format_duration(milliseconds: int) -> str:
    """Return a duration as `parse_duration` reads it, such as 1h30m."""
    if milliseconds >= FOREVER_MS:
        return NEVER
    parts = []
    for unit, unit_ms in _UNITS_MS.items():
        amount, milliseconds = divmod(milliseconds, unit_ms)
        if amount:
            parts.append(f"{amount}{unit}")
    return "".join(parts) or "0s"


def parse_size(text: str) -> int:
    """Return a size in bytes. Raise BadParameter if the text is not a size."""
    from twinbus.server.config import settings  # noqa: PLC0415  # one notation for all commands

    try:
        return settings.parse_size("size", text.strip())
    except settings.InvalidSetting:
        raise typer.BadParameter(f"{text!r:.60} is not a size: use 5GB, 256KiB or a number of bytes") from None


def format_size(size: int) -> str:
    """Return a size in its largest binary unit, such as 1.5GiB."""
    for unit, unit_bytes in _SIZE_UNITS:
        if size >= unit_bytes:
            return f"{round(size / unit_bytes, 1):g}{unit}"
    return f"{size}B"
