"""Run the core tests with the oldest versions of all packages that pyproject.toml allows.

    python -m tests.install.oldest [TEST ...]

Creates a temporary virtual environment: for each requirement of twinbus, and of its
extras, the lowest version allowed; what those need, and what tests need, as pip resolves it. Spark is left out: its
lower bound is the version that is pinned. Warnings are not errors here: old packages warn about newer ones.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Final

from rich.console import Console

ROOT: Final = Path(__file__).parents[2]
EXTRAS: Final = ("journal", "metering", "metrics")
TEST_PACKAGES: Final = (
    "pytest",
    "pytest-timeout",
    "pytest-xdist",
    "hypothesis",
    "azure-servicebus",
    "aiohttp",
    "websocket-client",
)
TESTS: Final = (
    "tests/store",  # rocksdict
    "tests/broker/filters",  # lark
    "tests/server/config",  # msgspec, typer
    "tests/server/runtime",  # cryptography, uvloop, typer
    "tests/server/auth",
    "tests/server/tls",
    "tests/server/http",  # starlette, uvicorn, defusedxml
    "tests/client/management",  # httpx
    "tests/server/usage/test_hourly_rollup.py",  # pyarrow
    "tests/client/pairing/observe",  # pyarrow, prometheus-client, rich
    "tests/sdk/messages/test_sending.py",
)
"""Tests that use each package through the interface that twinbus uses."""


def lowest() -> list[str]:
    """Return the lowest version of each requirement, as `name==version`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    requirements = project["dependencies"] + [
        one for extra in EXTRAS for one in project["optional-dependencies"][extra]
    ]
    return sorted({pinned(requirement) for requirement in requirements})


def pinned(requirement: str) -> str:
    """Return `name>=version` as `name==version`; exit if the requirement has another form."""
    match = re.fullmatch(r"([\w-]+)>=([\d.]+)", requirement)
    if match is None:
        sys.exit(f"pyproject.toml: '{requirement}' has no lower bound of the form name>=version")
    return f"{match[1]}=={match[2]}"


def main() -> int:
    """Install the packages, run the tests, and return pytest's exit code."""
    versions = lowest()
    Console().print("Testing with", ", ".join(versions))
    with tempfile.TemporaryDirectory(prefix="twinbus-oldest-") as folder:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        python = Path(folder) / "bin" / "python"
        subprocess.run([python, "-m", "pip", "install", "--quiet", *versions, *TEST_PACKAGES], check=True)
        tests = sys.argv[1:] or TESTS
        options = ["-q", "-n", "2", "-W", "default", "-p", "no:cacheprovider", "-o", "timeout=300"]
        return subprocess.run([python, "-m", "pytest", *options, *tests], cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
