"""An append returns after an fsync, which concurrent appends share; the event loop does not wait for the fsync."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import TYPE_CHECKING

from tests.client.pairing.spool.records import make_record, read_spool, segment_file
from twinbus.client.pairing.spool.spool import Spool

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

LIMIT_S = 20.0


def inode(path: Path) -> int:
    return path.stat().st_ino


async def test_appends_wait_for_the_disk_and_the_loop_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = Spool(tmp_path)
    await spool.open()
    await spool.append(make_record("first"))
    is_syncing, may_sync = threading.Event(), threading.Event()
    syncs = 0
    real_sync = os.fsync

    segment = inode(segment_file(tmp_path))

    def fsync(descriptor: int) -> None:
        nonlocal syncs
        if os.fstat(descriptor).st_ino == segment:  # other threads of this process may sync other files
            syncs += 1
            is_syncing.set()
            assert may_sync.wait(LIMIT_S)
        real_sync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    held = asyncio.ensure_future(spool.append(make_record("held")))
    await asyncio.to_thread(is_syncing.wait, LIMIT_S)
    behind = [asyncio.ensure_future(spool.append(make_record(f"behind {number}"))) for number in range(100)]
    done, _ = await asyncio.wait([held, *behind], timeout=0.05)
    assert not done, "nothing is acknowledged before its fsync"
    may_sync.set()
    async with asyncio.timeout(LIMIT_S):
        await asyncio.gather(held, *behind)
    assert syncs == 2, "one for the held append, one for all that came meanwhile"
    await spool.close()
    assert len(read_spool(tmp_path)) == 102


async def test_an_append_that_is_cancelled_while_it_waits_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = Spool(tmp_path)
    await spool.open()
    may_sync = threading.Event()
    real_sync = os.fsync

    def fsync(descriptor: int) -> None:
        assert may_sync.wait(LIMIT_S)
        real_sync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    held = asyncio.ensure_future(spool.append(make_record("held")))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    cancelled = asyncio.ensure_future(spool.append(make_record("given up")))
    await asyncio.sleep(0)
    cancelled.cancel()
    may_sync.set()
    await held
    await spool.close()
    assert [record.message_ids[0] for record in read_spool(tmp_path)] == ["held"]


async def test_the_folder_of_a_new_file_is_synced_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = Spool(tmp_path)
    await spool.open()
    synced: list[int] = []
    real_sync = os.fsync

    def fsync(descriptor: int) -> None:
        real_sync(descriptor)
        synced.append(os.fstat(descriptor).st_ino)

    monkeypatch.setattr(os, "fsync", fsync)
    await spool.append(make_record("first"))
    assert synced == [inode(tmp_path), inode(segment_file(tmp_path))]
    await spool.append(make_record("second"))
    assert len(synced) == 3, "the folder is synced only once"
    await spool.close()
