"""Tuning of the Python interpreter for a server process.

Owns: the garbage collection thresholds (`admission` counts closed connections), the thread switch interval, the soft
limit on open files, and the command that starts another Python process.
"""

from __future__ import annotations

import contextlib
import gc
import resource
import sys
from pathlib import Path
from typing import Final

SWITCH_INTERVAL_S: Final = 0.002
"""How long the event loop may keep the GIL while a store's thread waits for the GIL, twice per commit. A shorter
interval (0.5 ms) costs a fifth of the receive rate; a longer interval adds to the accept latency under load."""
GC_THRESHOLDS: Final = (10_000, 2, 1_000)
"""Garbage collection thresholds. Messages have no reference cycles, and Python's defaults (700, 10, 10) took a
twentieth of the time. The low second threshold keeps collections of the middle generation small, because each
collection blocks the process (a tenth of a second for 300,000 objects); full collections are rare."""
CONNECTIONS_PER_COLLECTION: Final = 5_000
"""Closed connections after which garbage is collected. Each connection leaves a few kilobytes in reference cycles,
which Python would collect only after millions of other objects. Clients that reconnect often would fill the memory."""


def tune_interpreter() -> None:
    """Set the switch interval, the garbage collection thresholds and the limit on open files for this process."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.set_threshold(*GC_THRESHOLDS)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:  # the usual soft limit of 1,024 is for programs that use select()
        with contextlib.suppress(ValueError, OSError):  # a container may forbid raising the limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def freeze_objects() -> None:
    """Exclude current objects from garbage collection. They live as long as the process, and checking takes long."""
    gc.collect()
    gc.freeze()


def python_command() -> list[str]:
    """Return the command for an interpreter that imports from the current folder only if this interpreter does."""
    return [sys.executable] if sys.path[0] == str(Path.cwd()) else [sys.executable, "-P"]
