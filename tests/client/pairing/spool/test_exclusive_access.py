"""A spool has one owner at a time, and other users cannot read its files."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest

from tests.client.pairing.spool.records import make_record
from twinbus.client.pairing.errors import SpoolFailed
from twinbus.client.pairing.spool.spool import Spool

if TYPE_CHECKING:
    from pathlib import Path


async def test_opening_a_spool_that_is_in_use_fails_and_the_error_names_the_process(tmp_path: Path) -> None:
    first, second = Spool(tmp_path), Spool(tmp_path)
    await first.open()
    with pytest.raises(SpoolFailed, match=rf"process {os.getpid()}: each process .* spool_dir of its own"):
        await second.open()
    await first.append(make_record("one"))
    await first.close()
    third = Spool(tmp_path)
    await third.open()
    assert third.status.count == 1
    await third.close()


async def test_only_the_owner_can_read_spooled_messages(tmp_path: Path) -> None:
    folder = tmp_path / "application" / "spool"
    spool = Spool(folder)
    await spool.open()
    first, second = make_record("one"), make_record("another")
    await spool.append(first)
    await spool.append(second)
    (queue,) = spool.entity_queues
    position = queue.take()
    assert position is not None
    await spool.refuse(position, first, "nobody wants it")
    await spool.close()
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.rglob("*"))}
    assert {mode for name, mode in modes.items() if "." not in name and name != "lock"} == {0o700}
    assert {mode for name, mode in modes.items() if "." in name or name == "lock"} == {0o600}
    assert len(modes) == 8, "folder, refused, damaged, lock, segment, marks, refused message, its reason"


async def test_the_error_names_a_folder_that_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(SpoolFailed, match="file/spool cannot be used as a spool"):
        await Spool(tmp_path / "file" / "spool").open()


async def test_a_closed_spool_refuses_appends(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    await spool.open()
    await spool.close()
    await spool.close()
    with pytest.raises(SpoolFailed, match="is closed"):
        await spool.append(make_record("late"))
