"""A short fuzzing run with a fixed seed: no exceptions, hangs or memory growth. `make soak` runs for a given time."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

from tests.fuzz.campaign import run
from twinbus.amqp import errors, events
from twinbus.amqp.events import Event

ROOT = Path(__file__).parents[2]
SEED = 1
INPUTS = 12_000

CONDITIONS = {
    errors.DECODE_ERROR,
    errors.FRAME_SIZE_TOO_SMALL,
    errors.FRAMING_ERROR,
    errors.ILLEGAL_STATE,
    errors.INVALID_FIELD,
    errors.RESOURCE_LIMIT_EXCEEDED,
    errors.UNAUTHORIZED_ACCESS,
}


def test_no_input_of_a_seeded_run_makes_the_engine_raise_hang_or_grow(tmp_path: Path) -> None:
    tally = run(SEED, range(INPUTS), findings=tmp_path)
    assert [path.read_text() for path in tally.findings] == []
    assert tally.inputs == INPUTS
    # The run reached every event and every condition with which a connection is closed.
    event_names = {name for name, cls in inspect.getmembers(events, inspect.isclass) if issubclass(cls, Event)}
    assert event_names - {"Event"} - tally.seen.keys() == set()
    assert {f"closed by us: {condition}" for condition in CONDITIONS} - tally.seen.keys() == set()


def test_the_command_runs_in_several_processes_and_prints_a_summary(tmp_path: Path) -> None:
    command = ["-m", "tests.fuzz", "--inputs", "600", "--seed", "7", "--processes", "2", "--findings", str(tmp_path)]
    completed = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True, check=True)
    *_, last_line = completed.stdout.splitlines()
    assert "600 inputs" in last_line
    assert "0 findings, seed 7" in last_line
    assert "ConnectionClosed" in completed.stdout
