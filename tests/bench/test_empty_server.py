"""The server that the bench measures does what a queue server does, and is as small as it is said to be."""

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


def test_what_was_sent_is_received_in_order(address: str) -> None:
    connection = BlockingConnection(address, timeout=20)
    sender = connection.create_sender("queue")
    for number in range(200):
        sender.send(Message(body=number))
    receiver = connection.create_receiver("queue")
    got = []
    for _ in range(200):
        got.append(receiver.receive(timeout=10).body)
        receiver.accept()
    assert got == list(range(200))
    connection.close()


def test_its_policy_is_under_100_lines() -> None:
    assert len(SERVER.read_text().splitlines()) < 100
