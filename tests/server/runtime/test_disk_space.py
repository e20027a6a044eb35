"""Stores on a disk that is nearly full are told, with one line when that changes and no flutter at the edge."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path

import pytest

from twinbus.server.runtime.disk_space import DiskSpaceMonitor, free_bytes

A, B = Path("/a/0"), Path("/b/1")
MIB = 2**20


class Disks:
    """Free bytes that a test sets."""

    def __init__(self) -> None:
        self.free: dict[Path, int | OSError] = {A: 500 * MIB, B: 500 * MIB}

    def __call__(self, path: Path) -> int:
        free = self.free[path]
        if isinstance(free, OSError):
            raise free
        return free


@pytest.fixture
def disks() -> Disks:
    return Disks()


@pytest.fixture
def watch(disks: Disks) -> DiskSpaceMonitor:
    return DiskSpaceMonitor({0: A, 1: B}, 100 * MIB, disks)


def test_a_store_is_full_below_the_minimum_and_not_at_it(watch: DiskSpaceMonitor, disks: Disks) -> None:
    disks.free[B] = 100 * MIB
    assert watch.check() == set()
    disks.free[B] = 100 * MIB - 1
    assert watch.check() == {1}


def test_a_full_store_takes_messages_again_with_ten_percent_more(watch: DiskSpaceMonitor, disks: Disks) -> None:
    disks.free[A] = 99 * MIB
    assert watch.check() == {0}
    disks.free[A] = 109 * MIB
    assert watch.check() == {0}
    disks.free[A] = 110 * MIB + 1
    assert watch.check() == set()
    disks.free[A] = 105 * MIB
    assert watch.check() == set()


def test_each_change_is_one_line(watch: DiskSpaceMonitor, disks: Disks, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    watch.check()
    disks.free |= {A: 0, B: 0}
    watch.check()
    watch.check()
    disks.free[B] = 500 * MIB
    watch.check()
    watch.check()
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        (
            "ERROR",
            (
                "less than 100 MiB (--min-free) left for store 0 (/a/0), store 1 (/b/1): "
                "sends are refused until there is more; settling goes on"
            ),
        ),
        ("INFO", "more than 100 MiB left again for store 1 (/b/1): sends are taken"),
    ]


def test_a_disk_that_cannot_be_asked_counts_as_full(watch: DiskSpaceMonitor, disks: Disks) -> None:
    disks.free[A] = OSError(errno.EIO, os.strerror(errno.EIO))
    assert watch.check() == {0}
    assert watch.refusal_reason(0) == (
        "the free space on its disk cannot be read (Input/output error): check the disk and its mount"
    )


def test_a_full_store_has_a_reason_that_says_what_to_do(watch: DiskSpaceMonitor, disks: Disks) -> None:
    disks.free[A] = OSError(errno.EIO, os.strerror(errno.EIO))
    watch.check()
    disks.free[A] = 0
    watch.check()
    assert watch.refusal_reason(0) == (
        "its disk is full (less than 100 MiB free, the limit of --min-free): free space on that disk, or restart the "
        "server with a lower --min-free. Stored messages can be received and settled"
    )
    assert watch.refusal_reason(1) is None


def test_a_minimum_of_nothing_is_never_missed(disks: Disks) -> None:
    disks.free |= {A: 0, B: 0}
    assert DiskSpaceMonitor({0: A, 1: B}, 0, disks).check() == set()


def test_free_bytes_are_those_of_the_disk(tmp_path: Path) -> None:
    assert 0 < free_bytes(tmp_path) < 2**60
    assert DiskSpaceMonitor({0: tmp_path}, 2**60).check() == {0}
    with pytest.raises(FileNotFoundError):
        free_bytes(tmp_path / "missing")
