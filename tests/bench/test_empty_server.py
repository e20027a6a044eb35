"""The empty server of the bench works as a queue server, and is as small as documented."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from proton import Message
from proton.utils import BlockingConnection

if TYPE_CHECKING:
    from collections.abc import Iterator

SERVER = Path(__file__).parents[2] / "bench" / "empty_twinbus.py"


@pytest.fixture
def address() -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen([sys.executable, SERVER, str(port)])
    try:
        for _ in range(200):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.05)
        yield f"127.0.0.1:{port}"
    finally:
        server.terminate()
        assert server.wait(10) == 0


def test_messages_are_received_in_order(address: str) -> None:
    connection = BlockingConnection(address, timeout=20)
    sender = connection.create_sender("queue")
    for number in range(200):
        sender.send(Message(body=number))
    receiver = connection.create_receiver("queue")
    received = []
    for _ in range(200):
        received.append(receiver.receive(timeout=10).body)
        receiver.accept()
    assert received == list(range(200))
    connection.close()


def test_the_empty_server_has_less_than_100_lines() -> None:
    assert len(SERVER.read_text().splitlines()) < 100
