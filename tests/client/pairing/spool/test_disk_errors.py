"""If the disk is full or fails, only the sends that it did not store fail."""

from __future__ import annotations

import asyncio
import errno
import os
from typing import TYPE_CHECKING

import pytest

from tests.client.pairing.spool.records import make_record, names_in, read_spool
from twinbus.client.pairing.errors import SpoolFailed, SpoolFull
from twinbus.client.pairing.spool.record import encode_record, frame_size
from twinbus.client.pairing.spool.spool import Spool

if TYPE_CHECKING:
    from pathlib import Path

LARGE = 10_000


def fail(_descriptor: int) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


async def test_a_full_disk_fails_the_message_that_does_not_fit_and_stores_those_that_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = Spool(tmp_path)
    await spool.open()
    real_write = os.pwrite

    def pwrite(descriptor: int, content: memoryview, offset: int) -> int:
        if len(content) < LARGE:
            return real_write(descriptor, content, offset)
        if len(content) == LARGE + 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real_write(descriptor, content[: len(content) - LARGE - 1], offset)  # a partial write, as on a full disk

    monkeypatch.setattr(os, "pwrite", pwrite)
    outcomes = await asyncio.gather(
        spool.append(make_record("small 1")),
        spool.append(make_record("large", body=bytes(2 * LARGE))),
        spool.append(make_record("small 2")),
        return_exceptions=True,
    )
    assert outcomes[0] is None
    assert isinstance(outcomes[1], SpoolFailed)
    assert "No space left on device" in str(outcomes[1])
    assert outcomes[2] is None
    await spool.append(make_record("small 3"))
    assert spool.status.count == 3
    await spool.close()
    assert [record.message_ids[0] for record in read_spool(tmp_path)] == ["small 1", "small 2", "small 3"]
    assert names_in(tmp_path / "damaged") == set()


async def test_after_a_failed_fsync_the_next_record_goes_to_another_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = Spool(tmp_path)
    await spool.open()
    await spool.append(make_record("before"))
    files_before = names_in(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fail)
        with pytest.raises(SpoolFailed, match="Input/output error"):
            await spool.append(make_record("lost"))
    await spool.append(make_record("after"))
    assert len(names_in(tmp_path) - files_before) == 1, "the next record goes to another file"
    await spool.close()
    assert [record.message_ids[0] for record in read_spool(tmp_path)] == ["before", "after"]


async def test_a_full_spool_refuses_messages_until_one_is_removed(tmp_path: Path) -> None:
    first, second = make_record("one"), make_record("another")
    size = frame_size(encode_record(first))
    spool = Spool(tmp_path, max_bytes=8 + size + size // 2)
    await spool.open()
    await spool.append(first)
    with pytest.raises(SpoolFull, match="spool_max_bytes"):
        await spool.append(second)
    (queue,) = spool.entity_queues
    position = queue.take()
    assert position is not None
    await spool.remove(position, first)
    assert spool.status.bytes == 0
    await spool.append(second)
    await spool.close()
    assert read_spool(tmp_path) == [second]


async def test_concurrent_appends_cannot_exceed_the_limit_together(tmp_path: Path) -> None:
    record = make_record("one")
    spool = Spool(tmp_path, max_bytes=8 + 3 * frame_size(encode_record(record)))
    await spool.open()
    outcomes = await asyncio.gather(*[spool.append(record) for _ in range(10)], return_exceptions=True)
    assert sum(outcome is None for outcome in outcomes) == 3
    assert spool.status.bytes <= spool.max_bytes
    await spool.close()


async def test_if_a_done_mark_cannot_be_written_the_message_may_be_sent_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    spool = Spool(tmp_path)
    await spool.open()
    first, second = make_record("one"), make_record("another")
    await spool.append(first)
    await spool.append(second)
    (queue,) = spool.entity_queues
    position = queue.take()
    assert position is not None
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fail)
        await spool.remove(position, first)
    assert "may be sent again" in caplog.text
    assert spool.status.count == 1
    await spool.close()
    assert read_spool(tmp_path) == [first, second]
