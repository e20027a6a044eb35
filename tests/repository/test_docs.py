"""The documents match the code."""

from __future__ import annotations

import dataclasses
import re
import runpy
from pathlib import Path

from twinbus.amqp.settings import Limits
from twinbus.model import errors

ROOT = Path(__file__).parents[2]


def test_the_example_in_the_page_on_the_engine_runs() -> None:
    page = (ROOT / "docs" / "amqp.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert "assert delivery.settled" in example
    exec(compile(example, "docs/amqp.md", "exec"), {"__name__": "example"})  # noqa: S102  # our own documentation


def test_the_page_on_the_engine_lists_every_limit_and_its_default() -> None:
    page = (ROOT / "docs" / "amqp.md").read_text()
    documented = dict(re.findall(r"^\| `(\w+)` \| ([\d,]+|True)", page, re.MULTILINE))
    defaults = {field.name: getattr(Limits(), field.name) for field in dataclasses.fields(Limits)}
    assert documented == {name: str(value) if value is True else f"{value:,}" for name, value in defaults.items()}


def test_the_state_diagrams_match_the_state_tables() -> None:
    drawn = runpy.run_path(str(ROOT / "tools" / "draw_states.py"))
    assert (ROOT / "docs" / "amqp-states.md").read_text() == drawn["page"]()


def test_the_page_on_errors_lists_every_error() -> None:
    page = (ROOT / "docs" / "errors.md").read_text()
    documented = set(re.findall(r"^\| (\w+) \| `(\S+)` \| (\d+) \| ([a-z' ]+) \| (yes|no) \|", page, re.MULTILINE))
    classes = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    kinds = [kind for kind in classes if issubclass(kind, errors.ServiceBusError)]
    assert documented == {
        (
            kind.__name__,
            kind.condition,
            str(kind.status),
            kind.failure_class.value,
            "yes" if kind.may_have_happened else "no",
        )
        for kind in kinds
        if kind not in {errors.ServiceBusError, errors.CallerError}
    }


def test_the_page_on_security_names_tests_that_exist() -> None:
    page = (ROOT / "docs" / "security.md").read_text()
    named = set(re.findall(r"`([\w/]+/test_\w+\.py)`", page))
    assert named
    assert [name for name in sorted(named) if not (ROOT / "tests" / name).is_file()] == []
