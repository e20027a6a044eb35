"""The command prints which seed failed and how to repeat it, and a seed gives the same run in every process."""

from __future__ import annotations

from tests.simulation.command_checks import run_python
from tests.simulation.pair.faults import FAULT_KINDS

MODULE = "tests.simulation.pair"
PLANTED = """
import sys
sys.path.insert(0, "src")  # compiled, functions call each other directly, and none can be replaced
from tests.simulation.pair import command, planted_faults
planted_faults.label_changed(planted_faults.Patch())
sys.exit(command.main())
"""


def test_a_seed_means_the_same_in_every_process() -> None:
    first, second = (run_python("-m", MODULE, "--replay", "2", hash_seed=hash_seed) for hash_seed in (1, 2))
    assert first.stdout == second.stdout
    assert len(first.stdout.splitlines()) > 100
    assert first.stdout.splitlines()[-1].startswith("seed 2: ")


def test_a_run_that_fails_says_how_to_repeat_it() -> None:
    first_run = run_python("-c", PLANTED, "--outages", "10", "--seed", "2", "--processes", "1")
    assert first_run.returncode == 1, first_run.stderr
    seed, *_ = [line.split()[3][:-1] for line in first_run.stdout.splitlines() if line.startswith("FOUND by seed")]
    assert f"once more: python -m {MODULE} --replay {seed}" in first_run.stdout
    second_run = run_python("-c", PLANTED, "--replay", seed)
    assert second_run.returncode == 1
    assert "CHANGED: " in second_run.stdout


def test_runs_without_problems_report_their_outages_and_paths() -> None:
    completed = run_python("-m", MODULE, "--outages", "5", "--seed", "2", "--processes", "2")
    *lines, last = completed.stdout.splitlines()
    assert "runs from seed 2: 0 failed" in last
    counts = {
        name.strip(): int(count.replace(",", ""))
        for name, _, count in (line.rpartition(" ") for line in lines[1:] if line[-1:].isdigit())
    }
    assert sum(counts.get(kind, 0) for kind in FAULT_KINDS) >= 5
    assert counts["sends returned"] >= counts["sent to the primary"] > 0
