"""A standalone Spark cluster on loopback: one master, two workers of one core each.

    with SparkCluster(folder) as cluster:
        subprocess.run([..., "--master", cluster.url])
        cluster.kill_executor()

Owns the three processes, their logs, and the executors they start. Leaving the context ends all of them.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import pyspark

if TYPE_CHECKING:
    from collections.abc import Callable

START_S: Final = 180.0
WORKERS: Final = 2
_EXECUTOR: Final = b"org.apache.spark.executor.CoarseGrainedExecutorBackend"
_URL: Final = re.compile(r"(?:Starting Spark master at|Successfully registered with master) (spark://[\d.]+:\d+)")


class SparkCluster:
    """One master and two workers."""

    url: str

    def __init__(self, folder: Path) -> None:
        """Keep logs and the executors' folders below `folder`."""
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        try:
            self._start_all()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start_all(self) -> None:
        home = Path(pyspark.__file__).parent
        command = home / "bin" / "spark-class"
        scala = "org.apache.spark.deploy"
        self._start("master", [str(command), f"{scala}.master.Master", "--port", "0", "--webui-port", "0"])
        self.url = self._read_url("master")
        for number in range(WORKERS):
            arguments = ["-c", "1", "-m", "1g", "--webui-port", "0", "-d", str(self._folder / "work")]
            self._start(f"worker-{number}", [str(command), f"{scala}.worker.Worker", *arguments, self.url])
        for number in range(WORKERS):
            self._read_url(f"worker-{number}")

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            os.killpg(process.pid, signal.SIGTERM)
        for process in self._processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def executors(self) -> list[int]:
        """Return the process ids of the executors."""
        groups = {process.pid for process in self._processes}
        pids = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    is_executor = (
                        _EXECUTOR in (entry / "cmdline").read_bytes() and os.getpgid(int(entry.name)) in groups
                    )
                except (OSError, ProcessLookupError):
                    continue  # the process has ended
                if is_executor:
                    pids.append(int(entry.name))
        return pids

    def kill_executor(self) -> int:
        """Kill one executor with SIGKILL, and return its process id."""
        wait_for(lambda: bool(self.executors()), "an executor")
        victim = self.executors()[0]
        os.kill(victim, signal.SIGKILL)
        return victim

    def _start(self, name: str, command: list[str]) -> None:
        environment = {
            **os.environ,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_MASTER_HOST": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "PYSPARK_PYTHON": sys.executable,
        }
        with (self._folder / f"{name}.log").open("wb") as log:
            self._processes.append(
                subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
            )

    def _read_url(self, name: str) -> str:
        log = self._folder / f"{name}.log"
        wait_for(lambda: _URL.search(log.read_text(errors="replace")) is not None, f"{name} of the cluster, see {log}")
        match = _URL.search(log.read_text(errors="replace"))
        assert match is not None
        return match[1]


def wait_for(condition: Callable[[], bool], what: str, limit_s: float = START_S) -> None:
    """Poll `condition` until it is true; raise TimeoutError after `limit_s`."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {limit_s:.0f} s for {what}")
        time.sleep(0.05)
