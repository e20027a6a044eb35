"""Captures of an earlier version are read, and the next capture continues after them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.compatibility.archives import unpack
from tests.pipeline.capture.local_capture import CapturedFolder, LocalSpark, make_settings, run_capture
from tests.support.server_process import run_server

if TYPE_CHECKING:
    from pathlib import Path


async def test_captured_messages_are_read_and_the_rest_is_captured(tmp_path: Path) -> None:
    queues = unpack("jobs", tmp_path)
    captured = CapturedFolder(tmp_path / "captured")
    captured.check_manifests()
    assert sorted(captured.ids()) == sorted(
        [message_id for expected in queues.values() for message_id in expected["captured"]]
    )
    with run_server(tmp_path) as server:
        await run_capture(LocalSpark(), make_settings(server, tmp_path / "captured", *queues))
    captured.check_manifests()
    all_ids = [message_id for expected in queues.values() for message_id in {*expected["captured"], *expected["left"]}]
    assert sorted(captured.ids()) == sorted(all_ids)
