"""Times and durations between Python and the wire.

Owns: the conversions. On the wire a moment is milliseconds since 1970 (`Timestamp`), and a duration in a property is
.NET's `com.microsoft:timespan`: hundreds of nanoseconds.
"""

from __future__ import annotations

import datetime as dt
from typing import Final

from twinbus.amqp.types import Described, Symbol, Timestamp
from twinbus.model.description import FOREVER_MS

TIMESPAN: Final = Symbol("com.microsoft:timespan")
FOREVER: Final = dt.timedelta.max
"""What a duration that never ends is in Python; .NET's is `FOREVER_MS`."""
TICKS_PER_MS: Final = 10_000
"""A tick is .NET's 100 nanoseconds, the finest that any client sends."""
EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MILLISECOND: Final = dt.timedelta(milliseconds=1)


def datetime_of(epoch_ms: int) -> dt.datetime:
    """The moment so many milliseconds after 1970; OverflowError where Python has none."""
    return EPOCH + dt.timedelta(milliseconds=epoch_ms)


def milliseconds_of(moment: dt.datetime) -> int:
    """How many milliseconds after 1970; a moment without a zone is taken as UTC, as the names of properties say."""
    return ((moment if moment.tzinfo is not None else moment.replace(tzinfo=dt.UTC)) - EPOCH) // _MILLISECOND


def duration_ms(duration: dt.timedelta | float) -> int:
    """A duration, given as such or in seconds, in milliseconds; whatever is longer than .NET's longest is that."""
    if not isinstance(duration, dt.timedelta):
        return min(round(duration * 1000), FOREVER_MS)
    return min(duration // _MILLISECOND, FOREVER_MS)


def duration_s(duration: dt.timedelta | float) -> float:
    """A duration, given as such or in seconds, in seconds."""
    return duration.total_seconds() if isinstance(duration, dt.timedelta) else float(duration)


def timedelta_of(milliseconds: int) -> dt.timedelta:
    """So many milliseconds as a duration; `FOREVER` for .NET's longest."""
    return FOREVER if milliseconds >= FOREVER_MS else dt.timedelta(milliseconds=milliseconds)


def to_wire(value: object) -> object:
    """A property's value as AMQP has it: moments and durations are the two that Python spells differently."""
    if isinstance(value, dt.datetime):
        return Timestamp(milliseconds_of(value))
    if isinstance(value, dt.timedelta):
        return timespan(duration_ms(value))
    return value


def from_wire(value: object) -> object:
    """The opposite of `to_wire`. What Python has no date for stays as it came."""
    if type(value) is Timestamp:
        try:
            return datetime_of(value)
        except OverflowError:
            return value
    if isinstance(value, Described) and value.descriptor == TIMESPAN and isinstance(value.value, int):
        return timedelta_of(value.value // TICKS_PER_MS)
    return value


def timespan(milliseconds: int) -> Described:
    """A duration as a property's value."""
    return Described(TIMESPAN, milliseconds * TICKS_PER_MS)
