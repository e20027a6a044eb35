"""docs/filters.md matches the code: its example runs, and its tables and limits are correct."""

from __future__ import annotations

import re
from pathlib import Path

from twinbus.broker.filters.arithmetic import MAX_STRING_CHARACTERS
from twinbus.broker.filters.like_pattern import MAX_PATTERN_CHARACTERS
from twinbus.broker.filters.parser import MAX_DEPTH
from twinbus.broker.filters.system_properties import SYSTEM_PROPERTIES
from twinbus.broker.work_budget import MIN_UNITS, UNITS_PER_TURN
from twinbus.model.limits import NamespaceLimits
from twinbus.model.rule import MAX_EXPRESSION_CHARACTERS

PAGE = (Path(__file__).parents[3] / "docs" / "filters.md").read_text()


def test_the_example_runs() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert "assert index.match" in example
    exec(compile(example, "docs/filters.md", "exec"), {"__name__": "example"})  # noqa: S102  # an example from our documentation


def test_the_page_lists_every_system_property_and_whether_it_can_be_set() -> None:
    (table,) = re.findall(r"### System properties\n\n(.*?)\n\n", PAGE, re.DOTALL)
    rows = [line.strip("|").split("|") for line in table.splitlines()[2:]]
    documented = {name: settable.strip() for names, _, settable in rows for name in re.findall(r"[A-Z]\w+", names)}
    expected = {name: entry.is_settable for entry in SYSTEM_PROPERTIES for name in entry.names}
    assert {name: settable.startswith("yes") for name, settable in documented.items()} == expected


def test_the_page_states_the_limits() -> None:
    documented = [int(number.replace(",", "")) for number in re.findall(r"^\| .* \| ([\d,]+) \|$", PAGE, re.MULTILINE)]
    assert documented == [MAX_EXPRESSION_CHARACTERS, MAX_DEPTH, MAX_PATTERN_CHARACTERS, MAX_STRING_CHARACTERS]


def test_the_page_states_the_cost_limits_of_rules() -> None:
    limits = NamespaceLimits()
    assert f"`max_rule_cost` (default: {limits.max_rule_cost:,})" in PAGE
    assert f"`max_topic_rule_cost` (default: {limits.max_topic_rule_cost:,})" in PAGE
    assert f"`max_topic_actions` (default: {limits.max_topic_actions:,})" in PAGE
    assert f"a budget** of {UNITS_PER_TURN:,} units" in PAGE
    assert f"cost up to {MIN_UNITS} units never waits" in PAGE
