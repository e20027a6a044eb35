"""Properties of entities, as a file has them and as descriptions have them.

Owns: which type of value each field of a description takes in a file, and that a value that no entity can have is
refused at its own key. What is valid is for the model to say.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Final, TypeAlias

from twinbus.model.atom import durations
from twinbus.model.description import SETTABLE_RANGES
from twinbus.model.errors import InvalidArgument
from twinbus.server.config.plan import DesiredProperties
from twinbus.server.config.section import boolean, duration_ms, text, whole_number

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from twinbus.server.config.place import Location
    from twinbus.server.config.plan import DescriptionType
    from twinbus.server.config.section import Section

    Ranges: TypeAlias = Mapping[str, tuple[int, int]]

_READER_BY_TYPE: Final[Mapping[str, Callable[[Location, object], object]]] = {
    "int": whole_number,
    "bool": boolean,
    "str": text,
    "str | None": text,
}


def field_readers(description_type: DescriptionType) -> dict[str, Callable[[Location, object], object]]:
    """How each field of a description is read. Those that are no single value are not here."""
    found: dict[str, Callable[[Location, object], object]] = {}
    for field in fields(description_type):
        if field.name.endswith("_ms"):
            found[field.name] = duration_ms
        elif field.type in _READER_BY_TYPE:
            found[field.name] = _READER_BY_TYPE[str(field.type)]
    return found


def read_properties(
    section: Section, description_type: DescriptionType, keys: Mapping[str, str], ranges: Ranges = SETTABLE_RANGES
) -> DesiredProperties:
    """Read all of these keys that are there; `keys` says which field each is, `ranges` which durations it can have."""
    readers = field_readers(description_type)
    values: dict[str, object] = {}
    places: dict[str, Location] = {}
    for key, field in keys.items():
        value = section.get(key, readers[field])
        if value is None:
            continue
        place = section.location.child(key)
        values[field] = None if value == "" else value  # an empty text says that there is none
        places[field] = place
        _check_value(description_type, field, values[field], place, ranges)
    try:
        description_type(**values)  # type: ignore[arg-type]  # each is of the type that its reader gives
    except InvalidArgument as error:
        raise section.location.error(str(error)) from None
    return DesiredProperties(values=values, locations=places)


def _check_value(
    description_type: DescriptionType, field: str, value: object, location: Location, ranges: Ranges
) -> None:
    """Whether an entity can have this value at all."""
    if field.endswith("_ms") and isinstance(value, int):
        lowest, highest = ranges[field]
        if not lowest <= value <= highest:
            bounds = f"{durations.format_duration(lowest)} to {durations.format_duration(highest)}"
            raise location.error(f"{durations.format_duration(value)}: it can be {bounds}")
    try:
        description_type(**{field: value})  # type: ignore[arg-type]  # as above
    except InvalidArgument as error:
        raise location.error(str(error)) from None
