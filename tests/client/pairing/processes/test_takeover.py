"""If a process that hosts the syphon is stopped, another takes over, and is not displaced when the first resumes."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from tests.support.server_pair import (
    BACKLOG_QUEUES,
    QUEUE,
    connection_string,
    paired_application,
    receive_all_texts,
    run_server_pair,
)
from twinbus.client import BrokeredMessage
from twinbus.client.pairing import EventKind
from twinbus.client.pairing.backlog import rotation
from twinbus.client.pairing.backlog.rewriting import park
from twinbus.client.pairing.syphon import pump

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pytest

    from tests.support.server_pair import Application
    from tests.support.server_process import ServerProcess

SILENCE_LIMIT_S = 1.5
STANDBY_S = 0.3
TAKEOVER_LIMIT_S = 10.0


@contextlib.contextmanager
def syphon_host(primary: ServerProcess, secondary: ServerProcess) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that hosts the syphon of the pair."""
    arguments = [str(number) for number in (BACKLOG_QUEUES, SILENCE_LIMIT_S, STANDBY_S)]
    command = [sys.executable, "-m", "tests.client.pairing.processes.syphon_host", *arguments]
    host = subprocess.Popen(command, stdin=subprocess.PIPE)
    try:
        assert host.stdin is not None
        strings = connection_string(primary), connection_string(secondary)
        with host.stdin as stdin:
            stdin.write("\n".join((*strings, connection_string(secondary, port=secondary.http_port))).encode())
        yield host
    finally:
        host.kill()
        host.wait()


async def put_in_backlog(app: Application, *texts: str) -> None:
    """Put one message into each backlog queue, as paired senders park them."""
    for index, text in enumerate(texts):
        sender = app.pairing.secondary.create_message_sender(rotation.backlog_queue_path("contoso", index))
        payload = BrokeredMessage(text, message_id=text).encode(int(time.time() * 1000))
        await sender.deliver(park(payload, 0, QUEUE, is_possible_duplicate=False))


async def test_q17_a_stopped_host_is_replaced_within_seconds_and_sends_nothing_when_it_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pump, "SILENCE_LIMIT_S", SILENCE_LIMIT_S)
    monkeypatch.setattr(pump, "STANDBY_POLL_S", STANDBY_S)
    pair = run_server_pair(tmp_path)
    async with pair as (primary, secondary), paired_application(primary, secondary, enable_syphon=True) as app:
        with syphon_host(primary, secondary) as host:
            await app.wait_for_event(EventKind.PUMP_DISPLACED, BACKLOG_QUEUES)
            host.send_signal(signal.SIGSTOP)
            stopped_s = time.monotonic()
            await put_in_backlog(app, "apples", "pears")  # the stopped host holds their locks
            await app.wait_for_event(EventKind.MOVED, 2)
            assert time.monotonic() - stopped_s < TAKEOVER_LIMIT_S
            host.send_signal(signal.SIGCONT)
            await asyncio.sleep(1)
            assert len(app.events_of(EventKind.PUMP_DISPLACED)) == BACKLOG_QUEUES, "the host that resumes stands by"
            assert await receive_all_texts(primary, 2) == ["apples", "pears"]
