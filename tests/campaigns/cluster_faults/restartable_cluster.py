"""Server of several processes with fault injection into its disks.

Owns: which process has which store and which connection. `restartable_server` starts, stops and kills the server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bench.support.server_processes import ServerProcesses, connected_worker, stores_of
from tests.campaigns.cluster_faults.response_checker import UNKNOWN_PROCESS
from tests.campaigns.restartable_server import RestartableServer

if TYPE_CHECKING:
    from pathlib import Path

    from tests.campaigns.clients import CampaignClient
    from tests.support.fault_injection.shim import DiskShim

STORE_TIMEOUT_S: Final = 2.0


class RestartableCluster(RestartableServer):
    """One namespace of several processes."""

    def __init__(self, folder: Path, shim: DiskShim, *, workers: int, stores: int, worker_timeout_s: float) -> None:
        self.stores = stores
        self.store_timeout_s = STORE_TIMEOUT_S
        self.worker_timeout_s = worker_timeout_s
        options = [f"--stores={stores}", f"--store-timeout={STORE_TIMEOUT_S}"]
        if workers > 1:
            options += [f"--workers={workers}", f"--worker-timeout={worker_timeout_s}"]
        super().__init__(folder, shim=shim, options=options)
        self.worker_count = workers
        """Number of processes without faults."""

    @property
    def workers(self) -> list[int]:
        """Current worker processes."""
        return ServerProcesses(self.process.pid).workers

    @property
    def is_complete(self) -> bool:
        """All processes are running, and every store is open."""
        workers = self.workers
        return len(workers) == self.worker_count and set().union(*map(stores_of, workers)) == set(range(self.stores))

    def stores_of(self, worker: int) -> set[int]:
        """Return the stores that a worker owns."""
        return stores_of(worker)

    def process_of_connection(self, client: CampaignClient) -> int:
        """Return the process of a connection; `UNKNOWN_PROCESS` if the process has ended."""
        port = client.peer.transport.get_extra_info("sockname")[1]
        return connected_worker(port, self.endpoint.amqp_port, self.workers) or UNKNOWN_PROCESS

    @property
    def traceback_count(self) -> int:
        """Number of tracebacks in the log."""
        return self.process.log.count("Traceback (most recent call last)")
