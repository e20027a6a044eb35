"""Install the files of `make wheel` into fresh environments, and use them with the official SDK.

    make wheel && python -m tests.install [--spark] [--only "sdist, compiler: yes"]

Each case is a new virtual environment with only the packages that pip installs: the wheels; the source distribution
with a compiler, without one, and with one that fails; and each extra alone. In each case `twinbus serve` runs, the SDK
sends and receives a message, and `twinbus --version` has to name the expected build. Prints the duration and the size
of each installation. `--spark` adds that extra, which is half a gigabyte.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.management import ServiceBusAdministrationClient
from rich.console import Console
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Iterator

DIST: Final = Path(__file__).parents[2] / "dist"
START_S: Final = 60.0
INSTALL_S: Final = 1_800.0
MIB: Final = 1_048_576
COMPILED: Final = "compiled"
PLAIN: Final = "pure Python"
USES: Final = {
    "journal": ("twinbus.client.journal", "twinbus[journal]"),
    "metrics": ("twinbus.client.pairing.observe.metrics", "twinbus[metrics]"),
    "metering": ("twinbus.server.usage.parquet_files", "pyarrow"),
    "spark": ("twinbus.pipeline.data_source", "pyspark"),
}
"""Module that needs each extra, and the package that its error names if the extra is missing."""
FAILING_COMPILER: Final = """#!/bin/sh
case "$*" in *tried*) exec {gcc} "$@" ;; esac
echo "out of memory" >&2
exit 1
"""
"""Compiler that succeeds for the first trial of the build only."""


@dataclass(frozen=True)
class InstallCase:
    """Distribution, compiler and expected build."""

    pattern: str
    """Pattern of the file in dist."""
    compiler: str
    """`yes`, `no` or `fails`."""
    expected: str
    extra: str | None = None

    @property
    def title(self) -> str:
        """Title in the table."""
        kind = {"*.tar.gz": "sdist", "*-none-any.whl": "plain wheel"}.get(self.pattern, "compiled wheel")
        return kind if self.extra is None else f"{kind} [{self.extra}]"


CASES: Final = (
    InstallCase("*-cp3*.whl", "no", COMPILED),
    InstallCase("*-none-any.whl", "no", PLAIN),
    InstallCase("*.tar.gz", "no", PLAIN),
    InstallCase("*.tar.gz", "yes", COMPILED),
    InstallCase("*.tar.gz", "fails", PLAIN),
    *(InstallCase("*-none-any.whl", "no", PLAIN, extra) for extra in ("journal", "metrics", "metering")),
)
SPARK: Final = InstallCase("*-none-any.whl", "no", PLAIN, "spark")


@dataclass(frozen=True)
class InstallCost:
    """The cost of an installation."""

    seconds: float
    processor_seconds: float
    """More meaningful than `seconds` on a busy machine."""
    mib: float


def children_s() -> float:
    """Return the processor time of all ended child processes."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Environment:
    """Virtual environment with only pip at first."""

    def __init__(self, folder: Path, compiler: str) -> None:
        """`compiler` is the field of the case."""
        self._folder = folder
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        path = str(folder / "bin")
        if compiler != "no":
            path += os.pathsep + os.environ["PATH"]
        variables = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TWINBUS"))}
        self._environment = variables | {"PATH": path}
        if compiler == "fails":
            failing = folder / "failing"
            failing.write_text(FAILING_COMPILER.format(gcc=shutil.which("gcc")))
            failing.chmod(0o755)
            self._environment |= {"CC": str(failing)}
        self._empty_mib = self._mib()

    def _mib(self) -> float:
        return sum(path.stat().st_size for path in self._folder.rglob("*") if path.is_file()) / MIB

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment to its end."""
        command = [str(self._folder / "bin" / words[0]), *words[1:]]
        return subprocess.run(
            command,
            env=self._environment,
            cwd=self._folder,
            capture_output=True,
            text=True,
            timeout=INSTALL_S,
            check=False,
        )

    def install(self, file: Path, extra: str | None) -> InstallCost:
        """Install with pip, and return the cost."""
        began, processor_began = time.monotonic(), children_s()
        result = self.run("python", "-m", "pip", "install", f"{file}[{extra}]" if extra else str(file))
        assert result.returncode == 0, result.stdout + result.stderr
        return InstallCost(time.monotonic() - began, children_s() - processor_began, self._mib() - self._empty_mib)

    @contextlib.contextmanager
    def serving(self) -> Iterator[dict[str, str]]:
        """Serve a namespace, and yield the content of its ready file."""
        ready_file = self._folder / "ready.json"
        ports = [f"--{name}-port=0" for name in ("amqp", "amqps", "http", "https")]
        words = [str(self._folder / "bin" / "twinbus"), "serve", "contoso", f"--data={self._folder / 'data'}"]
        with subprocess.Popen([*words, f"--ready-file={ready_file}", *ports], env=self._environment) as server:
            try:
                deadline = time.monotonic() + START_S
                while not ready_file.exists():
                    assert server.poll() is None, "the server has ended"
                    assert time.monotonic() < deadline, f"the server is not ready after {START_S:.0f} s"
                    time.sleep(0.05)
                yield json.loads(ready_file.read_text())
            finally:
                server.terminate()
        assert server.returncode == 0


def send_and_receive(ready: dict[str, str]) -> None:
    """Send and receive one message with the official SDK."""
    with ServiceBusAdministrationClient.from_connection_string(
        ready["admin_connection_string"], connection_verify=ready["ca_file"]
    ) as admin:
        admin.create_queue("orders")
    with ServiceBusClient.from_connection_string(ready["connection_string"]) as client:
        with client.get_queue_sender("orders") as sender:
            sender.send_messages(ServiceBusMessage("hello"))
        with client.get_queue_receiver("orders", max_wait_time=10) as receiver:
            (message,) = receiver.receive_messages(max_message_count=1)
            assert str(message) == "hello"
            receiver.complete_message(message)


def check_extras(environment: Environment, installed: str | None) -> None:
    """Check that modules of the installed extra work, and that the others name the missing package or extra."""
    provided = {"journal", "metering"} if installed in {"journal", "metering"} else {installed}
    provided |= {"journal", "metering"} if installed == "spark" else set()
    for extra, (module, named) in USES.items():
        result = environment.run("python", "-c", f"import {module}")
        if extra in provided:
            assert result.returncode == 0, result.stderr
        else:
            assert named in result.stderr.splitlines()[-1], (extra, result.stderr)


def run_case(case: InstallCase) -> InstallCost:
    """Install and use a distribution; return the cost of the installation."""
    (file,) = DIST.glob(case.pattern)
    with tempfile.TemporaryDirectory(prefix="twinbus-install-") as name:
        environment = Environment(Path(name) / "fresh", case.compiler)
        cost = environment.install(file, case.extra)
        version = environment.run("twinbus", "--version").stdout
        assert version.endswith(f" ({case.expected})\n"), version
        check_extras(environment, case.extra)
        with environment.serving() as ready:
            send_and_receive(ready)
    return cost


def main() -> None:
    """Run all cases, or some."""
    parser = argparse.ArgumentParser(prog="python -m tests.install", description=__doc__.splitlines()[0])
    parser.add_argument("--spark", action="store_true", help="also install the extra [spark]")
    parser.add_argument(
        "--only", default="", help="run cases whose title contains this, such as 'sdist, compiler: yes'"
    )
    options = parser.parse_args()
    console = Console()
    table = Table("distribution", "compiler", "installed as", "seconds", "of processors", "MiB")
    for case in [*CASES, *([SPARK] if options.spark else [])]:
        if options.only in f"{case.title}, compiler: {case.compiler}":
            cost = run_case(case)
            figures = [f"{figure:.0f}" for figure in (cost.seconds, cost.processor_seconds, cost.mib)]
            table.add_row(escape(case.title), case.compiler, case.expected, *figures)
    console.print(table)


if __name__ == "__main__":
    main()
