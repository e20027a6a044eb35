"""A worker that is struck while the catalogue is being changed holds nobody up for long, and has the change later."""

from __future__ import annotations

import signal
import threading
import time
from typing import TYPE_CHECKING

from tests.support.multi_process_server import is_worker, run_multi_process_server
from tests.support.server_process import QUEUE_ENTRY

if TYPE_CHECKING:
    from pathlib import Path


def test_one_that_does_not_confirm_is_killed_and_the_change_is_made(tmp_path: Path) -> None:
    with (
        run_multi_process_server(tmp_path, "--worker-timeout=2", workers=3) as server,
        server.connect_to_each() as connections,
    ):
        pid = server.signal_worker(2, signal.SIGSTOP)
        began_s = time.monotonic()
        server.request_on(connections[0], "PUT", "orders", QUEUE_ENTRY.format(""), expected=201)
        assert 1.0 < time.monotonic() - began_s < 8
        assert "worker 2 is killed: it has" in server.log  # not made the change, or given no sign of life, for 2 s
        server.request_on(connections[1], "GET", "orders", expected=200)
        server.wait_for_replacement(2, pid)
        assert not is_worker(pid)
        assert set(server.request_each("GET", "orders", expected=200)) == {0, 1, 2}


def test_whatever_is_killed_meanwhile_all_agree_in_the_end(tmp_path: Path) -> None:
    with run_multi_process_server(tmp_path, workers=3) as server:
        answered: list[str] = []
        done = threading.Event()

        def make() -> None:
            number = 0
            while not done.is_set():
                name = f"made-{number}"
                try:
                    server.request_any(None, "PUT", name, QUEUE_ENTRY.format(""), expected=201)
                    answered.append(name)
                except (OSError, AssertionError, EOFError):  # it was the worker that was asked
                    pass
                except Exception as error:  # noqa: BLE001  # http.client's
                    assert "Remote end closed" in str(error) or "IncompleteRead" in str(error)  # noqa: PT017
                number += 1

        maker = threading.Thread(target=make)
        maker.start()
        try:
            for number in (0, 1, 2, 1):
                pid = server.signal_worker(number, signal.SIGKILL)
                server.wait_for_replacement(number, pid)
        finally:
            done.set()
            maker.join()
        assert len(answered) > 5
        lists = server.request_each("GET", "$Resources/queues?api-version=2021-05&$top=1000", expected=200)
        assert len({text.count("<entry") for text in lists.values()}) == 1
        assert all(f">{name}<" in text for text in lists.values() for name in answered)
