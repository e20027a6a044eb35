"""What a process that serves asks of Python and of the machine.

Owns: how often Python looks for cycles (`admission` counts the connections that have ended) and changes threads, that
it may have as many open files as the machine allows, and how another process of ours is started.
"""

from __future__ import annotations

import contextlib
import gc
import resource
import sys
from pathlib import Path
from typing import Final

SWITCH_INTERVAL_S: Final = 0.002
"""How long the loop may keep the GIL when a store's thread wants it: a commit waits for that twice. Shorter costs a
fifth of the receive rate (0.5 ms), longer adds to the accept latency of a busy server."""
GC_THRESHOLDS: Final = (10_000, 2, 1_000)
"""Objects made before Python looks for cycles, of which messages have none: with its own (700, 10, 10) that took a
twentieth of the time. The second step is never for many at once, since nothing else runs meanwhile (of 300,000 objects
it takes a tenth of a second), and all are looked at seldom."""
CONNECTIONS_PER_COLLECTION: Final = 5_000
"""Ended connections after which cycles are collected. Each leaves a few kilobytes of objects that refer to each other,
and by its thresholds alone Python looks for them after millions of other objects: peers that come and go would fill
the memory."""


def tune_interpreter() -> None:
    """From now on, for as long as the process lives."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.set_threshold(*GC_THRESHOLDS)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:  # the usual soft limit of 1,024 is for programs that use select()
        with contextlib.suppress(ValueError, OSError):  # a container may forbid it
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def freeze_objects() -> None:
    """Exclude what there is after the start from the search for cycles: it stays, and takes most of the time."""
    gc.collect()
    gc.freeze()


def python_command() -> list[str]:
    """The interpreter, which finds what this one does: where that does not look in the folder it was started in, so."""
    return [sys.executable] if sys.path[0] == str(Path.cwd()) else [sys.executable, "-P"]
