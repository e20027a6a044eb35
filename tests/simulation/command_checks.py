"""Checks for the commands of simulations: a seed is reproducible, and a failed run prints how to repeat it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run_python(*arguments: str, hash_seed: int = 0) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONHASHSEED": str(hash_seed)}
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


def assert_a_seed_means_the_same_steps_in_every_process(module: str) -> None:
    arguments = ("-m", module, "--seed", "7", "--runs", "1", "--trace")
    first, second = run_python(*arguments, hash_seed=1), run_python(*arguments, hash_seed=2)
    assert first.stdout == second.stdout
    assert len(first.stdout.splitlines()) > 50


def assert_a_run_that_fails_says_how_to_repeat_it(module: str, planted: str, runs: int) -> None:
    """`planted` is Python code that plants a fault in the broker."""
    script = f"import sys\nfrom {module}.__main__ import main\n{planted}\nsys.exit(main())\n"
    first_run = run_python("-c", script, "--runs", str(runs), "--processes", "1")
    assert first_run.returncode == 1
    seed, *_ = [line.split()[3][:-1] for line in first_run.stdout.splitlines() if line.startswith("FOUND by seed")]
    assert f"once more: python -m {module} --seed {seed} --runs 1 --trace" in first_run.stdout
    second_run = run_python("-c", script, "--seed", seed, "--runs", "1", "--trace")
    assert second_run.returncode == 1
    assert "Violation" in second_run.stdout
