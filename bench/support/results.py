"""Results of benchmarks: figures, their thresholds, and the environment in which they were measured.

Owns thresholds, the description of the environment, and the two files that each benchmark writes (a page for readers,
JSON for programs). Knows nothing of how figures are measured.
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
"""Files that no figure depends on. A benchmark may run while the page of the previous one is not committed yet."""


@dataclass(frozen=True, slots=True)
class Threshold:
    """A measured figure and the value that it must reach or must not exceed."""

    what: str
    found: float
    needed: float
    unit: str = ""
    """Unit, appended to both numbers."""
    is_ceiling: bool = False
    """Whether `needed` is a maximum rather than a minimum."""

    @property
    def is_met(self) -> bool:
        """Whether the figure meets the threshold."""
        return self.found <= self.needed if self.is_ceiling else self.found >= self.needed

    def row(self) -> str:
        """Return a row of the table."""
        word = "at most" if self.is_ceiling else "at least"
        verdict = "met" if self.is_met else "**missed**"
        return (
            f"| {self.what} | {_number(self.found)}{self.unit} | {word} {_number(self.needed)}{self.unit} | {verdict} |"
        )


def thresholds_table(thresholds: Sequence[Threshold]) -> str:
    """Return a table of all thresholds."""
    return "| | measured | required | |\n|---|---|---|---|\n" + "\n".join(bar.row() for bar in thresholds)


def figures_table(figures: Mapping[str, str]) -> str:
    """Return a table of figures without a threshold, which explain those with one."""
    return "| | |\n|---|---|\n" + "\n".join(f"| {name} | {text} |" for name, text in figures.items())


def add_results_option(cli: argparse.ArgumentParser) -> None:
    """Add the option `--results`. With uncommitted code, the folder of published figures is refused at once."""
    cli.add_argument(
        "--results", type=results_folder, default=str(RESULTS), metavar="DIR", help="default: docs/benchmarks"
    )


def results_folder(name: str, root: Path = ROOT) -> Path:
    """Return the folder. Raise ArgumentTypeError if it is for published figures and the code is not committed."""
    folder = Path(name)
    if folder.resolve() == root / RESULTS.relative_to(ROOT) and (changed := uncommitted(root)):
        raise argparse.ArgumentTypeError(
            f"published figures come from committed code, and {changed[0]} is not committed"
            f" ({len(changed)} in all): commit first, or write the results elsewhere with --results DIR"
        )
    return folder


def uncommitted(root: Path = ROOT) -> list[str]:
    """Return the files that figures may depend on and that differ from the last commit."""
    excluded = [f":(exclude){page}" for page in PAGES]
    command = ["git", "-C", str(root), "status", "--porcelain", "--", ".", *excluded]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return [line[3:] for line in lines]


def environment_facts(*packages: str) -> dict[str, str]:
    """Return what figures depend on: date, machine, and versions."""
    processor = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    commit = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()
    hot = importlib.util.find_spec("twinbus.amqp.codec.delivery_frames")
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
    """Return the environment as a list for a page."""
    return "\n".join(f"- {name}: {value}" for name, value in where.items())


def check_thresholds(thresholds: Sequence[Threshold]) -> int:
    """Print the thresholds that are missed, and return the exit code."""
    missed = [bar for bar in thresholds if not bar.is_met]
    for bar in missed:
        print(f"missed: {bar.row()}")
    return bool(missed)


def write(folder: Path, name: str, page: str, measured: Mapping[str, object]) -> None:
    """Write both files, and print the page."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.md").write_text(page)
    (folder / f"{name}.json").write_text(json.dumps(measured, indent=2, default=_plain) + "\n")
    print(page)


def _plain(value: object) -> object:
    if isinstance(value, Threshold):
        return {**asdict(value), "is_met": value.is_met}
    raise TypeError(f"{value!r} cannot be written as JSON")


def _number(value: float) -> str:
    if value == int(value) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:,.2f}" if abs(value) < 10 else f"{value:,.1f}"
