"""The shim delays and fails calls as its rules say, and its trace determines the disk content after a power cut."""

from __future__ import annotations

import random
import subprocess
import sys
import textwrap
import time
from typing import IO, TYPE_CHECKING

import pytest

from tests.support.fault_injection.shim import Action, DiskShim

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PREAMBLE = """
import os, signal, sys, threading
from pathlib import Path

root = Path(sys.argv[1])

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def sync(path):
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)

def put(path, data, flags=os.O_CREAT | os.O_WRONLY):
    fd = os.open(path, flags, 0o640)
    os.write(fd, data)
    return fd
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


@pytest.fixture
def shim(root: Path, tmp_path: Path) -> Iterator[DiskShim]:
    with DiskShim(root, tmp_path) as shim:
        yield shim


def run(shim: DiskShim, program: str) -> str:
    """Run a program under the shim until it ends or kills itself with `die()`, and return its output."""
    command = [sys.executable, "-c", PREAMBLE + textwrap.dedent(program), str(shim.root)]
    completed = subprocess.run(command, env=shim.environment(), capture_output=True, text=True, timeout=60, check=False)
    assert completed.returncode in {0, -9}, completed.stderr
    return completed.stdout


def after_power_cut(shim: DiskShim, program: str) -> dict[str, bytes]:
    """Run a program, cut the power, and return the files that are left."""
    run(shim, program)
    shim.replayed_disk().cut_power()
    return file_contents(shim.root)


def file_contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


# --- files after a power cut ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["fsync", "fdatasync"])
def test_writes_after_the_last_sync_are_lost(shim: DiskShim, call: str) -> None:
    left = after_power_cut(
        shim,
        f"""
        fd = put(root / "log", b"kept")
        os.{call}(fd)
        sync(root)
        os.write(fd, b" and lost")
        die()
        """,
    )
    assert left == {"log": b"kept"}


def test_a_file_that_was_never_synced_is_empty(shim: DiskShim) -> None:
    assert after_power_cut(shim, 'put(root / "log", b"lost"); sync(root); die()') == {"log": b""}


def test_a_file_is_gone_if_its_folder_was_not_synced(shim: DiskShim) -> None:
    assert after_power_cut(shim, 'os.fsync(put(root / "log", b"lost")); die()') == {}


def test_an_overwrite_inside_the_synced_length_is_lost(shim: DiskShim) -> None:
    left = after_power_cut(
        shim,
        """
        fd = put(root / "database", b"0123456789")
        os.fsync(fd)
        sync(root)
        os.pwrite(fd, b"XX", 3)
        os.pwritev(fd, [b"Y", b"Z"], 7)
        os.lseek(fd, 0, 0)
        os.writev(fd, [b"A", b"B"])
        die()
        """,
    )
    assert left == {"database": b"0123456789"}


def test_a_truncation_without_sync_is_undone(shim: DiskShim) -> None:
    (shim.root / "before").write_bytes(b"from an earlier life")
    left = after_power_cut(
        shim,
        """
        os.truncate(root / "before", 4)
        (root / "emptied").write_bytes(b"full")
        sync(root / "emptied")
        sync(root)
        os.close(os.open(root / "emptied", os.O_WRONLY | os.O_TRUNC))
        die()
        """,
    )
    assert left == {"before": b"from an earlier life", "emptied": b"full"}


def test_a_synced_truncation_is_kept(shim: DiskShim) -> None:
    left = after_power_cut(
        shim,
        """
        fd = put(root / "log", b"0123456789")
        os.ftruncate(fd, 4)
        os.fsync(fd)
        os.posix_fallocate(fd, 0, 4096)
        sync(root)
        die()
        """,
    )
    assert left == {"log": b"0123"}


def test_preallocated_space_is_zeros(shim: DiskShim) -> None:
    left = after_power_cut(
        shim, 'fd = put(root / "log", b"0123"); os.posix_fallocate(fd, 0, 8); os.fsync(fd); sync(root); die()'
    )
    assert left == {"log": b"0123\0\0\0\0"}


@pytest.mark.parametrize("flag", ["O_SYNC", "O_DSYNC"])
def test_a_write_to_a_file_opened_for_synchronous_writes_is_kept(shim: DiskShim, flag: str) -> None:
    left = after_power_cut(
        shim,
        f'put(root / "log", b"kept", os.O_CREAT | os.O_WRONLY | os.{flag}); sync(root); die()',
    )
    assert left == {"log": b"kept"}


def test_a_rename_without_a_sync_of_the_folder_is_undone(shim: DiskShim) -> None:
    (shim.root / "CURRENT").write_bytes(b"one")
    rename = """
        os.fsync(put(root / "next", b"two"))
        sync(root)
        os.rename(root / "next", root / "CURRENT")
        """
    assert after_power_cut(shim, rename + "die()") == {"CURRENT": b"one", "next": b"two"}
    (shim.root / "next").unlink()
    assert after_power_cut(shim, rename + "sync(root); die()") == {"CURRENT": b"two"}


def test_an_open_file_keeps_its_bytes_under_its_new_name(shim: DiskShim) -> None:
    left = after_power_cut(
        shim,
        """
        fd = put(root / "next", b"one")
        os.rename(root / "next", root / "current")
        os.write(fd, b" two")
        os.fsync(fd)
        sync(root)
        die()
        """,
    )
    assert left == {"current": b"one two"}


def test_a_deletion_without_a_sync_of_the_folder_is_undone(shim: DiskShim) -> None:
    for name in ("a", "b", "c"):
        (shim.root / name).write_bytes(name.encode())
    left = after_power_cut(
        shim, 'os.unlink(root / "a"); os.remove(root / "b"); sync(root); (root / "c").unlink(); die()'
    )
    assert left == {"c": b"c"}


def test_a_new_file_with_a_reused_inode_inherits_nothing_from_the_deleted_file(shim: DiskShim) -> None:
    left = after_power_cut(
        shim,
        """
        for number in range(50):
            os.close(put(root / f"{number}", b"old"))
            sync(root / f"{number}")
            os.unlink(root / f"{number}")
        put(root / "new", b"lost")
        sync(root)
        die()
        """,
    )
    assert left == {"new": b""}


def test_a_folder_is_durable_once_its_parent_is_synced(shim: DiskShim) -> None:
    left = after_power_cut(
        shim,
        """
        for folder in (root / "kept", root / "lost"):
            os.mkdir(folder)
            os.fsync(put(folder / "file", b"x"))
            sync(folder)
            if folder.name == "kept":
                sync(root)
        die()
        """,
    )
    assert left == {"kept/file": b"x"}


def test_hard_links_share_their_content(shim: DiskShim) -> None:
    left = after_power_cut(
        shim,
        """
        fd = put(root / "one", b"x")
        os.link(root / "one", root / "two")
        os.fsync(fd)
        sync(root)
        die()
        """,
    )
    assert left == {"one": b"x", "two": b"x"}


def test_changes_of_a_failed_sync_are_lost_even_if_the_next_sync_succeeds(shim: DiskShim) -> None:
    (shim.root / "log").write_bytes(b"first ")
    with shim.rule(Action.FAIL_SYNC, shim.root / "log", times=1):
        left = after_power_cut(
            shim,
            """
            fd = put(root / "log", b"second ", os.O_WRONLY | os.O_APPEND)
            try:
                os.fsync(fd)
            except OSError:
                os.write(fd, b"third")
                os.fsync(fd)
                die()
            """,
        )
    assert left == {"log": b"first " + bytes(7) + b"third"}


def test_files_outside_of_the_root_are_not_affected(shim: DiskShim, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    after_power_cut(shim, f'put("{outside}", b"kept"); die()')
    assert outside.read_bytes() == b"kept"


LONG_LOG = """
    fd = put(root / "log", b"kept")
    os.fsync(fd)
    sync(root)
    for _ in range(10):
        os.write(fd, b"x" * 3000)
    die()
    """


def test_with_randomness_some_unsynced_bytes_survive_as_a_prefix_or_as_pages(shim: DiskShim) -> None:
    sizes, holes = set(), 0
    for seed in range(12):
        run(shim, LONG_LOG)
        shim.replayed_disk().cut_power(random.Random(seed))
        left = (shim.root / "log").read_bytes()
        assert left[:4] == b"kept"
        assert set(left[4:]) <= {0, ord("x")}
        holes += b"\0x" in left
        sizes.add(len(left))
        (shim.root / "log").unlink()
    assert len(sizes) > 6
    assert 0 < holes < 8


def test_writes_of_threads_and_forked_children_are_recorded(shim: DiskShim) -> None:
    left = after_power_cut(
        shim,
        """
        def work(name):
            fd = put(root / name, b"")
            for number in range(200):
                os.write(fd, b"%04d" % number)
                os.fdatasync(fd)
            os.write(fd, b"lost")

        threads = [threading.Thread(target=work, args=(f"thread {number}",)) for number in range(4)]
        for thread in threads:
            thread.start()
        child = os.fork()
        if not child:
            work("child")
            os._exit(0)
        os.waitpid(child, 0)
        for thread in threads:
            thread.join()
        sync(root)
        die()
        """,
    )
    whole = b"".join(b"%04d" % number for number in range(200))
    assert left == {"child": whole} | {f"thread {number}": whole for number in range(4)}


def test_files_created_and_deleted_by_concurrent_threads_are_distinguished(shim: DiskShim) -> None:
    run(
        shim,
        """
        def work(name):
            for number in range(300):
                path = root / f"{name}-{number}"
                os.close(put(path, f"{name} {number}".encode()))
                if number % 3 == 0:
                    os.rename(path, root / f"current-{name}")
                elif number % 3 == 1:
                    os.unlink(path)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        """,
    )
    assert shim.replayed_disk().differences() == []


def test_duplicated_descriptors_refer_to_the_same_file(shim: DiskShim) -> None:
    left = after_power_cut(
        shim,
        """
        fd = put(root / "log", b"one")
        other, third = os.dup(fd), os.dup2(fd, 40)
        os.close(fd)
        os.write(other, b" two")
        os.write(third, b" three")
        os.fsync(other)
        sync(root)
        die()
        """,
    )
    assert left == {"log": b"one two three"}


def test_permissions_survive(shim: DiskShim) -> None:
    after_power_cut(shim, 'os.fsync(put(root / "key", b"secret")); os.chmod(root / "key", 0o600); sync(root); die()')
    assert (shim.root / "key").stat().st_mode & 0o777 == 0o600


# --- real databases -------------------------------------------------------------------------------------------------

ROCKSDB = """
from rocksdict import Options, Rdict, WriteBatch, WriteOptions

options = Options(raw_mode=True)
database = Rdict(str(root / "store"), options)
later = WriteOptions()
later.sync = False

def commit(number):
    batch = WriteBatch(raw_mode=True)
    batch.put(b"%06d" % number, b"x" * 1000)
    database.write(batch, later)

for number in range(500):
    commit(number)
    if number % 10 == 9:
        database.flush_wal(True)
    if number == 300:
        database.flush()
"""
READ_ROCKSDB = """
from rocksdict import Options, Rdict
database = Rdict(str(root / "store"), Options(raw_mode=True))
print(" ".join(key.decode() for key in database.keys()))
database.close()
"""


def test_the_shim_sees_all_system_calls_that_write(shim: DiskShim) -> None:
    run(
        shim,
        """
        import shutil
        fd = put(root / "log", b"0123456789" * 10)
        os.pwrite(fd, b"pwrite", 10)
        os.pwritev(fd, [b"pwr", b"itev"], 20)
        os.writev(fd, [b"wri", b"tev"])
        os.ftruncate(fd, 200)
        shutil.copy(root / "log", root / "copy")
        source, target = os.open(root / "log", os.O_RDONLY), put(root / "ranges", b"")
        os.copy_file_range(source, target, 50, 10)
        os.copy_file_range(source, target, 50, 10, 100)
        with open(root / "text", "a") as text:
            print("buffered", file=text)
        os.close(put(root / ".." / "root" / "one", b"x"))
        os.chdir(root)
        os.rename("one", "two")
        """,
    )
    assert shim.replayed_disk().differences() == []


def test_writes_that_the_shim_cannot_see_are_reported_as_differences(shim: DiskShim) -> None:
    program = """
        import mmap
        fd = put(root / "log", bytes(4096), os.O_CREAT | os.O_RDWR)
        mmap.mmap(fd, 4096)[:4] = b"seen"
        """
    run(shim, program)
    assert shim.replayed_disk().differences() == ["log has 4096 bytes, the trace tells 4096 others"]


def test_the_shim_sees_all_writes_of_rocksdb(shim: DiskShim) -> None:
    (shim.root / "store").mkdir()
    run(shim, ROCKSDB + "\ndatabase.close()")
    assert shim.replayed_disk().differences() == []


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_rocksdb_loses_only_unsynced_writes(shim: DiskShim, seed: int | None) -> None:
    (shim.root / "store").mkdir()
    run(shim, ROCKSDB + "\nfor number in range(500, 600):\n    commit(number)\ndie()")
    shim.replayed_disk().cut_power(random.Random(seed) if seed is not None else None)
    keys = run(shim, READ_ROCKSDB).split()
    assert keys == [f"{number:06}" for number in range(len(keys))]
    assert len(keys) == 500 if seed is None else 500 <= len(keys) <= 600


SQLITE = """
import sqlite3
database = sqlite3.connect(root / "catalogue.db", isolation_level=None)
database.execute("PRAGMA journal_mode={mode}")
database.execute("PRAGMA synchronous={synchronous}")
database.execute("CREATE TABLE IF NOT EXISTS t (n INTEGER, filler TEXT)")
for number in range(40):
    database.execute("INSERT INTO t VALUES (?, ?)", (number, "x" * 3000))
"""
READ_SQLITE = """
import sqlite3
database = sqlite3.connect(root / "catalogue.db")
print(*database.execute("PRAGMA integrity_check").fetchone(), *database.execute("SELECT count(*) FROM t").fetchone())
"""


@pytest.mark.parametrize(("mode", "synchronous"), [("WAL", "FULL"), ("DELETE", "EXTRA")])
@pytest.mark.parametrize("seed", [None, 1])
def test_sqlite_keeps_all_committed_rows(shim: DiskShim, mode: str, synchronous: str, seed: int | None) -> None:
    run(shim, SQLITE.format(mode=mode, synchronous=synchronous) + "\ndie()")
    shim.replayed_disk().cut_power(random.Random(seed) if seed is not None else None)
    assert run(shim, READ_SQLITE) == "ok 40\n"


def test_sqlite_without_syncs_loses_rows(shim: DiskShim) -> None:
    run(shim, SQLITE.format(mode="WAL", synchronous="FULL"))
    run(shim, SQLITE.format(mode="WAL", synchronous="OFF") + "\ndie()")
    shim.replayed_disk().cut_power()
    assert run(shim, READ_SQLITE) == "ok 40\n"  # not 80


# --- rules: slow and failing disks ----------------------------------------------------------------------------------

TIMED = """
import time
for name in ("one", "two"):
    fd = put(root / name / "log", b"x")
    started = time.monotonic()
    try:
        os.fdatasync(fd)
        print(time.monotonic() - started)
    except OSError as error:
        print(error.errno)
"""


@pytest.fixture
def _folders(shim: DiskShim) -> None:
    for name in ("one", "two", "one-and-a-half"):
        (shim.root / name).mkdir()


@pytest.mark.usefixtures("_folders")
def test_a_delay_applies_to_the_syncs_of_one_folder(shim: DiskShim) -> None:
    with shim.rule(Action.DELAY_SYNC, shim.root / "one", delay_ms=700) as rule:
        slow, fast = map(float, run(shim, TIMED).split())
    assert rule.hit_count == 1
    assert slow >= 0.7 > fast


@pytest.mark.usefixtures("_folders")
def test_a_failure_applies_to_the_syncs_of_one_folder_until_the_rule_ends(shim: DiskShim) -> None:
    with shim.rule(Action.FAIL_SYNC, shim.root / "one") as rule:
        assert run(shim, TIMED).split()[0] == "5"
        assert run(shim, TIMED).split()[0] == "5"
        assert rule.hit_count == 2
    assert float(run(shim, TIMED).split()[0]) < 0.7


@pytest.mark.usefixtures("_folders")
def test_a_rule_applies_to_the_folder_itself_but_not_to_one_with_the_same_prefix(shim: DiskShim) -> None:
    with shim.rule(Action.FAIL_SYNC, shim.root / "one"):
        program = """
            for name in ("one", "one-and-a-half"):
                try:
                    sync(root / name)
                    print("synced")
                except OSError as error:
                    print("failed")
            """
        assert run(shim, program).split() == ["failed", "synced"]


@pytest.mark.usefixtures("_folders")
def test_a_full_disk_refuses_writes(shim: DiskShim) -> None:
    with shim.rule(Action.FAIL_WRITE, shim.root / "one", times=1):
        program = """
            for _ in range(2):
                try:
                    put(root / "one" / "log", b"x")
                    print("written")
                except OSError as error:
                    print(error.errno)
            """
        assert run(shim, program).split() == ["28", "written"]


@pytest.mark.usefixtures("_folders")
def test_a_rule_can_be_added_and_removed_while_the_program_runs(shim: DiskShim) -> None:
    program = """
        fd = put(root / "one" / "log", b"x")
        while True:
            try:
                os.fsync(fd)
                print("good", flush=True)
            except OSError:
                print("bad", flush=True)
        """
    command = [sys.executable, "-c", PREAMBLE + textwrap.dedent(program), str(shim.root)]
    with subprocess.Popen(command, env=shim.environment(), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            read_until("good", process.stdout)
            with shim.rule(Action.FAIL_SYNC, shim.root / "one"):
                read_until("bad", process.stdout)
            read_until("good", process.stdout)
        finally:
            process.kill()


def read_until(expected: str, lines: IO[str]) -> None:
    deadline = time.monotonic() + 20
    while next(lines).strip() != expected:
        assert time.monotonic() < deadline
