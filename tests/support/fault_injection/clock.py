"""The wall clock of a program, moved while it runs.

    clock = MovableClock(folder / "clock")
    subprocess.Popen([...], env=clock.environment())
    clock.move(7200)    # two hours ahead, from now on
    clock.move(0)

Owns: the control file and the environment. How calls are intercepted is in `clock.c`.
"""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.support.fault_injection.shim import build

if TYPE_CHECKING:
    from collections.abc import Mapping

SOURCE: Final = Path(__file__).with_name("clock.c")
_OFFSET: Final = struct.Struct("<q")


class MovableClock:
    """The wall clock of the programs that run with its environment, in all their processes."""

    def __init__(self, control: Path) -> None:
        """`control` is a file of its own."""
        self._library = build(SOURCE)
        self._control_path = control
        control.write_bytes(bytes(_OFFSET.size))
        with control.open("r+b") as opened:
            self._control = mmap.mmap(opened.fileno(), 0)

    def environment(self, base: Mapping[str, str] | None = None) -> dict[str, str]:
        """The environment for the next program; `base` is this process's, unless another is given."""
        given = dict(os.environ if base is None else base)
        before = given.get("LD_PRELOAD")
        given["LD_PRELOAD"] = str(self._library) if before is None else f"{before}:{self._library}"
        given["TWINBUS_CLOCK_CONTROL"] = str(self._control_path)
        return given

    def set_offset(self, seconds: float) -> None:
        """Have the clock so far ahead of the machine's, or behind it; 0 is the machine's time."""
        _OFFSET.pack_into(self._control, 0, round(seconds * 1e9))
