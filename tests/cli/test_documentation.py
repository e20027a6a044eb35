"""docs/cli.md lists every command with its purpose, and its examples print what the page shows."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import typer

from tests.support.cli import invoke
from tests.support.server_process import run_server
from twinbus.cli.main import app

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = Path(__file__).parents[2].joinpath("docs/cli.md").read_text("utf-8")


def commands(command: Any = None, path: str = "twinbus") -> Iterator[tuple[str, Any]]:  # noqa: ANN401  # click's types
    """All commands that are not groups, with their full names."""
    command = command or typer.main.get_command(app)
    if not hasattr(command, "commands"):
        yield path, command
        return
    for name, child in command.commands.items():
        yield from commands(child, f"{path} {name}")


COMMANDS = dict(commands())


def test_the_page_lists_every_command_with_the_purpose_in_its_help() -> None:
    listed = re.findall(r"^\| `(twinbus [^`]+)` \| (.*) \|$", PAGE, re.MULTILINE)
    assert listed == [(path, " ".join(command.help.split("\n\n")[0].split())) for path, command in COMMANDS.items()]


@pytest.mark.parametrize("path", COMMANDS)
def test_the_help_of_every_command_has_examples_with_options_that_exist(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = COMMANDS[path]
    examples = [line.strip() for line in (command.epilog or "").splitlines() if f"{path} " in f"{line} "]
    assert examples, f"{path} has no example"
    known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    for example in examples:
        words = shlex.split(example)
        options = {word.partition("=")[0] for word in words if re.match(r"--[a-z]", word)}
        assert options <= known, example
    monkeypatch.setenv("COLUMNS", "80")
    context = command.make_context(path, [], resilient_parsing=True)
    assert all(len(line) <= 80 for line in command.get_help(context).splitlines())


def test_every_command_that_prints_data_has_json() -> None:
    without = {path for path, command in COMMANDS.items() if not any("--json" in one.opts for one in command.params)}
    assert without == {
        "twinbus serve",
        "twinbus config sample",
        "twinbus entity export",
        "twinbus profile add",
        "twinbus profile use",
        "twinbus profile remove",
    }


def test_the_help_of_a_group_shows_the_whole_purpose_of_each_command() -> None:
    for group in ((), ("message",), ("pair",), ("entity",)):
        output = invoke(*group, "--help").output
        assert "..." not in output.partition("Commands:")[2]
        assert all(len(line) <= 80 for line in output.splitlines())


def test_the_examples_print_what_the_page_shows(tmp_path: Path) -> None:
    folder = tmp_path / "server"
    folder.mkdir()
    with run_server(folder) as server:
        ready_file = Path("twinbus-data/contoso.json")
        ready_file.parent.mkdir()
        ready_file.write_bytes(server.ready_file.read_bytes())
        for block in re.findall(r"^```console\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL):
            for step in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
                line, _, expected = step.partition("\n")
                result = invoke(*shlex.split(line)[1:])
                assert result.exit_code == 0, result.output
                pattern = ".*".join(map(re.escape, expected.split("...")))
                assert re.fullmatch(pattern, result.output), result.output
