"""Captures on real Spark that are killed lose no message, and have none in the files twice."""

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


def command(server: ServerProcess, to: Path, path: str, *options: str) -> list[str]:
    arguments = ["pipeline", "capture", server.connection_string, str(to), path, "--namespace=contoso", *options]
    return [*arguments, "--master=local[2]"] if not any(word.startswith("--master") for word in options) else arguments


@contextmanager
def started(arguments: list[str], module: str = "twinbus") -> Iterator[subprocess.Popen[str]]:
    """Run a command in a separate process, and kill it at the end of the block."""
    with subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for_end(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, err
    return out


def create_partitioned_queue(server: ServerProcess) -> str:
    path = server.create_queue(EnablePartitioning="true")
    for fragment_key in range(32):
        ids = range(fragment_key, COUNT, 32)
        asyncio.run(send_messages(server, path, ids, body=b"x" * 1000, partition_key=str(fragment_key)))
    return path


def check_all_captured(to: Path) -> None:
    captured = CapturedFolder(to)
    captured.check_manifests()
    assert sorted(captured.ids(), key=int) == [str(number) for number in range(COUNT)]


@pytest.mark.brief
def test_a_killed_executor_loses_no_message(server: ServerProcess, cluster: SparkCluster, tmp_path: Path) -> None:
    path = create_partitioned_queue(server)
    arguments = command(server, tmp_path, path, "--available-now", "--complete", f"--master={cluster.url}")
    with started(arguments) as process:
        wait_for(
            lambda: any(tmp_path.rglob("_temporary/*/*.parquet")) or process.poll() is not None, "a file", TIMEOUT_S
        )
        cluster.kill_executor()
        assert f"{COUNT:,} messages in " in wait_for_end(process)
    check_all_captured(tmp_path)
    assert server.message_counts(path)[0] == 0


def test_a_driver_killed_between_a_file_and_its_manifest_loses_no_message(
    server: ServerProcess, tmp_path: Path
) -> None:
    path = create_partitioned_queue(server)
    arguments = command(server, tmp_path, path, "--available-now", "--complete")
    with started(["3", *arguments], "tests.pipeline.capture.killed_driver") as killed:
        killed.communicate(timeout=TIMEOUT_S)
        assert killed.returncode == -signal.SIGKILL
    captured = CapturedFolder(tmp_path)
    assert (len(captured.files()), len(captured.manifests())) == (4, 3)
    with started(arguments) as process:
        wait_for_end(process)
    check_all_captured(tmp_path)
    assert server.message_counts(path)[0] == 0


def test_a_stopped_capture_ends_regularly_and_does_not_write_open_windows(
    server: ServerProcess,
    tmp_path: Path,
) -> None:
    path = server.create_queue()
    asyncio.run(send_messages(server, path, range(10)))
    with started(command(server, tmp_path, path, "--window=60")) as process:
        assert process.stderr is not None
        lines = []
        while (line := process.stderr.readline()) not in ("Capturing; press Ctrl-C to stop.\n", ""):
            lines.append(line)
        assert any("messages that others receive before the window closes are not captured" in line for line in lines)
        process.send_signal(signal.SIGTERM)
        assert "0 messages in 0 files" in wait_for_end(process)
    assert CapturedFolder(tmp_path).files() == []
