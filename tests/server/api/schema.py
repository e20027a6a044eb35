"""A check of JSON values against the schemas of an OpenAPI document, for the keywords that the document uses."""

from __future__ import annotations

import datetime as dt
from typing import Any

KNOWN = {
    "$ref", "anyOf", "default", "description", "enum", "format", "items", "properties", "required", "title", "type",
}  # fmt: skip
TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
    "array": (list,),
    "object": (dict,),
}


def find_mismatch(value: object, schema: dict[str, Any], document: dict[str, Any], where: str = "") -> str | None:
    """Return where and why a value does not match a schema; None if it matches."""
    assert set(schema) <= KNOWN, set(schema) - KNOWN
    if "$ref" in schema:
        name = schema["$ref"].removeprefix("#/components/schemas/")
        return find_mismatch(value, document["components"]["schemas"][name], document, where)
    if "anyOf" in schema:
        found = [find_mismatch(value, one, document, where) for one in schema["anyOf"]]
        return None if None in found else "; ".join(str(one) for one in found)
    if "enum" in schema:
        return None if value in schema["enum"] else f"{where} is {value!r}, not one of {schema['enum']}"
    if not isinstance(value, TYPES[schema["type"]]) or (isinstance(value, bool) and schema["type"] != "boolean"):
        return f"{where} is {value!r}, not {schema['type']}"
    if schema.get("format") == "date-time":
        assert isinstance(value, str)
        dt.datetime.fromisoformat(value)
    if isinstance(value, list):
        found = [find_mismatch(one, schema["items"], document, f"{where}[{at}]") for at, one in enumerate(value)]
        return next((one for one in found if one is not None), None)
    return _find_mismatch_in_object(value, schema, document, where) if isinstance(value, dict) else None


def _find_mismatch_in_object(
    value: dict[str, Any], schema: dict[str, Any], document: dict[str, Any], where: str
) -> str | None:
    properties = schema["properties"]
    if set(value) != set(properties):
        return f"{where} has other fields: {set(value) ^ set(properties)}"
    found = (find_mismatch(value[name], one, document, f"{where}.{name}") for name, one in properties.items())
    return next((one for one in found if one is not None), None)
