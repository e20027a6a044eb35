"""docs/pipeline-syphon.md: its example runs, and its tables list every option and column."""

from __future__ import annotations

import asyncio
import contextlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tests.pipeline.syphon.parked_pair import parked_payload, run_parked_pair
from twinbus.cli.pipeline import syphon
from twinbus.cli.pipeline.app import app
from twinbus.pipeline import spark as pipeline_spark
from twinbus.pipeline.syphon.report import SCHEMA

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest
    from pyspark.sql import SparkSession

PAGE = (Path(__file__).parents[3] / "docs" / "pipeline-syphon.md").read_text()


async def test_the_example_runs(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @contextlib.contextmanager
    def session(*_: object, **__: object) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr(pipeline_spark, "session", session)
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    async with run_parked_pair(tmp_path) as pair:
        await pair.park([parked_payload(f"order {number}") for number in range(30)])
        names: dict[str, Any] = {
            "__name__": "example",
            "PRIMARY": pair.primary.connection_string,
            "SECONDARY": pair.secondary.connection_string,
            "SECONDARY_ADMIN": pair.secondary.admin_connection_string,
            "CA_FILE": Path(pair.secondary.ca_file),
        }
        await asyncio.to_thread(exec, compile(example, "docs/pipeline-syphon.md", "exec"), names)
    assert "contoso/x-servicebus-transfer/0 to orders: 10 moved, 0 left" in capsys.readouterr().out


def test_every_option_is_documented() -> None:
    (command,) = [
        entry
        for entry in typer.main.get_group(app).commands.values()
        if entry.callback is not None and entry.name == "syphon"
    ]
    shown = [entry for entry in command.params if not getattr(entry, "hidden", False)]
    options = {name for entry in shown for name in entry.opts if name.startswith("--")} - {"--help"}
    assert syphon.syphon.__doc__
    assert options == set(re.findall(r"^\| `(--[a-z-]+)", PAGE, re.MULTILINE))


def test_every_column_is_documented() -> None:
    (table,) = re.findall(r"\| column \| \|\n(.*?)\n\n", PAGE, re.DOTALL)
    documented = [name for row in table.splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert documented == [column.split()[0] for column in SCHEMA.split(",")]
