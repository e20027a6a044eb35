"""The limit on open files per process, shared between its stores and its connections.

    files = plan_open_files(stores=4, connections=settings.max_connections)
    backend = RocksStoreBackend(directories, sync=True, table_files=files.table_files_per_store)
    admission = Admission(max_connections=files.connections)

A store that cannot open a file fails, and every connection is an open file. So connections get only the files that the
stores can never need; if those files are too few, stores keep fewer table files open.

Owns: this calculation and its constants.
"""

from __future__ import annotations

import logging
import resource
from dataclasses import dataclass
from typing import Final

from twinbus.server.config.settings import StartError

log: Final = logging.getLogger(__name__)

MAX_TABLE_FILES: Final = 512
"""The number of table files that a store keeps open, if the limit allows."""
MIN_TABLE_FILES: Final = 32
OTHER_STORE_FILES: Final = 64
"""Other files of a store: its log, manifest and lock, and the files of compactions. Under load, a store with 32 table
files had 66 files open; a store with 512 table files had 451."""
PROCESS_FILES: Final = 128
"""Files of the process itself: listening sockets, catalogue, usage, and up to 64 closing connections."""
FILES_PER_WORKER: Final = 2
"""Sockets per other worker, one for each direction."""
MIN_CONNECTIONS: Final = 16


@dataclass(frozen=True, slots=True)
class OpenFileBudget:
    """The open files of a process, divided between connections and stores."""

    connections: int
    table_files_per_store: int
    """The number of table files that one store keeps open."""


def plan_open_files(*, stores: int, connections: int, workers: int = 1) -> OpenFileBudget:
    """Divide this process's limit between stores and connections.

    Raise StartError if the stores need more than the limit.
    """
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return OpenFileBudget(connections, MAX_TABLE_FILES)
    budget = divide_limit(limit, stores=stores, connections=connections, workers=workers)
    if budget.connections < connections:
        log.warning(
            "--max-connections %d: with %s and a limit of %d open files, %d connections are accepted at most. "
            "Raise the limit (ulimit -n; LimitNOFILE= in a systemd unit) or lower --max-connections",
            connections,
            "1 store" if stores == 1 else f"{stores} stores",
            limit,
            budget.connections,
        )
    return budget


def divide_limit(limit: int, *, stores: int, connections: int, workers: int = 1) -> OpenFileBudget:
    """Divide a limit.

    Stores get all table files if enough is left for connections, otherwise at most half of the limit.
    """
    available = limit - PROCESS_FILES - FILES_PER_WORKER * (workers - 1)
    per_store = MAX_TABLE_FILES
    if available - stores * (MAX_TABLE_FILES + OTHER_STORE_FILES) < connections:
        per_store = min(MAX_TABLE_FILES, max(MIN_TABLE_FILES, available // 2 // stores - OTHER_STORE_FILES))
    possible = available - stores * (per_store + OTHER_STORE_FILES)
    if possible < MIN_CONNECTIONS:
        needed = limit - available + stores * (MIN_TABLE_FILES + OTHER_STORE_FILES) + MIN_CONNECTIONS
        raise StartError(
            f"the limit of open files is {limit}, but {stores} stores need at least {needed}: raise the limit "
            "(ulimit -n; LimitNOFILE= in a systemd unit) or serve fewer stores"
        )
    return OpenFileBudget(min(connections, possible), per_store)
