"""Values of options of the message commands: times and application properties.

Owns their notations. Durations are in `cli.units`.
"""

from __future__ import annotations

import datetime as dt
import re
from typing import TYPE_CHECKING, Final

import typer

from twinbus.cli.output import Misuse

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)
_FLOAT: Final = re.compile(r"[+-]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+)(?:[eE][+-]?[0-9]+)?", re.ASCII)
_BOOLEANS: Final = {"true": True, "false": False}


def _boolean(text: str) -> bool:
    if text.lower() not in _BOOLEANS:
        raise ValueError(text)
    return _BOOLEANS[text.lower()]


_TYPES: Final[dict[str, Callable[[str], object]]] = {"string": str, "int": int, "float": float, "bool": _boolean}


def parse_property(text: str) -> tuple[str, object]:
    """Return the name and the value of NAME=VALUE or NAME:TYPE=VALUE. Raise Misuse if the text is neither."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise Misuse(f"--property {text!r:.80} is not NAME=VALUE")
    base, colon, type_name = name.rpartition(":")
    if colon and base and type_name in _TYPES:
        try:
            return base, _TYPES[type_name](value)
        except ValueError:
            raise Misuse(f"--property {base}: {value!r:.80} is not a value of type {type_name}") from None
    return name, _guess(value)


def _guess(text: str) -> object:
    """Return a boolean, an integer, a float, or the text itself."""
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text


def parse_time(text: str) -> dt.datetime:
    """Return a time in ISO 8601; without a zone it is in UTC. Raise BadParameter if the text is not a time."""
    try:
        moment = dt.datetime.fromisoformat(text.strip())
    except ValueError:
        raise typer.BadParameter(f"{text!r:.60} is not a time: use ISO 8601, such as 2030-12-31T08:00:00Z") from None
    return moment.replace(tzinfo=dt.UTC) if moment.tzinfo is None else moment


def scheduled_time(at: dt.datetime | None, in_ms: int | None) -> dt.datetime | None:
    """Return the time that --at or --in gives, or None. Raise Misuse if both are given."""
    if at is not None and in_ms is not None:
        raise Misuse("give only one of --at and --in")
    if in_ms is None:
        return at
    try:
        return dt.datetime.now(dt.UTC) + dt.timedelta(milliseconds=in_ms)
    except OverflowError:
        raise Misuse("--in is longer than 1,000 years") from None


def check_one_of(**choices: object) -> str:
    """Return the name of the only choice that is set. Raise Misuse if several choices or none are set."""
    given = [name for name, value in choices.items() if value]
    if len(given) != 1:
        *names, last = choices
        raise Misuse(f"give one of {', '.join(names)} and {last}")
    return given[0]


def check_numbers(numbers: Sequence[int] | None) -> list[int] | None:
    """Return sequence numbers, or None if there are none. Raise Misuse if a number is not positive."""
    wrong = next((number for number in numbers or () if number < 1), None)
    if wrong is not None:
        raise Misuse(f"{wrong} is not a sequence number: they begin at 1")
    return list(numbers) if numbers else None
