"""docs/pairing.md is true."""

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
    """Where `make run` was started, on ports of its own: the usual ones may be in use."""
    environment = {**os.environ, "PORTS": " ".join("0" * 8)}
    command = [ROOT / "tools" / "run", tmp_path / ".run"]
    with (tmp_path / "said").open("w") as said:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=said, stderr=subprocess.DEVNULL)
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
    for _ in range(2):  # the second time the queue is there
        done = subprocess.run(
            [sys.executable, "-c", example], cwd=directory, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    ready = json.loads((directory / ".run" / "contoso.json").read_text())
    with MessagingFactory.from_connection_string(ready["connection_string"]) as factory:
        messages = factory.create_queue_client("orders").receive_batch(2, 5)
    assert [message.text for message in messages] == ["two pounds of apples"] * 2


def test_the_secondary_of_make_run_goes_on_when_the_primary_is_killed(directory: Path) -> None:
    ready = {name: json.loads((directory / ".run" / f"{name}.json").read_text()) for name in NAMES}
    os.kill(ready["contoso"]["pid"], signal.SIGKILL)
    said = directory / "said"
    wait_until(lambda: "To start it again" in said.read_text(), timeout_s=START_TIMEOUT_S)
    (command,) = re.findall(r"^    (.* serve contoso --data .*)$", said.read_text(), re.MULTILINE)
    backup = MessagingFactory.from_connection_string(ready["contoso-backup"]["connection_string"])
    with backup as factory, pytest.raises(EntityNotFound):
        factory.create_queue_client("missing").receive(1)
    again = subprocess.Popen(shlex.split(command), cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        file = directory / ".run" / "contoso.json"
        wait_until(lambda: json.loads(file.read_text())["pid"] == again.pid, timeout_s=START_TIMEOUT_S)
    finally:
        again.terminate()
        again.wait(START_TIMEOUT_S)


def test_the_diagram_is_that_of_the_table() -> None:
    drawn = runpy.run_path(str(ROOT / "tools" / "draw_states.py"))
    assert drawn["diagram"](TRANSITIONS) in PAGE


def test_every_alias_is_told() -> None:
    assert set(re.findall(r"^\| `(x-ms-\w+)` \|", PAGE, re.MULTILINE)) == ALIASES


def test_r025_r027_r068_what_is_left_to_the_owner_and_to_the_application_is_said() -> None:
    text = " ".join(PAGE.split())
    assert "Nothing is guaranteed for backlog queues that somebody else has changed" in text
    assert "removing those that are no longer used is the namespace owner's task" in text
    syphon = text.partition("## The syphon")[2]
    assert syphon.strip().startswith("At least one program of the application runs it (`enable_syphon=True`;")
    assert "Without an application that runs it, parked messages are brought back by hand" in syphon
