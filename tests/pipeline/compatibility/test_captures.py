"""Captures of an earlier version are read, and the next capture goes on behind them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.compatibility.archives import unpack
from tests.pipeline.capture.local_capture import CapturedFolder, LocalSpark, make_settings, run_capture
from tests.support.server_process import run_server

if TYPE_CHECKING:
    from pathlib import Path


async def test_captured_messages_are_read_and_the_rest_is_captured(tmp_path: Path) -> None:
    found = unpack("jobs", tmp_path)
    taken = CapturedFolder(tmp_path / "captured")
    taken.check_manifests()
    assert sorted(taken.ids()) == sorted([one for expected in found.values() for one in expected["captured"]])
    with run_server(tmp_path) as server:
        await run_capture(LocalSpark(), make_settings(server, tmp_path / "captured", *found))
    taken.check_manifests()
    wanted = [one for expected in found.values() for one in {*expected["captured"], *expected["left"]}]
    assert sorted(taken.ids()) == sorted(wanted)
