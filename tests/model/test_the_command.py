"""The command says which seed failed and how to repeat it, and a seed means the same steps in every process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(*arguments: str, hash_seed: int = 0) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONHASHSEED": str(hash_seed)}
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


def test_a_seed_means_the_same_steps_in_every_process() -> None:
    command = ("-m", "tests.model", "--seed", "7", "--runs", "1", "--trace")
    first, second = run(*command, hash_seed=1), run(*command, hash_seed=2)
    assert first.stdout == second.stdout
    assert len(first.stdout.splitlines()) > 50


def test_a_run_that_fails_says_how_to_repeat_it() -> None:
    script = """
import sys
from tests.model.__main__ import main
from twinbus.broker.hold import Hold
Hold.put_back = lambda self, sequence, record: self.ready.append((sequence, record))
sys.exit(main())
"""
    ran = run("-c", script, "--runs", "60", "--processes", "1")
    assert ran.returncode == 1
    seed, *_ = [line.split()[3][:-1] for line in ran.stdout.splitlines() if line.startswith("FOUND by seed")]
    assert f"once more: python -m tests.model --seed {seed} --runs 1 --trace" in ran.stdout
    again = run("-c", script, "--seed", seed, "--runs", "1", "--trace")
    assert again.returncode == 1
    assert "Violation" in again.stdout
