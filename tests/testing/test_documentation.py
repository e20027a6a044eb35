"""docs/testing.md matches the code: its example runs, and it lists all outages and members of a namespace."""

from __future__ import annotations

import re
from pathlib import Path

from twinbus.testing import InMemoryNamespace, Outage

PAGE = (Path(__file__).parents[2] / "docs" / "testing.md").read_text()


def test_the_example_runs() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, object] = {"__name__": "example"}
    exec(compile(example, "docs/testing.md", "exec"), names)  # noqa: S102  # an example from our documentation
    test = names["test_orders_go_to_the_secondary_while_the_primary_is_down"]
    assert callable(test)
    test()


def test_every_outage_is_documented() -> None:
    documented = set(re.findall(r"^\| `(\w+)\(", PAGE.partition("## Outages")[2], re.MULTILINE))
    internal = {"restore", "apply"}
    assert documented == {name for name in vars(Outage) if not name.startswith("_")} - internal


def test_documented_members_of_a_namespace_exist() -> None:
    table = PAGE.partition("## A namespace")[2].partition("## Outages")[0]
    documented = re.findall(
        r"`(\w+)[`(]", "".join(line.split("|")[1] for line in table.splitlines() if line.startswith("| `"))
    )
    assert len(documented) == 13
    assert [name for name in documented if not hasattr(InMemoryNamespace, name)] == []
