"""The walkthrough of a read with Spark in docs/design.md names the functions that are called, in order."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.call_trace import CallTrace, first_missing, walkthrough
from twinbus.client import BrokeredMessage
from twinbus.client.sync import MessagingFactory

if TYPE_CHECKING:
    from tests.support.server_process import ServerProcess

PROGRAM = Path(__file__).with_name("read_queue.py")


def test_the_walkthrough_of_a_spark_read_names_the_calls_in_order(server: ServerProcess, tmp_path: Path) -> None:
    queue = server.create_queue()
    with MessagingFactory.from_connection_string(server.connection_string) as factory:
        factory.create_message_sender(queue).send_batch([BrokeredMessage("hello"), BrokeredMessage("world")])
    trace = CallTrace(tmp_path)
    job = subprocess.run(
        [sys.executable, PROGRAM, server.connection_string, queue],
        env={**os.environ, **trace.environment},
        stdout=subprocess.PIPE,
        check=True,
    )
    assert job.stdout == b"2\n"
    assert first_missing(walkthrough("Spark read"), trace.calls()) is None
