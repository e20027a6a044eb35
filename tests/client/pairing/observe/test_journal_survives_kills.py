"""The flushed rows of a journal survive a kill of its process, and all rows survive its ordinary end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from twinbus.client.journal_file import SUFFIX, read

ROOT = Path(__file__).parents[4]
TIMEOUT_S = 60
WRITING = """
import sys, time
from twinbus.client.journal import Journal
from twinbus.client.journal_file import JournalFiles
really, number = JournalFiles.write, 0

def write(files, rows):
    really(files, rows)
    sent = [row[2] for row in rows if row[1] == "send"]
    if sent:
        print(sent[-1], flush=True)  # all up to here is flushed

JournalFiles.write = write
journal = Journal(sys.argv[1])
while number < int(sys.argv[2]):
    for _ in range(500):
        journal.write((1, "send", number, "orders", None, None, None, "sent", None, 1, "contoso", "me", None, None))
        number += 1
    time.sleep(0.001)
"""


def start(folder: Path, rows: int) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-c", WRITING, str(folder), str(rows)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def ids_in(folder: Path) -> list[int]:
    return [
        int(message_id)
        for path in sorted(folder.glob(f"*{SUFFIX}"))
        for message_id in read(path).column("message_id").drop_null().to_pylist()
    ]


def test_rows_flushed_before_a_sigkill_are_read_once_and_in_order(tmp_path: Path) -> None:
    with start(tmp_path, 10**12) as process:
        assert process.stdout is not None
        flushed = [int(process.stdout.readline()) for _ in range(3)]
        process.send_signal(signal.SIGKILL)
        flushed += [int(line) for line in process.stdout.read().splitlines() if line.strip()]
    assert process.returncode == -signal.SIGKILL
    ids = ids_in(tmp_path)
    assert ids == list(range(len(ids)))
    assert ids[-1] >= flushed[-1]


def test_a_program_that_ends_without_closing_loses_no_row(tmp_path: Path) -> None:
    with start(tmp_path, 12_000) as process:
        assert process.wait(TIMEOUT_S) == 0
    assert ids_in(tmp_path) == list(range(12_000))


def test_two_processes_can_write_to_one_folder(tmp_path: Path) -> None:
    with start(tmp_path, 3_000) as first, start(tmp_path, 3_000) as second:
        assert (first.wait(TIMEOUT_S), second.wait(TIMEOUT_S)) == (0, 0)
    assert sorted(ids_in(tmp_path)) == sorted([*range(3_000)] * 2)
