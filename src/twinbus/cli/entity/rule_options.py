"""Options that describe a rule: a filter (SQL, or properties with their expected values), and an action.

Owns the notation of correlation filters, `label=alarm` and `region=eu`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from twinbus.cli.output import Misuse

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinbus.model.rule import Filter, RuleDescription

FilterOption = Annotated[
    str | None, typer.Option("--filter", metavar="SQL", help="Condition in SQL, such as 'priority > 5'.")
]
CorrelationOption = Annotated[
    list[str] | None,
    typer.Option(
        "--equal",
        metavar="NAME=TEXT",
        help="Match messages with this sys.Label, sys.MessageId, ... or application property; repeatable.",
    ),
]
ActionOption = Annotated[
    str | None, typer.Option("--action", metavar="SQL", help="Changes to matching messages, such as 'SET seen = 1'.")
]
_SYSTEM_PREFIX = "sys."


def make_rule(name: str, where: str | None, equal: Sequence[str], action: str | None) -> RuleDescription:
    """Return the rule that the options describe. Raise Misuse if the options contradict each other."""
    from twinbus.model.rule import RuleDescription, SqlAction, SqlFilter, TrueFilter  # noqa: PLC0415

    if where is not None and equal:
        raise Misuse("give only one of --filter and --equal: SQL can express both")
    rule_filter: Filter = TrueFilter() if where is None else SqlFilter(expression=where)
    if equal:
        rule_filter = _make_correlation(equal)
    return RuleDescription(
        name=name, filter=rule_filter, action=None if action is None else SqlAction(expression=action)
    )


def _make_correlation(texts: Sequence[str]) -> Filter:
    from twinbus.model.rule import CorrelationFilter, Value  # noqa: PLC0415

    fields = {name.replace("_", ""): name for name in CorrelationFilter.__struct_fields__ if name != "properties"}
    system: dict[str, str] = {}
    properties: dict[str, Value] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name:
            raise Misuse(f"--equal {text!r:.80} has no value: use NAME=TEXT, such as sys.Label=alarm")
        if not name.lower().startswith(_SYSTEM_PREFIX):
            properties[name] = Value("string", value)
            continue
        field = fields.get(name.lower().removeprefix(_SYSTEM_PREFIX))
        if field is None:
            raise Misuse(f"there is no {name!r:.80}: use {', '.join(f'sys.{known}' for known in fields)}")
        system[field] = value
    return CorrelationFilter(**system, properties=properties)
