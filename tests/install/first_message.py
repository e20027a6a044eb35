"""Measure the way of a new user to the first message: install, serve, create a queue, send and receive.

    make wheel && python -m tests.install.first_message [WHEEL]

Runs the blocks of README.md in an empty folder, and prints the seconds of each step and the megabytes that it adds to
the disk. Needs root and nothing but Python's standard library, so that it also runs in a bare Debian.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.install.quick_start import README, QuickStart, blocks_of

if TYPE_CHECKING:
    from collections.abc import Callable

DIST: Final = Path(__file__).parents[2] / "dist"
MB: Final = 1_000_000
STEPS: Final = ("install", "serve", "first message with twinbus's commands", "first message with the official SDK")


def size_mb(folder: Path) -> float:
    """Return the size of all files in a folder."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file()) / MB


def measure(step: str, function: Callable[[], object], folder: Path) -> tuple[float, float]:
    """Run a step, print its row of the table, and return its seconds and megabytes."""
    before_mb, began_s = size_mb(folder), time.monotonic()
    function()
    seconds, megabytes = time.monotonic() - began_s, size_mb(folder) - before_mb
    sys.stdout.write(f"| {step} | {seconds:.1f} | {megabytes:.0f} |\n")
    sys.stdout.flush()
    return seconds, megabytes


def main() -> None:
    """Measure all steps with the wheel that the command names (default: the compiled wheel in dist)."""
    wheel = Path(sys.argv[1]) if len(sys.argv) > 1 else next(DIST.glob("*-cp3*.whl"))
    install, serve, commands, sdk = blocks_of(README)[:4]
    with tempfile.TemporaryDirectory(prefix="twinbus-first-message-") as name, QuickStart(Path(name), wheel) as user:
        runs = (
            lambda: user.install(install),
            lambda: user.serve(serve),
            lambda: user.run(commands),
            lambda: user.run(sdk),
        )
        sys.stdout.write("| step | seconds | MB |\n|---|---|---|\n")
        figures = [measure(step, run, Path(name)) for step, run in zip(STEPS, runs, strict=True)]
        user.stop_serving()
    sys.stdout.write(
        f"| **total** | **{sum(row[0] for row in figures):.1f}** | **{sum(row[1] for row in figures):.0f}** |\n"
    )


if __name__ == "__main__":
    main()
