"""What docs/testing.md says is so."""

from __future__ import annotations

import re
from pathlib import Path

from twinbus.testing import InMemoryNamespace, Outage

PAGE = (Path(__file__).parents[2] / "docs" / "testing.md").read_text()


def test_the_example_runs() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, object] = {"__name__": "example"}
    exec(compile(example, "docs/testing.md", "exec"), names)  # noqa: S102  # ours
    test = names["test_orders_go_to_the_secondary_while_the_primary_is_down"]
    assert callable(test)
    test()


def test_every_outage_is_told() -> None:
    told = set(re.findall(r"^\| `(\w+)\(", PAGE.partition("## Outages")[2], re.MULTILINE))
    inner = {"restore", "apply"}
    assert told == {name for name in vars(Outage) if not name.startswith("_")} - inner


def test_what_a_namespace_is_said_to_have_it_has() -> None:
    table = PAGE.partition("## A namespace")[2].partition("## Outages")[0]
    told = re.findall(
        r"`(\w+)[`(]", "".join(line.split("|")[1] for line in table.splitlines() if line.startswith("| `"))
    )
    assert len(told) == 13
    assert [name for name in told if not hasattr(InMemoryNamespace, name)] == []
