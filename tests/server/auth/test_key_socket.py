"""The socket of `twinbus key` serves only the server's own user and root; the server also runs without the socket."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.server_process import TIMEOUT_S
from twinbus.server.auth.key_file import KeyChangeRefused, KeyCommand
from twinbus.server.auth.key_socket import KeyCommandReply, KeyView, send_command, serve_commands

if TYPE_CHECKING:
    from collections.abc import Iterator

OTHER_USER_ID = 12_345


@pytest.fixture
def path() -> Iterator[Path]:
    """Return a socket path in a folder that every user can enter."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder / "keys.sock"
    shutil.rmtree(folder)


async def handle(command: KeyCommand) -> KeyCommandReply:
    if command.do == "revoke":
        raise KeyChangeRefused("no")
    return KeyCommandReply((KeyView("Root", ("Manage",), primary="very-secret"),), pid=7)


def connect_as_another(path: Path, monkeypatch: pytest.MonkeyPatch) -> socket.socket:
    """Connect as another user, or make the server believe that it runs as another user."""
    sock = socket.socket(socket.AF_UNIX)
    if os.geteuid() == 0:
        path.chmod(0o777)
        os.seteuid(OTHER_USER_ID)
        try:
            sock.connect(str(path))
        finally:
            os.seteuid(0)
    else:  # only root can change its user, so change the server's instead
        sock.connect(str(path))
        monkeypatch.setattr(os, "geteuid", lambda: OTHER_USER_ID)
    sock.settimeout(TIMEOUT_S)
    return sock


async def test_another_user_gets_no_answer_even_if_the_socket_is_open_to_all(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with serve_commands(path, handle):
        with connect_as_another(path, monkeypatch) as sock:
            sock.sendall(b'{"do": "list"}\n')
            assert await asyncio.to_thread(sock.recv, 1000) == b""
    assert "refused a connection of user" in caplog.text


def leave_stale_socket(path: Path) -> None:
    """Leave the socket file of a killed server behind."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))


async def test_a_command_is_answered_or_refused_and_the_socket_is_removed_at_the_end(path: Path) -> None:
    leave_stale_socket(path)
    async with serve_commands(path, handle):
        answer = await asyncio.to_thread(send_command, path, KeyCommand("list"))
        assert answer is not None
        assert (answer.pid, answer.keys[0].primary) == (7, "very-secret")
        assert "very-secret" not in repr(answer)
        with pytest.raises(KeyChangeRefused, match=r"^no$"):
            await asyncio.to_thread(send_command, path, KeyCommand("revoke"))
    assert send_command(path, KeyCommand("list")) is None
    assert os.listdir(path.parent) == []  # noqa: PTH208


async def test_a_server_without_a_socket_runs_and_logs_a_warning(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with serve_commands(path / "nowhere", handle):
        pass
    assert "twinbus key cannot reach this server" in caplog.text
