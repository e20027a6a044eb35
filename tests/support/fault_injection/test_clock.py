"""The wall clock of a running program can be changed; its monotonic clock and the length of its waits stay the same."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from tests.support.fault_injection.clock import MovableClock

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = """
import datetime, sys, time
for _ in sys.stdin:
    now = datetime.datetime.now(datetime.timezone.utc).timestamp()
    print(time.time(), now, time.monotonic(), flush=True)
"""
WAITING = """
import ctypes, sys, time
libc = ctypes.CDLL(None)
semaphore = (ctypes.c_char * 64)()
assert libc.sem_init(semaphore, 0, 0) == 0
until = (ctypes.c_long * 2)(int(time.time()) + 1, 0)
began = time.monotonic()
assert libc.sem_timedwait(semaphore, until) == -1
print(time.monotonic() - began)
"""


@pytest.fixture
def clock(tmp_path: Path) -> MovableClock:
    return MovableClock(tmp_path / "control")


def test_a_running_program_sees_the_changed_clock_at_once(clock: MovableClock) -> None:
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(
        command, env=clock.environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        for seconds in (0.0, 7200.0, -600.25, 0.0):
            clock.set_offset(seconds)
            program.stdin.write("\n")
            program.stdin.flush()
            wall_s, now_s, monotonic_s = (float(word) for word in program.stdout.readline().split())
            assert wall_s - time.time() == pytest.approx(seconds, abs=5)
            assert now_s - time.time() == pytest.approx(seconds, abs=5)
            assert monotonic_s == pytest.approx(time.monotonic(), abs=5)
        program.stdin.close()


def test_a_deadline_is_measured_on_the_changed_clock(clock: MovableClock) -> None:
    clock.set_offset(7200)
    completed = subprocess.run(
        [sys.executable, "-c", WAITING], env=clock.environment(), capture_output=True, text=True, timeout=60, check=True
    )
    assert float(completed.stdout) < 1.5


def test_the_clock_keeps_libraries_that_are_already_preloaded(clock: MovableClock) -> None:
    environment = clock.environment({"LD_PRELOAD": "/some/library.so"})
    assert environment["LD_PRELOAD"].startswith("/some/library.so:")
