"""The present version drains a spool that a paired program of an earlier version left."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from typer.testing import CliRunner

from tests.compatibility.archives import unpack
from tests.support.server_pair import connection_string, receive_all, run_server_pair
from twinbus.cli.main import app

if TYPE_CHECKING:
    from pathlib import Path


async def test_all_spooled_messages_arrive_once(tmp_path: Path) -> None:
    expected = unpack("pair", tmp_path)["spooled"]
    async with run_server_pair(tmp_path) as (primary, secondary):
        strings = (primary.tls_connection_string, connection_string(secondary), secondary.admin_connection_string)
        trusted = ["--ca-file", primary.ca_file, "--ca-file", secondary.ca_file]
        arguments = [
            "pair",
            "drain",
            *strings,
            *trusted,
            "--primary-name",
            "contoso",
            "--spool",
            str(tmp_path / "spool"),
        ]
        result = await asyncio.to_thread(CliRunner().invoke, app, arguments, prog_name="twinbus")
        assert result.exit_code == 0, result.output
        arrived = await receive_all(primary, len(expected))
    assert [message.message_id for message in arrived] == expected
    assert [message.text for message in arrived] == expected
    assert [message.session_id for message in arrived] == [None] * 5 + ["apples"] * 5
    assert [message.properties.get("number") for message in arrived] == [None] * 5 + [7] * 5
