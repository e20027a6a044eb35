"""The monitor of free disk space: which stores are full, one log line for each change, and hysteresis at the limit."""

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
def monitor(disks: Disks) -> DiskSpaceMonitor:
    return DiskSpaceMonitor({0: A, 1: B}, 100 * MIB, disks)


def test_a_store_is_full_below_the_minimum_and_not_at_it(monitor: DiskSpaceMonitor, disks: Disks) -> None:
    disks.free[B] = 100 * MIB
    assert monitor.check() == set()
    disks.free[B] = 100 * MIB - 1
    assert monitor.check() == {1}


def test_a_full_store_takes_messages_again_at_ten_percent_above_the_minimum(
    monitor: DiskSpaceMonitor, disks: Disks
) -> None:
    disks.free[A] = 99 * MIB
    assert monitor.check() == {0}
    disks.free[A] = 109 * MIB
    assert monitor.check() == {0}
    disks.free[A] = 110 * MIB + 1
    assert monitor.check() == set()
    disks.free[A] = 105 * MIB
    assert monitor.check() == set()


def test_each_change_is_logged_in_one_line(
    monitor: DiskSpaceMonitor, disks: Disks, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monitor.check()
    disks.free |= {A: 0, B: 0}
    monitor.check()
    monitor.check()
    disks.free[B] = 500 * MIB
    monitor.check()
    monitor.check()
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        (
            "ERROR",
            (
                "less than 100 MiB (--min-free) left for store 0 (/a/0), store 1 (/b/1): "
                "sends are refused until space is freed; settlements continue"
            ),
        ),
        ("INFO", "more than 100 MiB left again for store 1 (/b/1): sends are accepted"),
    ]


def test_a_disk_whose_free_space_cannot_be_read_counts_as_full(monitor: DiskSpaceMonitor, disks: Disks) -> None:
    disks.free[A] = OSError(errno.EIO, os.strerror(errno.EIO))
    assert monitor.check() == {0}
    assert monitor.refusal_reason(0) == (
        "the free space on its disk cannot be read (Input/output error): check the disk and its mount"
    )


def test_the_reason_of_a_full_store_says_what_to_do(monitor: DiskSpaceMonitor, disks: Disks) -> None:
    disks.free[A] = OSError(errno.EIO, os.strerror(errno.EIO))
    monitor.check()
    disks.free[A] = 0
    monitor.check()
    assert monitor.refusal_reason(0) == (
        "its disk is full (less than 100 MiB free, the limit of --min-free): free space on that disk, or restart the "
        "server with a lower --min-free. Stored messages can be received and settled"
    )
    assert monitor.refusal_reason(1) is None


def test_with_a_minimum_of_0_no_store_is_ever_full(disks: Disks) -> None:
    disks.free |= {A: 0, B: 0}
    assert DiskSpaceMonitor({0: A, 1: B}, 0, disks).check() == set()


def test_free_bytes_are_read_from_the_real_disk(tmp_path: Path) -> None:
    assert 0 < free_bytes(tmp_path) < 2**60
    assert DiskSpaceMonitor({0: tmp_path}, 2**60).check() == {0}
    with pytest.raises(FileNotFoundError):
        free_bytes(tmp_path / "missing")
