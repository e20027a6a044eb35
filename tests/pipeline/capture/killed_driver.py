"""The command `twinbus`, which kills itself after a captured file is in place, and before its manifest is written.

python -m tests.pipeline.capture.killed_driver NUMBER pipeline capture ...
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

from twinbus.cli.main import app
from twinbus.pipeline.capture.folder import Folder

if TYPE_CHECKING:
    from collections.abc import Callable


def kill_at_call(write: Callable[..., None], at: int) -> Callable[..., None]:
    """Wrap `write`, and kill the process in the call with number `at`."""
    calls = itertools.count()

    def write_or_die(*arguments: Any) -> None:  # noqa: ANN401
        if next(calls) == at:
            os.kill(os.getpid(), signal.SIGKILL)
        write(*arguments)

    return write_or_die


if __name__ == "__main__":
    Folder.write_atomically = kill_at_call(Folder.write_atomically, int(sys.argv[1]))  # type: ignore[method-assign]
    app(sys.argv[2:])
