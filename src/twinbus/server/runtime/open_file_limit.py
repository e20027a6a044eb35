"""The limit of open files of a process, shared between its stores and its connections.

    files = open_files(stores=4, connections=settings.max_connections)
    disks = RocksDisks(directories, sync=True, table_files=files.per_store)
    admission = Admission(max_connections=files.connections)

A store that cannot open a file is down, and every connection is an open file. So connections get only what the stores,
at their largest, leave over; where that is too little, stores keep fewer of their table files open.

Owns: this calculation, and the numbers in it.
"""

from __future__ import annotations

import logging
import resource
from dataclasses import dataclass
from typing import Final

from twinbus.server.config.settings import StartError

log: Final = logging.getLogger(__name__)

MAX_TABLE_FILES: Final = 512
"""Table files that a store keeps open, where the limit allows it."""
MIN_TABLE_FILES: Final = 32
OTHER_STORE_FILES: Final = 64
"""Other files of a store: its log, manifest and lock, and what compactions read and write. With 32 table files, a store
under load had 66 files open; with 512, 451."""
PROCESS_FILES: Final = 128
"""Files of the process itself: listening sockets, catalogue, usage, and up to 64 connections that are being closed."""
FILES_PER_WORKER: Final = 2
"""Sockets to each other worker, one for each direction."""
MIN_CONNECTIONS: Final = 16


@dataclass(frozen=True, slots=True)
class OpenFileBudget:
    """How many files a process may have open, by what they are for."""

    connections: int
    table_files_per_store: int
    """Table files of one store."""


def plan_open_files(*, stores: int, connections: int, workers: int = 1) -> OpenFileBudget:
    """Share this process's limit between so many stores and connections. StartError if it is too low for the stores."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return OpenFileBudget(connections, MAX_TABLE_FILES)
    found = divide_limit(limit, stores=stores, connections=connections, workers=workers)
    if found.connections < connections:
        log.warning(
            "--max-connections %d: with %s and a limit of %d open files, %d connections are accepted at most. "
            "Raise the limit (ulimit -n; LimitNOFILE= in a systemd unit) or lower --max-connections",
            connections,
            "1 store" if stores == 1 else f"{stores} stores",
            limit,
            found.connections,
        )
    return found


def divide_limit(limit: int, *, stores: int, connections: int, workers: int = 1) -> OpenFileBudget:
    """Share a limit: all table files if that leaves enough for the connections, otherwise at most half for stores."""
    room = limit - PROCESS_FILES - FILES_PER_WORKER * (workers - 1)
    per_store = MAX_TABLE_FILES
    if room - stores * (MAX_TABLE_FILES + OTHER_STORE_FILES) < connections:
        per_store = min(MAX_TABLE_FILES, max(MIN_TABLE_FILES, room // 2 // stores - OTHER_STORE_FILES))
    possible = room - stores * (per_store + OTHER_STORE_FILES)
    if possible < MIN_CONNECTIONS:
        needed = limit - room + stores * (MIN_TABLE_FILES + OTHER_STORE_FILES) + MIN_CONNECTIONS
        raise StartError(
            f"the limit of open files is {limit}, and {stores} stores need at least {needed}: raise the limit "
            "(ulimit -n; LimitNOFILE= in a systemd unit) or serve fewer stores"
        )
    return OpenFileBudget(min(connections, possible), per_store)
