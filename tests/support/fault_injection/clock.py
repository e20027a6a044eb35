"""Change the wall clock of a program while it runs.

    clock = MovableClock(folder / "clock")
    subprocess.Popen([...], env=clock.environment())
    clock.set_offset(7200)    # two hours ahead, from now on
    clock.set_offset(0)

Owns: the control file and the environment. `clock.c` intercepts the calls.
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
    """Wall clock of the programs that run with its environment, including their child processes."""

    def __init__(self, control: Path) -> None:
        """`control` is a new file for the offset."""
        self._library = build(SOURCE)
        self._control_path = control
        control.write_bytes(bytes(_OFFSET.size))
        with control.open("r+b") as opened:
            self._control = mmap.mmap(opened.fileno(), 0)

    def environment(self, base: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the environment for a program, based on `base` (default: the environment of this process)."""
        variables = dict(os.environ if base is None else base)
        preloaded = variables.get("LD_PRELOAD")
        variables["LD_PRELOAD"] = str(self._library) if preloaded is None else f"{preloaded}:{self._library}"
        variables["TWINBUS_CLOCK_CONTROL"] = str(self._control_path)
        return variables

    def set_offset(self, seconds: float) -> None:
        """Set the clock ahead of the machine's clock by `seconds`; negative values set it behind."""
        _OFFSET.pack_into(self._control, 0, round(seconds * 1e9))
