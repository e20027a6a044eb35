"""A data directory has one owner and one format, and finds its stores wherever they are."""

from __future__ import annotations

import errno
import json
import os
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from twinbus.server.config.settings import InvalidSetting, StartError
from twinbus.server.runtime import data_directory
from twinbus.server.runtime.data_directory import DataDirectory, write_atomically
from twinbus.store.catalogue import Catalogue, CleanupRow


def contents(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data"


# ------------------------------------------------------------------------------------------------------ one owner


def test_a_new_directory_is_accessible_to_its_owner_only(path: Path) -> None:
    with DataDirectory(path / "deeper") as data:
        assert stat.S_IMODE(data.path.stat().st_mode) == 0o700
        assert contents(data.path) == ["format", "lock"]


def test_a_second_owner_is_refused_with_the_pid_of_the_first(path: Path) -> None:
    with DataDirectory(path), pytest.raises(StartError) as caught:
        DataDirectory(path)
    assert str(caught.value) == (
        f"{path} is in use by process {os.getpid()}: stop that process first, or give another --data"
    )
    with DataDirectory(path):
        pass  # the first owner has released it


def test_a_second_owner_is_refused_with_the_pids_of_the_workers(path: Path) -> None:
    with DataDirectory(path) as data:
        for pids in ([7], [7, 12_345], [8]):
            data.record_workers(pids)
            with pytest.raises(StartError, match=f"process {os.getpid()}, workers {', '.join(map(str, pids))}: stop"):
                DataDirectory(path)


def test_recording_workers_on_a_full_disk_raises_no_error(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with DataDirectory(path) as data, monkeypatch.context() as full:
        full.setattr(os, "pwrite", refuse)
        data.record_workers([7])


def test_a_killed_owner_releases_the_directory(path: Path) -> None:
    program = (
        "import os, pathlib, sys; from twinbus.server.runtime.data_directory import DataDirectory;"
        "data = DataDirectory(pathlib.Path(sys.argv[1])); print(os.getpid(), flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        pid = owner.stdout.readline().strip()
        with pytest.raises(StartError, match=f"is in use by process {pid}: "):
            DataDirectory(path)
        owner.kill()
    with DataDirectory(path):
        assert (path / "lock").read_text() == f"{os.getpid()}\n"


def test_a_child_process_of_the_owner_does_not_keep_the_lock(path: Path) -> None:
    with DataDirectory(path):
        child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, close_fds=False)
    with child, DataDirectory(path):
        pass


def test_closing_twice_has_no_effect(path: Path) -> None:
    data = DataDirectory(path)
    data.close()
    data.close()


# --------------------------------------------------------------------------------------------------------- format


def test_the_format_is_written_and_found_again(path: Path) -> None:
    DataDirectory(path).close()
    assert (path / "format").read_text() == "4\n"
    DataDirectory(path).close()


def test_a_newer_format_is_refused(path: Path) -> None:
    DataDirectory(path).close()
    (path / "format").write_text("5\n")
    with pytest.raises(
        StartError, match="has format 5 of a newer twinbus, and this version reads up to 4: use the newer"
    ):
        DataDirectory(path)
    (path / "format").write_text("4\n")
    DataDirectory(path).close()  # a refused start does not keep the lock


def test_a_directory_of_format_3_is_migrated_and_then_refused_by_older_versions(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with DataDirectory(path) as data:
        stores = data.ensure_stores(2, ())
    (path / "format").write_text("3\n")
    with DataDirectory(path) as data:
        assert data.ensure_stores(2, ()) == stores
    assert (path / "format").read_text() == "4\n"
    monkeypatch.setattr(data_directory, "FORMAT_VERSION", 3)
    with pytest.raises(StartError, match="has format 4 of a newer twinbus, and this version reads up to 3"):
        DataDirectory(path)


def test_a_catalogue_of_format_2_is_migrated(path: Path) -> None:
    DataDirectory(path).close()
    (path / "format").write_text("2\n")
    with closing(sqlite3.connect(path / "catalogue.db")) as database, database:
        database.execute("CREATE TABLE doomed (id INTEGER PRIMARY KEY, fragments TEXT NOT NULL)")
        database.execute("INSERT INTO doomed VALUES (7, '[2]')")
    for _ in range(2):  # a migration may be interrupted before the new format is written, and start again
        DataDirectory(path).close()
        (path / "format").write_text("2\n")
    with DataDirectory(path) as data:
        catalogue = Catalogue(data.catalogue_file)
        assert catalogue.pending_cleanups() == [CleanupRow(id=7, fragments=(2,))]
        catalogue.close()


def test_an_older_format_is_migrated_step_by_step(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    DataDirectory(path).close()
    steps: list[str] = []
    (path / "format").write_text("1\n")
    monkeypatch.setattr(data_directory, "FORMAT_VERSION", 3)
    monkeypatch.setattr(
        data_directory,
        "MIGRATIONS",
        {1: lambda path: steps.append(f"1 {path}"), 2: lambda path: steps.append(f"2 {path}")},
    )
    DataDirectory(path).close()
    DataDirectory(path).close()
    assert steps == [f"1 {path}", f"2 {path}"]
    assert (path / "format").read_text() == "3\n"


@pytest.mark.parametrize("text", ["", "one", "0", "-1", "1.0"])
def test_an_invalid_format_is_refused(path: Path, text: str) -> None:
    DataDirectory(path).close()
    (path / "format").write_text(text)
    with pytest.raises(StartError, match="not a format version"):
        DataDirectory(path)


def test_a_foreign_directory_is_refused_and_left_unchanged(path: Path) -> None:
    path.mkdir()
    (path / "holiday.jpg").write_text("beach")
    with pytest.raises(StartError, match=r"has files but is not a data directory \(no file 'format'\)"):
        DataDirectory(path)
    assert contents(path) == ["holiday.jpg"]


def test_a_new_disk_and_an_interrupted_first_start_count_as_empty(path: Path) -> None:
    path.mkdir()
    (path / "lost+found").mkdir()
    (path / "lock").write_text("123\n")
    (path / ".format.new").write_text("")
    with DataDirectory(path):
        assert contents(path) == ["format", "lock", "lost+found"]


def test_a_path_that_is_not_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(StartError, match=r"Not a directory|File exists"):
            DataDirectory(path)


# --------------------------------------------------------------------------------------------------------- stores


def test_stores_are_created_in_the_data_directory(path: Path) -> None:
    with DataDirectory(path) as data:
        assert data.ensure_stores(2, ()) == (path / "stores" / "0", path / "stores" / "1")
        assert stat.S_IMODE((path / "stores").stat().st_mode) == 0o700


def test_existing_stores_are_found_and_new_ones_are_added(path: Path) -> None:
    with DataDirectory(path) as data:
        three = data.ensure_stores(3, ())
        assert data.ensure_stores(3, ()) == data.ensure_stores(None, ()) == three
        assert data.ensure_stores(4, ()) == (*three, path / "stores" / "3")


def test_stores_are_spread_over_the_given_directories(path: Path, tmp_path: Path) -> None:
    disks = [tmp_path / "disk 0", tmp_path / "disk 1"]
    for disk in disks:
        disk.mkdir()
    with DataDirectory(path) as data:
        stores = data.ensure_stores(3, disks)
        assert [store.parents[1] for store in stores] == [disks[0], disks[1], disks[0]]
        assert all(store.is_dir() for store in stores)
        assert not (path / "stores").exists()
    with DataDirectory(path) as data:
        assert data.ensure_stores(4, ()) == (*stores, path / "stores" / "3"), "whatever options are given later"


def test_two_namespaces_may_share_a_disk(tmp_path: Path) -> None:
    with DataDirectory(tmp_path / "one") as first, DataDirectory(tmp_path / "two") as second:
        (tmp_path / "disk").mkdir()
        assert not set(first.ensure_stores(4, [tmp_path / "disk"])) & set(second.ensure_stores(4, [tmp_path / "disk"]))


def test_a_moved_data_directory_finds_its_stores(path: Path, tmp_path: Path) -> None:
    with DataDirectory(path) as data:
        data.ensure_stores(1, ())
    path.rename(tmp_path / "moved")
    with DataDirectory(tmp_path / "moved") as data:
        assert data.ensure_stores(1, ()) == (tmp_path / "moved" / "stores" / "0",)


def test_a_store_whose_directory_is_missing_is_named(path: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    with DataDirectory(path) as data:
        store = data.ensure_stores(1, [disk])[0]
        disk.rename(tmp_path / "unplugged")
        with pytest.raises(StartError) as caught:
            data.ensure_stores(1, [disk])
    assert str(caught.value) == (
        f"store 0 is missing: expected in {store} by {path}/stores.json; mount its disk, or restore it"
    )


def test_a_missing_store_directory_is_not_created(path: Path, tmp_path: Path) -> None:
    with DataDirectory(path) as data:
        with pytest.raises(InvalidSetting, match=r"^--store-dir .*/disk: does not exist: create it first$"):
            data.ensure_stores(1, [tmp_path / "disk"])
        assert contents(path) == ["format", "lock"]


@pytest.mark.parametrize("text", ["", "{}", '{"stores": [1]}', json.dumps({"stores": ["stores/0"] * 65})])
def test_an_invalid_list_of_stores_is_refused(path: Path, text: str) -> None:
    with DataDirectory(path) as data:
        (path / "stores.json").write_text(text)
        with pytest.raises(StartError, match=r"stores\.json"):
            data.ensure_stores(1, ())


# ---------------------------------------------------------------------------------------------------------- files


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    write_atomically(file, b"old")

    def failing(_descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", failing)
        with pytest.raises(StartError, match="file cannot be written: Input/output error"):
            write_atomically(file, b"new")
    assert file.read_bytes() == b"old"
    assert contents(tmp_path) == ["file"]


def test_a_file_and_its_directory_are_synced_in_that_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr(
        os, "fsync", lambda descriptor: synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
    )
    write_atomically(tmp_path / "file", b"content")
    assert synced == [str(tmp_path / ".file.new"), str(tmp_path)]


def test_a_symbolic_link_in_the_way_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "theirs").write_text("theirs")
    (tmp_path / ".file.new").symlink_to(tmp_path / "theirs")
    (tmp_path / "file").symlink_to(tmp_path / "theirs")
    write_atomically(tmp_path / "file", b"ours")
    assert (tmp_path / "theirs").read_text() == "theirs"
    assert not (tmp_path / "file").is_symlink()
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o600
