"""Entities as JSON and as tables.

Owns the fields of the output; secrets of authorization rules are never part of it.
"""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

import msgspec

from twinbus.cli.entity.property_options import format_property
from twinbus.cli.output import format_time
from twinbus.cli.units import format_size
from twinbus.model.description import FRAGMENT_COUNT
from twinbus.model.rule import CorrelationFilter, FalseFilter, SqlFilter
from twinbus.model.times import datetime_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from twinbus.model.rule import RuleDescription

_SECRET_FIELDS = ("authorization_rules",)


def entity_json(
    kind: str,
    path: str,
    description: Any,  # noqa: ANN401  # of any kind
    runtime: Any = None,  # noqa: ANN401
    rules: Iterable[RuleDescription] | None = None,
) -> dict[str, object]:
    """Return an entity as JSON: properties with their fields' names, counts, and rules."""
    properties = {
        field.name: getattr(description, field.name)
        for field in fields(description)
        if field.name not in _SECRET_FIELDS
    }
    keys = getattr(description, "authorization_rules", None)
    content: dict[str, object] = {"kind": kind, "path": path, "properties": properties}
    if keys is not None:
        content["keys"] = [{"name": rule.name, "rights": rule.rights} for rule in keys]
    if runtime is not None:
        content["runtime"] = runtime_json(runtime)
    if rules is not None:
        content["rules"] = [rule_json(rule) for rule in rules]
    return content


def runtime_json(runtime: Any) -> dict[str, object]:  # noqa: ANN401  # of a queue or topic
    """Return the counts and times of an entity."""
    return {
        name.removesuffix("_ms"): datetime_of(value) if name.endswith("_ms") else value
        for name, value in asdict(runtime).items()
    }


def rule_json(rule: RuleDescription) -> dict[str, object]:
    """Return a rule as JSON."""
    content: dict[str, object] = msgspec.to_builtins(rule)
    del content["created_ms"]
    return content


def property_rows(description: Any, runtime: Any) -> Iterator[tuple[str, object]]:  # noqa: ANN401  # any description
    """Yield the properties and counts of an entity for a table."""
    for name, value in runtime_json(runtime).items():
        if name == "size_bytes":
            yield "size", format_size(int(str(value)))
        else:
            text = format_time(value) if name in ("created", "updated", "accessed") else value  # type: ignore[arg-type]
            yield _title(name), f"{text:,}" if isinstance(text, int) and not isinstance(text, bool) else text
    for field in fields(description):
        value = getattr(description, field.name)
        if field.name in _SECRET_FIELDS:
            yield "keys", ", ".join(f"{rule.name} ({', '.join(rule.rights)})" for rule in value) or None
            continue
        title = _title(field.name.removesuffix("_ms").removesuffix("_mb").removesuffix("_kb"))
        shown = format_property(field.name, value)
        if field.name == "max_size_mb" and getattr(description, "enable_partitioning", False):
            shown = f"{value:,} MiB: {FRAGMENT_COUNT} fragments of {value // FRAGMENT_COUNT:,} MiB"
        yield title, shown


def describe_filter(rule: RuleDescription) -> str:
    """Return the filter of a rule in one line."""
    if isinstance(rule.filter, SqlFilter):
        return rule.filter.expression
    if isinstance(rule.filter, CorrelationFilter):
        system = {name: getattr(rule.filter, name) for name in rule.filter.__struct_fields__ if name != "properties"}
        cells = [f"sys.{name} = {value!r}" for name, value in system.items() if value is not None]
        cells += [f"{name} = {value.text!r}" for name, value in rule.filter.properties.items()]
        return " AND ".join(cells)
    return "nothing" if isinstance(rule.filter, FalseFilter) else "everything"


def _title(name: str) -> str:
    return name.replace("_", " ")
