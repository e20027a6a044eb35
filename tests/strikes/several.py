"""A server of several processes under a shim: who is who in it.

Owns: which process has which store, and which holds whose connection. How it is started, stopped and killed is in
`faults.server_process`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bench.processes import Family, holder_of, stores_of
from tests.faults.server_process import ServerProcess
from tests.strikes.answers import NOBODY

if TYPE_CHECKING:
    from pathlib import Path

    from tests.faults.line import Line
    from tests.faults.shim import Shim

STORE_TIMEOUT_S: Final = 2.0


class Several(ServerProcess):
    """One namespace."""

    def __init__(self, folder: Path, shim: Shim, *, workers: int, stores: int, worker_timeout_s: float) -> None:
        self.stores = stores
        self.store_timeout_s = STORE_TIMEOUT_S
        self.worker_timeout_s = worker_timeout_s
        options = [f"--stores={stores}", f"--store-timeout={STORE_TIMEOUT_S}"]
        if workers > 1:
            options += [f"--workers={workers}", f"--worker-timeout={worker_timeout_s}"]
        super().__init__(folder, shim=shim, options=options)
        self.wanted = workers
        """So many processes are there when all is well."""

    @property
    def workers(self) -> list[int]:
        """The processes that serve now."""
        return Family(self.served.pid).workers

    @property
    def is_complete(self) -> bool:
        """All processes are there, and every store is open."""
        workers = self.workers
        return len(workers) == self.wanted and set().union(*map(stores_of, workers)) == set(range(self.stores))

    def stores_of(self, worker: int) -> set[int]:
        """What it alone can reach."""
        return stores_of(worker)

    def holder_of(self, line: Line) -> int:
        """Who has the other end of a connection; `NOBODY` if its process is gone already."""
        port = line.peer.transport.get_extra_info("sockname")[1]
        return holder_of(port, self.endpoint.amqp_port, self.workers) or NOBODY

    @property
    def tracebacks(self) -> int:
        """Failures of its own that it has logged."""
        return self.served.log.count("Traceback (most recent call last)")
