"""Record the calls of twinbus's functions in every Python process that has this folder on its module path.

Python imports the module `sitecustomize` when it starts. The environment variable CALL_TRACE_FOLDER names the folder
for the trace files, one per process. Each line has the monotonic time of a call in nanoseconds (the same clock in all
processes) and the function, such as `server/amqp/cbs.py: CbsNode.handle`. Functions of compiled modules are not
recorded.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType

PACKAGE = f"{os.sep}twinbus{os.sep}"


def name_of(code: CodeType) -> str:
    """Return the name of a twinbus function as the walkthroughs write it, or an empty string for other functions."""
    _, is_twinbus, module = code.co_filename.rpartition(PACKAGE)
    if not is_twinbus or "<" in code.co_qualname:
        return ""
    return f"{module}: {code.co_qualname}"


def install(file: Path) -> Callable[[], None]:
    """Record the calls of this thread and of the threads that it starts, until the returned function is called."""
    names: dict[CodeType, str] = {}
    lines = file.open("a", buffering=1)

    def record(frame: FrameType, event: str, _argument: object) -> None:
        if event != "call":
            return
        code = frame.f_code
        name = names.get(code)
        if name is None:
            name = names[code] = name_of(code)
        if name:
            lines.write(f"{time.monotonic_ns()} {name}\n")

    def uninstall() -> None:
        sys.setprofile(None)
        threading.setprofile(None)
        lines.close()

    threading.setprofile(record)
    sys.setprofile(record)
    return uninstall


folder = os.environ.get("CALL_TRACE_FOLDER")
if folder:
    install(Path(folder) / f"{os.getpid()}.calls")
