"""docs/pipeline-costs.md: its examples run, and it documents all options, prices and columns."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from typer.testing import CliRunner

from twinbus.cli.main import app
from twinbus.pipeline.costs.bill import money, operations_cost
from twinbus.pipeline.costs.focus import COLUMNS
from twinbus.pipeline.costs.setup import read_setup
from twinbus.pipeline.costs.tariff import default_tariff_path, read_tariff

if TYPE_CHECKING:
    import pytest

PAGE = (Path(__file__).parents[3] / "docs" / "pipeline-costs.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_the_example_of_a_prediction_runs() -> None:
    _, command = blocks("sh")
    arguments = shlex.split(command)
    assert arguments.pop(0) == "twinbus"
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "8,640" in result.output


def test_the_python_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = blocks("python")
    exec(compile(example, "docs/pipeline-costs.md", "exec"), {"__name__": "example"})  # noqa: S102  # our own page
    assert "active replication $89.41" in capsys.readouterr().out


def test_the_example_of_a_setup_file_is_valid(tmp_path: Path) -> None:
    (example,) = blocks("toml")
    file = tmp_path / "pair.toml"
    file.write_text(example)
    setup = read_setup(file)
    assert [traffic.name for traffic in setup.traffic] == ["orders", "news"]
    assert tomllib.loads(example)["outage_minutes"] == list(setup.outage_minutes)


def test_every_option_is_documented() -> None:
    group = typer.main.get_command(app)
    command = group.commands["pipeline"].commands["costs"]  # type: ignore[attr-defined]
    options = {
        name
        for parameter in command.params
        for name in (*parameter.opts, *parameter.secondary_opts)
        if name.startswith("--")
    }
    assert options - set(re.findall(r"--[a-z-]+", PAGE)) == set()


def test_the_tariff_is_documented_to_the_cent() -> None:
    documented = re.findall(r"^\| ([\d,]+) million \| (\$[\d,.]+) \|$", PAGE, re.MULTILINE)
    assert len(documented) == 6
    for millions, amount in documented:
        assert money(operations_cost(read_tariff(), int(millions.replace(",", "")) * 1_000_000)) == amount
    assert default_tariff_path().name in PAGE


def test_every_custom_column_is_documented() -> None:
    assert set(re.findall(r"`(x_\w+)`", PAGE)) == {name for name in COLUMNS if name.startswith("x_")}
