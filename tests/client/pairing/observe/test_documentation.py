"""docs/observing-a-pair.md documents all metrics, log levels, journal columns and alarms, and its examples run."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pytest

from tests.client.pairing.observe.fake_pair import FakePair, run_scenario
from twinbus.client.journal_file import SCHEMA
from twinbus.client.pairing import AlarmKind
from twinbus.client.pairing.observe.event_publisher import LOG_LEVELS

PAGE = (Path(__file__).parents[4] / "docs" / "observing-a-pair.md").read_text()


def examples() -> dict[str, Any]:
    """Run the examples of the page, and return the names that they define."""
    names: dict[str, Any] = {}
    for example in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(compile(example, "docs/observing-a-pair.md", "exec"), names)  # noqa: S102  # the examples of our own page
    return names


def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    show = examples()["show"]

    async def scenario(pair: FakePair) -> None:
        pair.fail_over("orders")
        await show(pair.pairing)

    run_scenario(scenario)
    assert "orders failed over it is gone" in capsys.readouterr().out


def test_x02_the_example_of_one_entity_runs() -> None:
    is_delayed = examples()["is_delayed"]

    async def scenario(pair: FakePair) -> None:
        assert not is_delayed(pair.pairing, "orders")
        pair.fail_over("orders")
        assert is_delayed(pair.pairing, "orders")
        assert not is_delayed(pair.pairing, "invoices")

    run_scenario(scenario)


def test_every_metric_is_documented() -> None:
    prometheus = pytest.importorskip("prometheus_client", reason="requirements.lock has it: make setup")
    documented = dict(re.findall(r"^\| `(twinbus_pairing_\w+)` \| (.*?) ?\|", PAGE, re.MULTILINE))

    async def scenario(pair: FakePair) -> None:
        registry = prometheus.CollectorRegistry()
        pair.pairing.metrics(registry)
        names = {f"{metric.name}_total" if metric.type == "counter" else metric.name for metric in registry.collect()}
        assert set(documented) == names

    run_scenario(scenario)


def test_the_log_level_of_every_event_is_documented() -> None:
    documented = {
        event: getattr(logging, level.upper())
        for level, events in re.findall(r"^\| (error|warning|info|debug) \| (.*) \|", PAGE, re.MULTILINE)
        for event in events.split(", ")
    }
    assert documented == {kind.value: level for kind, level in LOG_LEVELS.items()}


def test_every_column_of_the_journal_is_documented() -> None:
    table = PAGE.partition("| column |")[2]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == SCHEMA.names


def test_every_alarm_is_documented() -> None:
    assert set(re.findall(r"^\| `([A-Z_]+)` \|", PAGE, re.MULTILINE)) == {kind.name for kind in AlarmKind}
