"""Captures on real Spark, killed in the middle: nothing is lost, nothing is in the files twice."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.pipeline.capture.local_capture import CapturedFolder, send_messages
from tests.pipeline.spark_cluster import SparkCluster, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.server_process import ServerProcess

TIMEOUT_S = 300
COUNT = 4_000


def command(server: ServerProcess, to: Path, path: str, *more: str) -> list[str]:
    words = ["pipeline", "capture", server.connection_string, str(to), path, "--namespace=contoso", *more]
    return [*words, "--master=local[2]"] if not any(word.startswith("--master") for word in more) else words


@contextmanager
def started(words: list[str], module: str = "twinbus") -> Iterator[subprocess.Popen[str]]:
    """A command in a process of its own, which is gone in the end."""
    with subprocess.Popen(
        [sys.executable, "-m", module, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def ended(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, err
    return out


def partitioned(server: ServerProcess) -> str:
    path = server.create_queue(EnablePartitioning="true")
    for fragment_key in range(32):
        ids = range(fragment_key, COUNT, 32)
        asyncio.run(send_messages(server, path, ids, body=b"x" * 1000, partition_key=str(fragment_key)))
    return path


def check(to: Path) -> None:
    taken = CapturedFolder(to)
    taken.check_manifests()
    assert sorted(taken.ids(), key=int) == [str(number) for number in range(COUNT)]


@pytest.mark.brief
def test_an_executor_is_killed(server: ServerProcess, cluster: SparkCluster, tmp_path: Path) -> None:
    path = partitioned(server)
    words = command(server, tmp_path, path, "--available-now", "--complete", f"--master={cluster.url}")
    with started(words) as process:
        wait_for(
            lambda: any(tmp_path.rglob("_temporary/*/*.parquet")) or process.poll() is not None, "a file", TIMEOUT_S
        )
        cluster.kill_executor()
        assert f"{COUNT:,} messages in " in ended(process)
    check(tmp_path)
    assert server.message_counts(path)[0] == 0


def test_the_driver_is_killed_between_a_file_and_its_manifest(server: ServerProcess, tmp_path: Path) -> None:
    path = partitioned(server)
    words = command(server, tmp_path, path, "--available-now", "--complete")
    with started(["3", *words], "tests.pipeline.capture.killed_driver") as killed:
        killed.communicate(timeout=TIMEOUT_S)
        assert killed.returncode == -signal.SIGKILL
    taken = CapturedFolder(tmp_path)
    assert (len(taken.files()), len(taken.manifests())) == (4, 3)
    with started(words) as process:
        ended(process)
    check(tmp_path)
    assert server.message_counts(path)[0] == 0


def test_a_capture_that_is_told_to_stop_ends_in_order_and_leaves_open_windows(
    server: ServerProcess,
    tmp_path: Path,
) -> None:
    path = server.create_queue()
    asyncio.run(send_messages(server, path, range(10)))
    with started(command(server, tmp_path, path, "--window=60")) as process:
        assert process.stderr is not None
        said = []
        while (line := process.stderr.readline()) not in ("Capturing; ctrl-C ends it.\n", ""):
            said.append(line)
        assert any("what others receive before its window closes is not captured" in line for line in said)
        process.send_signal(signal.SIGTERM)
        assert "0 messages in 0 files" in ended(process)
    assert CapturedFolder(tmp_path).files() == []
