"""Properties of entities, as a file has them and as descriptions have them.

Owns: which type of value each field of a description takes in a file, and that a value that no entity can have is
refused at its own key. What is valid is for the model to say.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Final, TypeAlias

from twinbus.model.atom import durations
from twinbus.model.description import RANGES
from twinbus.model.errors import InvalidArgument
from twinbus.server.config.plan import Properties
from twinbus.server.config.section import duration_ms, flag, text, whole

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from twinbus.server.config.place import Place
    from twinbus.server.config.plan import Kind
    from twinbus.server.config.section import Section

    Ranges: TypeAlias = Mapping[str, tuple[int, int]]

_READERS: Final[Mapping[str, Callable[[Place, object], object]]] = {
    "int": whole,
    "bool": flag,
    "str": text,
    "str | None": text,
}


def readers_of(kind: Kind) -> dict[str, Callable[[Place, object], object]]:
    """How each field of a description is read. Those that are no single value are not here."""
    found: dict[str, Callable[[Place, object], object]] = {}
    for field in fields(kind):
        if field.name.endswith("_ms"):
            found[field.name] = duration_ms
        elif field.type in _READERS:
            found[field.name] = _READERS[str(field.type)]
    return found


def read_properties(section: Section, kind: Kind, keys: Mapping[str, str], ranges: Ranges = RANGES) -> Properties:
    """Read all of these keys that are there; `keys` says which field each is, `ranges` which durations it can have."""
    readers = readers_of(kind)
    values: dict[str, object] = {}
    places: dict[str, Place] = {}
    for key, field in keys.items():
        value = section.get(key, readers[field])
        if value is None:
            continue
        place = section.place.below(key)
        values[field] = None if value == "" else value  # an empty text says that there is none
        places[field] = place
        _check(kind, field, values[field], place, ranges)
    try:
        kind(**values)  # type: ignore[arg-type]  # each is of the type that its reader gives
    except InvalidArgument as error:
        raise section.place.refusal(str(error)) from None
    return Properties(values=values, places=places)


def _check(kind: Kind, field: str, value: object, place: Place, ranges: Ranges) -> None:
    """Whether an entity can have this value at all."""
    if field.endswith("_ms") and isinstance(value, int):
        lowest, highest = ranges[field]
        if not lowest <= value <= highest:
            bounds = f"{durations.write(lowest)} to {durations.write(highest)}"
            raise place.refusal(f"{durations.write(value)}: it can be {bounds}")
    try:
        kind(**{field: value})  # type: ignore[arg-type]  # as above
    except InvalidArgument as error:
        raise place.refusal(str(error)) from None
