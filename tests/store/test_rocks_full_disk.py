"""Full disks: the store fails with a reason, the process continues, and committed records survive."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from tests.support.small_disk import small_disk

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = """
import pathlib, resource, signal, sys
from tests.store.store_harness import RocksHarness
from twinbus.store.protocol import StoreFailed

directory, limit = pathlib.Path(sys.argv[1]), int(sys.argv[2])
rig = RocksHarness(directory)
if limit:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, unlimited[1]))
accepted, error = 0, None
while error is None:
    batch = rig.store.batch()
    batch.put(b"%08d" % accepted, bytes(50_000))
    error = rig.call(lambda done: rig.store.commit(batch, done))
    accepted += error is None
assert isinstance(error, StoreFailed)
assert rig.call(lambda done: rig.store.get([b"a"], done)) is error
rig.call_successfully(rig.store.close)
print(accepted, error)
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    rig.open()
    found = [int(key) for key, _ in rig.scan(max_bytes=1 << 30)]
    assert found[:accepted] == list(range(accepted)), (accepted, found)
    assert len(found) - accepted in (0, 1)
    rig.put((b"works again", b""))
    rig.call_successfully(rig.store.close)
"""


def run(directory: Path, *, limit: int = 0) -> str:
    """Run the program in its own process, because file size limits apply to a process; the process must not crash."""
    completed = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(directory), str(limit)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr
    return completed.stdout


def test_a_full_disk_fails_the_store_and_not_the_process(tmp_path: Path) -> None:
    with small_disk(tmp_path, 2) as disk:
        assert "No space left" in run(disk / "store")


def test_a_file_size_limit_fails_the_store_and_committed_records_survive(tmp_path: Path) -> None:
    assert "File too large" in run(tmp_path / "store", limit=1_000_000)
