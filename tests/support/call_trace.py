"""Record the calls of twinbus's functions during a test, in the test's process and in the processes that it starts.

A walkthrough in docs/design.md is a numbered list of functions. A test performs the operation that the walkthrough
describes, records the calls, and compares: the functions must be called in the order of the list. Other calls may
come between them.
"""

from __future__ import annotations

import os
import re
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.call_tracing.sitecustomize import install

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT = Path(__file__).resolve().parents[2]
DESIGN = ROOT / "docs" / "design.md"
STEP = re.compile(r"^\d+\. `([^`]+)`", re.MULTILINE)


class CallTrace:
    """Calls of all processes started with `environment`, and of this process inside `recording`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def environment(self) -> Mapping[str, str]:
        """Environment variables for a process that runs the uncompiled sources and records its calls."""
        tracing = ROOT / "tests" / "support" / "call_tracing"
        return {
            "PYTHONPATH": os.pathsep.join([str(tracing), str(ROOT / "src")]),
            "CALL_TRACE_FOLDER": str(self._folder),
        }

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record the calls of this thread and of the threads that it starts."""
        uninstall = install(self._folder / f"{os.getpid()}.calls")
        try:
            yield
        finally:
            uninstall()

    def calls(self, since_ns: int = 0) -> list[str]:
        """Return the functions called since a monotonic time, in the order of the calls, from all processes."""
        lines = [line.split(" ", 1) for file in self._folder.glob("*.calls") for line in file.read_text().splitlines()]
        return [name for at_ns, name in sorted((int(at_ns), name) for at_ns, name in lines) if at_ns >= since_ns]


def walkthrough(title: str) -> list[str]:
    """Return the functions listed by a walkthrough in docs/design.md that has a single list."""
    (steps,) = walkthrough_branches(title)
    return steps


def walkthrough_branches(title: str) -> list[list[str]]:
    """Return the lists of functions of a walkthrough in docs/design.md.

    If the walkthrough has several lists, the first is what all others start with; the others run concurrently.
    """
    _, _, section = DESIGN.read_text().partition(f"### {title}\n")
    paragraphs = section.partition("\n##")[0].split("\n\n")
    first, *others = [steps for paragraph in paragraphs if (steps := STEP.findall(paragraph))]
    return [first + steps for steps in others] or [first]


def first_missing(steps: list[str], calls: list[str]) -> str | None:
    """Return the first step that was not called after the steps before it; None if all of them were."""
    remaining = iter(calls)
    return next((step for step in steps if step not in remaining), None)
