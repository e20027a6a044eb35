"""The examples, the diagram and the statements of docs/pairing.md match the code."""

from __future__ import annotations

import json
import os
import re
import runpy
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.support.server_process import START_TIMEOUT_S, wait_until
from twinbus.client.pairing.backlog.rewriting import ALIASES
from twinbus.client.pairing.failover.entity_health import TRANSITIONS
from twinbus.client.sync import MessagingFactory
from twinbus.model.errors import EntityNotFound

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).parents[3]
NAMES: Final = ("contoso", "contoso-backup")
PAGE: Final = (ROOT / "docs" / "pairing.md").read_text()


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """The directory where `make run` runs, on free ports because the default ports may be in use."""
    environment = {**os.environ, "PORTS": " ".join("0" * 8)}
    command = [ROOT / "tools" / "run", tmp_path / ".run"]
    with (tmp_path / "output").open("w") as output:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.DEVNULL)
    try:
        wait_until(
            lambda: all((tmp_path / ".run" / f"{name}.json").exists() for name in NAMES), timeout_s=START_TIMEOUT_S
        )
        yield tmp_path
    finally:
        process.terminate()
        process.wait(START_TIMEOUT_S)


def test_the_example_runs_as_printed_against_the_pair_of_make_run(directory: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    for _ in range(2):  # in the second run, the queue exists already
        completed = subprocess.run(
            [sys.executable, "-c", example], cwd=directory, capture_output=True, text=True, check=False
        )
        assert (completed.returncode, completed.stdout, completed.stderr) == (0, "", "")
    ready = json.loads((directory / ".run" / "contoso.json").read_text())
    with MessagingFactory.from_connection_string(ready["connection_string"]) as factory:
        messages = factory.create_queue_client("orders").receive_batch(2, 5)
    assert [message.text for message in messages] == ["two pounds of apples"] * 2


def test_the_secondary_of_make_run_keeps_running_when_the_primary_is_killed(directory: Path) -> None:
    ready = {name: json.loads((directory / ".run" / f"{name}.json").read_text()) for name in NAMES}
    os.kill(ready["contoso"]["pid"], signal.SIGKILL)
    output = directory / "output"
    wait_until(lambda: "To start it again" in output.read_text(), timeout_s=START_TIMEOUT_S)
    (command,) = re.findall(r"^    (.* serve contoso --data=.*)$", output.read_text(), re.MULTILINE)
    backup = MessagingFactory.from_connection_string(ready["contoso-backup"]["connection_string"])
    with backup as factory, pytest.raises(EntityNotFound):
        factory.create_queue_client("missing").receive(1)
    restarted = subprocess.Popen(shlex.split(command), cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        file = directory / ".run" / "contoso.json"
        wait_until(lambda: json.loads(file.read_text())["pid"] == restarted.pid, timeout_s=START_TIMEOUT_S)
    finally:
        restarted.terminate()
        restarted.wait(START_TIMEOUT_S)


def test_the_state_diagram_matches_the_transition_table() -> None:
    tool = runpy.run_path(str(ROOT / "tools" / "draw_states.py"))
    assert tool["diagram"](TRANSITIONS) in PAGE


def test_every_alias_is_documented() -> None:
    assert set(re.findall(r"^\| `(x-ms-\w+)` \|", PAGE, re.MULTILINE)) == ALIASES


def test_r025_r027_r068_the_page_says_which_tasks_the_owner_and_the_application_have() -> None:
    text = " ".join(PAGE.split())
    assert "Nothing is guaranteed for backlog queues that somebody else has changed" in text
    assert "The owner of the namespace has to remove backlog queues that are no longer used" in text
    syphon = text.partition("## The syphon")[2]
    assert syphon.strip().startswith(
        "At least one program of the application must run the syphon (`enable_syphon=True`)"
    )
    assert "If no application runs the syphon, use `twinbus pair drain` to move parked messages back by hand" in syphon
