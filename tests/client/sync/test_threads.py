"""Threads share clients; an interrupted call is cancelled; a forked child has its own event loop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tests.support.server_process import wait_until
from twinbus.client.sync import BrokeredMessage, MessagingFactory

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.server_process import ServerProcess

PROGRAM = """
import os, sys
from twinbus.client.sync import BrokeredMessage, MessagingFactory

def send(text):
    factory = MessagingFactory.from_connection_string(sys.argv[1])
    factory.create_queue_client(sys.argv[2]).send(BrokeredMessage(text))
    return factory  # not closed: the process ends nevertheless

kept = send("parent")
child = os.fork()
if child == 0:
    also_kept = send("child")
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
print("done")
"""


def test_many_threads_send_and_receive_on_the_same_objects(factory: MessagingFactory, server: ServerProcess) -> None:
    queue = factory.create_queue_client(server.create_queue())
    received: list[str] = []

    def send(worker: int) -> None:
        for number in range(20):
            queue.send(BrokeredMessage(f"{worker} {number}"))

    def take(_: int) -> None:
        while message := queue.receive(1):
            received.append(message.text)
            queue.complete(message)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(send, range(8)))
        list(threads.map(take, range(8)))
    assert sorted(received) == sorted(f"{worker} {number}" for worker in range(8) for number in range(20))
    assert server.message_counts(queue.path) == (0, 0)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Enable SIGINT, which is ignored if the tests run in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupted_receive_is_cancelled_and_leaves_no_message_locked(
    factory: MessagingFactory, server: ServerProcess
) -> None:
    queue = factory.create_queue_client(server.create_queue())
    queue.receiver.open()
    timer = threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        queue.receive_batch(5, 60)
    queue.send(BrokeredMessage("x"))
    message = factory.create_message_receiver(queue.path).receive(20)
    assert message is not None
    assert message.delivery_count == 1


def test_a_blocking_call_in_a_watcher_is_refused(factory: MessagingFactory, server: ServerProcess) -> None:
    errors: list[object] = []

    def watch(changed: MessagingFactory) -> None:
        try:
            changed.create_queue_client("q")
        except RuntimeError as error:
            errors.append(str(error))

    factory.watch(watch)
    factory.create_queue_client(server.create_queue()).send(BrokeredMessage("x"))
    wait_until(lambda: errors)
    assert "would deadlock" in str(errors[0])


def test_a_process_and_its_forked_child_exit_with_an_open_factory(server: ServerProcess) -> None:
    queue = server.create_queue()
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM, server.connection_string, queue],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "done\n", "")
    assert server.message_counts(queue) == (2, 0)
