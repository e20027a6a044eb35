"""How a figure is kept: with its bar, and with what it depends on.

Owns: bars, the surroundings of a measurement, and the two files that each bench leaves behind (a page for people, JSON
for programs). Knows nothing of how anything is measured.
"""

from __future__ import annotations

import argparse
import datetime as dt
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT: Final = Path(__file__).parents[2]
RESULTS: Final = ROOT / "docs" / "benchmarks"
PAGES: Final = ("docs", "CHANGELOG.md", "README.md")
"""Files that no figure depends on: a bench may run while the page of the bench before it is not committed yet."""


@dataclass(frozen=True, slots=True)
class Threshold:
    """What was found, and what it has to be."""

    what: str
    found: float
    needed: float
    unit: str = ""
    """Written behind both numbers."""
    is_ceiling: bool = False
    """The figure has to stay below; else it has to reach."""

    @property
    def is_met(self) -> bool:
        """It is enough."""
        return self.found <= self.needed if self.is_ceiling else self.found >= self.needed

    def row(self) -> str:
        """A line of a table."""
        word = "at most" if self.is_ceiling else "at least"
        verdict = "met" if self.is_met else "**missed**"
        return (
            f"| {self.what} | {_number(self.found)}{self.unit} | {word} {_number(self.needed)}{self.unit} | {verdict} |"
        )


def thresholds_table(thresholds: Sequence[Threshold]) -> str:
    """All of them."""
    return "| | found | needed | |\n|---|---|---|---|\n" + "\n".join(bar.row() for bar in thresholds)


def figures_table(figures: Mapping[str, str]) -> str:
    """What has no bar, but explains one."""
    return "| | |\n|---|---|\n" + "\n".join(f"| {name} | {text} |" for name, text in figures.items())


def add_results_option(cli: argparse.ArgumentParser) -> None:
    """Add `--results`; for uncommitted code, the folder of published figures is refused before anything is measured."""
    cli.add_argument(
        "--results", type=results_folder, default=str(RESULTS), metavar="DIR", help="default: docs/benchmarks"
    )


def results_folder(name: str, root: Path = ROOT) -> Path:
    """Return the folder, if figures of this tree may be kept there."""
    folder = Path(name)
    if folder.resolve() == root / RESULTS.relative_to(ROOT) and (changed := uncommitted(root)):
        raise argparse.ArgumentTypeError(
            f"published figures come from committed code, and {changed[0]} is not committed"
            f" ({len(changed)} in all): commit first, or try things out with --results DIR"
        )
    return folder


def uncommitted(root: Path = ROOT) -> list[str]:
    """Return the files that figures may depend on and that differ from the last commit."""
    excluded = [f":(exclude){page}" for page in PAGES]
    command = ["git", "-C", str(root), "status", "--porcelain", "--", ".", *excluded]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return [line[3:] for line in lines]


def environment_facts(*packages: str) -> dict[str, str]:
    """What figures depend on: when, on what machine, with which versions."""
    processor = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    commit = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()
    hot = importlib.util.find_spec("twinbus.amqp.delivery_frames")
    is_compiled = hot is not None and hot.origin is not None and hot.origin.endswith(".so")
    return {
        "date": dt.datetime.now(dt.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": f"{os.cpu_count()} x {processor[1] if processor else platform.machine()}",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "commit": f"{commit}-dirty" if uncommitted() else commit,
        "hot files": "compiled" if is_compiled else "not compiled",
        **{name: importlib.metadata.version(name) for name in ("twinbus", *packages)},
    }


def environment_lines(where: Mapping[str, str]) -> str:
    """The surroundings, for a page."""
    return "\n".join(f"- {name}: {value}" for name, value in where.items())


def check_thresholds(thresholds: Sequence[Threshold]) -> int:
    """Say which are missed; the exit code."""
    missed = [bar for bar in thresholds if not bar.is_met]
    for bar in missed:
        print(f"missed: {bar.row()}")
    return bool(missed)


def write(folder: Path, name: str, page: str, measured: Mapping[str, object]) -> None:
    """Leave both files, and print the page."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.md").write_text(page)
    (folder / f"{name}.json").write_text(json.dumps(measured, indent=2, default=_plain) + "\n")
    print(page)


def _plain(value: object) -> object:
    if isinstance(value, Threshold):
        return {**asdict(value), "is_met": value.is_met}
    raise TypeError(f"{value!r} is not to be written")


def _number(value: float) -> str:
    if value == int(value) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:,.2f}" if abs(value) < 10 else f"{value:,.1f}"
