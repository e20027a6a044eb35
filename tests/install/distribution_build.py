"""Build distributions from a copy of the checkout, independent of its other files.

    wheel, output = SourceCopy.copied(folder).build("wheel", path=NO_PROGRAMS)

`path` is the build's PATH: without a compiler on it, plain Python is built.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
FILES: Final = ("setup.py", "pyproject.toml", "README.md", "LICENSE", "Makefile", "requirements.lock")
NO_PROGRAMS: Final = "/nonexistent"
"""A PATH without a compiler."""
TIMEOUT_S: Final = 900.0


class BuildFailed(Exception):
    """The build failed; the message is its output."""


@dataclass(frozen=True)
class SourceCopy:
    """Folder with the sources, or an unpacked source distribution."""

    folder: Path

    @classmethod
    def copied(cls, folder: Path) -> SourceCopy:
        """Copy the files of a clone that a build may use."""
        folder.mkdir(parents=True)
        for name in FILES:
            shutil.copy2(ROOT / name, folder / name)
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(ROOT / "src", folder / "src", ignore=ignored)
        return cls(folder)

    def build(self, kind: str, *, path: str | None = None, compiled: str | None = None) -> tuple[Path, str]:
        """Build a `wheel` or an `sdist` with the packages of this Python; return the file and the build's output.

        `path` replaces PATH, `compiled` is TWINBUS_COMPILE. Raise BuildFailed if the build fails.
        """
        output = self.hook(f"build_{kind}", "'made'", path=path, compiled=compiled)
        (file,) = (self.folder / "made").iterdir()
        return file, output

    def hook(self, name: str, arguments: str = "", *, path: str | None = None, compiled: str | None = None) -> str:
        """Call a hook of the build back end, as pip does; return its output, which ends with its result."""
        shutil.rmtree(self.folder / "made", ignore_errors=True)
        environment = {key: value for key, value in os.environ.items() if key not in {"TWINBUS_COMPILE", "PYTHONPATH"}}
        environment |= {} if path is None else {"PATH": path}
        environment |= {} if compiled is None else {"TWINBUS_COMPILE": compiled}
        code = f"from setuptools import build_meta; print(build_meta.{name}({arguments}))"
        result = subprocess.run(
            [sys.executable, "-c", code],
            cwd=self.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        if result.returncode:
            raise BuildFailed(result.stdout)
        return result.stdout
