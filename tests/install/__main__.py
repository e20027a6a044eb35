"""Installs what `make wheel` built into fresh environments, and uses it with the official SDK.

    make wheel && python -m tests.install [--spark] [--only "sdist, compiler: yes"]

Each case is a new virtual environment with nothing but what pip installs: the wheels, the source distribution with a
compiler, without one, and with one that fails; and each extra alone. In each, `twinbus serve` runs, the SDK sends a
message and receives it, and `twinbus --version` has to name the build that was expected. Prints the seconds that the
installation took and the megabytes that it added. `--spark` adds that extra, which is half a gigabyte.
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
"""By extra: a module that needs it, and what its error names where the extra is missing."""
FAILING_COMPILER: Final = """#!/bin/sh
case "$*" in *tried*) exec {gcc} "$@" ;; esac
echo "out of memory" >&2
exit 1
"""
"""Compiles what the build tries first, and nothing else."""


@dataclass(frozen=True)
class InstallCase:
    """What is installed, and where."""

    pattern: str
    """Of the file in dist."""
    compiler: str
    """`yes`, `no` or `fails`."""
    expected: str
    extra: str | None = None

    @property
    def title(self) -> str:
        """For the table."""
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
    """On a machine that is busy otherwise, this says more."""
    mib: float


def children_s() -> float:
    """Processor time of all processes that were started here and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Environment:
    """A virtual environment that has only pip at first."""

    def __init__(self, folder: Path, compiler: str) -> None:
        """`compiler` is a case's."""
        self._folder = folder
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        path = str(folder / "bin")
        if compiler != "no":
            path += os.pathsep + os.environ["PATH"]
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TWINBUS"))}
        self._environment = kept | {"PATH": path}
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
        """Install by pip; what it took."""
        began, processor_began = time.monotonic(), children_s()
        ended = self.run("python", "-m", "pip", "install", f"{file}[{extra}]" if extra else str(file))
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return InstallCost(time.monotonic() - began, children_s() - processor_began, self._mib() - self._empty_mib)

    @contextlib.contextmanager
    def serving(self) -> Iterator[dict[str, str]]:
        """Serve a namespace; the content of its ready file."""
        ready_file = self._folder / "ready.json"
        ports = [f"--{name}-port=0" for name in ("amqp", "amqps", "http", "https")]
        words = [str(self._folder / "bin" / "twinbus"), "serve", "contoso", f"--data={self._folder / 'data'}"]
        with subprocess.Popen([*words, f"--ready-file={ready_file}", *ports], env=self._environment) as server:
            try:
                deadline = time.monotonic() + START_S
                while not ready_file.exists():
                    assert server.poll() is None, "the server has ended"
                    assert time.monotonic() < deadline, f"the server does not serve after {START_S:.0f} s"
                    time.sleep(0.05)
                yield json.loads(ready_file.read_text())
            finally:
                server.terminate()
        assert server.returncode == 0


def send_and_receive(ready: dict[str, str]) -> None:
    """One message through a queue, by the official SDK."""
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
    """Modules of the installed extra work; each other one says which package or extra is missing."""
    provided = {"journal", "metering"} if installed in {"journal", "metering"} else {installed}
    provided |= {"journal", "metering"} if installed == "spark" else set()
    for extra, (module, named) in USES.items():
        ended = environment.run("python", "-c", f"import {module}")
        if extra in provided:
            assert ended.returncode == 0, ended.stderr
        else:
            assert named in ended.stderr.splitlines()[-1], (extra, ended.stderr)


def run_case(case: InstallCase) -> InstallCost:
    """Install and use it; what the installation took."""
    (file,) = DIST.glob(case.pattern)
    with tempfile.TemporaryDirectory(prefix="twinbus-install-") as name:
        environment = Environment(Path(name) / "fresh", case.compiler)
        took = environment.install(file, case.extra)
        version = environment.run("twinbus", "--version").stdout
        assert version.endswith(f" ({case.expected})\n"), version
        check_extras(environment, case.extra)
        with environment.serving() as ready:
            send_and_receive(ready)
    return took


def main() -> None:
    """Try all cases, or some."""
    parser = argparse.ArgumentParser(prog="python -m tests.install", description=__doc__.splitlines()[0])
    parser.add_argument("--spark", action="store_true", help="with the extra [spark]")
    parser.add_argument("--only", default="", help="cases with this in them, such as 'sdist, compiler: yes'")
    asked = parser.parse_args()
    console = Console()
    table = Table("distribution", "compiler", "installed as", "seconds", "of processors", "MiB")
    for case in [*CASES, *([SPARK] if asked.spark else [])]:
        if asked.only in f"{case.title}, compiler: {case.compiler}":
            took = run_case(case)
            figures = [f"{figure:.0f}" for figure in (took.seconds, took.processor_seconds, took.mib)]
            table.add_row(escape(case.title), case.compiler, case.expected, *figures)
    console.print(table)


if __name__ == "__main__":
    main()
