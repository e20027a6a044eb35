"""The shim between a program and its disk: compile it, preload it, and control its faults at run time.

    with DiskShim(root, scratch) as shim:
        subprocess.run([...], env=shim.environment())
        shim.replayed_disk()                          # the files under the root that a power cut would leave
        with shim.rule(Action.DELAY_SYNC, root / "stores" / "1", delay_ms=5000):
            ...

Owns: the compilation, the rules in the control file, the environment. `power_cut` interprets the trace; `shim.c` is
the shim itself.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import subprocess
import tempfile
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from tests.support.fault_injection.power_cut import PowerCutDisk

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCE: Final = Path(__file__).with_name("shim.c")
MAX_RULES: Final = 16
FOLDER_BYTES: Final = 1000
RULE_STRUCT: Final = struct.Struct(f"<iiii{FOLDER_BYTES}s")
UNLIMITED: Final = -1


class Action(IntEnum):
    """Effect of a rule on system calls for files in its folder."""

    OFF = 0
    DELAY_SYNC = 1
    """Syncs take longer. With a delay of 0 they are only counted."""
    FAIL_SYNC = 2
    """Syncs fail with EIO, and the changes that they cover never become durable."""
    FAIL_WRITE = 3
    """Writes fail with ENOSPC."""


class FaultRule:
    """An active rule in the control file."""

    def __init__(self, control: mmap.mmap, offset: int) -> None:
        self._control = control
        self._offset = offset

    @property
    def hit_count(self) -> int:
        """How often the rule was applied."""
        return int(RULE_STRUCT.unpack_from(self._control, self._offset)[3])


class DiskShim:
    """Shim for programs that store their files under `root`. The shim's own files are in `scratch`."""

    def __init__(self, root: Path, scratch: Path, *, has_trace: bool = True) -> None:
        self.root = root.resolve()
        self._library = build()
        self._trace = scratch / "trace" if has_trace else None
        self._control_path = scratch / "control"
        self._control_path.write_bytes(bytes(MAX_RULES * RULE_STRUCT.size))
        with self._control_path.open("r+b") as control:
            self._control = mmap.mmap(control.fileno(), 0)
        self._base: PowerCutDisk | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._control.close()

    def environment(self) -> dict[str, str]:
        """Return the environment for the next program, and treat all files under the root as durable at its start."""
        variables = {
            "LD_PRELOAD": str(self._library),
            "TWINBUS_SHIM_ROOT": str(self.root),
            "TWINBUS_SHIM_CONTROL": str(self._control_path),
        }
        if self._trace is not None:
            self._trace.write_bytes(b"")
            self._base = PowerCutDisk(self.root)
            variables["TWINBUS_SHIM_TRACE"] = str(self._trace)
        return {**os.environ, **variables}

    def replayed_disk(self) -> PowerCutDisk:
        """Return the disk after all changes of the program, which must have ended."""
        assert self._trace is not None, "this shim records no trace"
        assert self._base is not None, "no program was started"
        disk, self._base = self._base, None
        disk.replay(self._trace)
        return disk

    @contextmanager
    def rule(self, action: Action, folder: Path, *, delay_ms: int = 0, times: int = UNLIMITED) -> Iterator[FaultRule]:
        """Delay or fail calls for files in a folder, at most `times` times."""
        name = os.fsencode(folder.resolve())
        assert len(name) < FOLDER_BYTES
        offsets = range(0, MAX_RULES * RULE_STRUCT.size, RULE_STRUCT.size)
        offset = next(start for start in offsets if RULE_STRUCT.unpack_from(self._control, start)[0] == Action.OFF)
        RULE_STRUCT.pack_into(self._control, offset, Action.OFF, delay_ms, times, 0, name)
        self._switch(offset, action)
        try:
            yield FaultRule(self._control, offset)
        finally:
            self._switch(offset, Action.OFF)

    def _switch(self, offset: int, action: Action) -> None:
        struct.pack_into("<i", self._control, offset, action)


def build(source: Path = SOURCE) -> Path:
    """Compile the shim if its source has changed, and return the library; parallel test runs share it."""
    status = source.stat()
    folder = Path(tempfile.gettempdir()) / f"twinbus-shim-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    library = folder / f"{source.stem}-{status.st_mtime_ns}-{status.st_size}.so"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            unfinished = library.with_suffix(".unfinished")
            options = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"]
            subprocess.run(["gcc", *options, "-o", unfinished, source, "-ldl", "-lpthread"], check=True)
            unfinished.rename(library)
    return library
