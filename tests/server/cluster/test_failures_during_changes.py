"""A worker that fails during a change of the catalogue delays the change briefly, and gets the change after restart."""

from __future__ import annotations

import signal
import threading
import time
from typing import TYPE_CHECKING

from tests.support.multi_process_server import is_worker, run_multi_process_server
from tests.support.server_process import QUEUE_ENTRY

if TYPE_CHECKING:
    from pathlib import Path


def test_a_worker_that_does_not_confirm_a_change_is_killed_and_the_change_is_made(tmp_path: Path) -> None:
    with (
        run_multi_process_server(tmp_path, "--worker-timeout=2", workers=3) as server,
        server.connect_to_each() as connections,
    ):
        pid = server.signal_worker(2, signal.SIGSTOP)
        began_s = time.monotonic()
        server.request_on(connections[0], "PUT", "orders", QUEUE_ENTRY.format(""), expected=201)
        assert 1.0 < time.monotonic() - began_s < 8
        assert (
            "killing worker 2: it" in server.log
        )  # either it did not apply the change, or it sent no heartbeat, for 2 s
        server.request_on(connections[1], "GET", "orders", expected=200)
        server.wait_for_replacement(2, pid)
        assert not is_worker(pid)
        assert set(server.request_each("GET", "orders", expected=200)) == {0, 1, 2}


def test_all_workers_list_the_same_queues_after_kills_during_changes(tmp_path: Path) -> None:
    with run_multi_process_server(tmp_path, workers=3) as server:
        created: list[str] = []
        done = threading.Event()

        def create_queues() -> None:
            number = 0
            while not done.is_set():
                name = f"made-{number}"
                try:
                    server.request_any(None, "PUT", name, QUEUE_ENTRY.format(""), expected=201)
                    created.append(name)
                except (OSError, AssertionError, EOFError):  # the killed worker had the request
                    pass
                except Exception as error:  # noqa: BLE001  # http.client's
                    assert "Remote end closed" in str(error) or "IncompleteRead" in str(error)  # noqa: PT017
                number += 1

        creator = threading.Thread(target=create_queues)
        creator.start()
        try:
            for number in (0, 1, 2, 1):
                pid = server.signal_worker(number, signal.SIGKILL)
                server.wait_for_replacement(number, pid)
        finally:
            done.set()
            creator.join()
        assert len(created) > 5
        lists = server.request_each("GET", "$Resources/queues?api-version=2021-05&$top=1000", expected=200)
        assert len({text.count("<entry") for text in lists.values()}) == 1
        assert all(f">{name}<" in text for text in lists.values() for name in created)
