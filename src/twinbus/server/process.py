"""What a process that serves asks of Python and of the machine.

Owns: how often Python looks for cycles and changes threads, how many files may be open, and how another process of
ours is started.
"""

from __future__ import annotations

import gc
import logging
import resource
import sys
from pathlib import Path
from typing import Final

log: Final = logging.getLogger(__name__)

OTHER_FILES: Final = 4_096
"""Open files of stores and all else that is no connection."""
SWITCH_INTERVAL_S: Final = 0.002
"""How long the loop may keep the GIL when a store's thread wants it: a commit waits for that twice. Shorter costs a
fifth of the receive rate (0.5 ms), longer adds to the accept latency of a busy server."""
GC_THRESHOLDS: Final = (10_000, 2, 1_000)
"""Objects made before Python looks for cycles, of which messages have none: with its own (700, 10, 10) that took a
twentieth of the time. The second step is never for many at once, since nothing else runs meanwhile (of 300,000 objects
it takes a tenth of a second), and all are looked at seldom."""


def tune(max_connections: int) -> None:
    """From now on, for as long as the process lives."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.set_threshold(*GC_THRESHOLDS)
    _allow_files(max_connections)


def _allow_files(connections: int) -> None:
    """A connection is an open file, and the usual limit of a process is 1,024 of them."""
    wanted = connections + OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        log.warning("only %d files may be open: fewer than --max-connections %d needs", hard, connections)
        wanted = hard
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def python() -> list[str]:
    """The interpreter, which finds what this one does: where that does not look in the folder it was started in, so."""
    return [sys.executable] if sys.path[0] == str(Path.cwd()) else [sys.executable, "-P"]
