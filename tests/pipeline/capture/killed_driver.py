"""`twinbus`, killed without notice by itself: when a captured file has its name, and not yet its manifest.

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


def killing(put: Callable[..., None], at: int) -> Callable[..., None]:
    """The same, but for the call that is not survived."""
    numbers = itertools.count()

    def put_or_die(*words: Any) -> None:  # noqa: ANN401
        if next(numbers) == at:
            os.kill(os.getpid(), signal.SIGKILL)
        put(*words)

    return put_or_die


if __name__ == "__main__":
    Folder.write_atomically = killing(Folder.write_atomically, int(sys.argv[1]))  # type: ignore[method-assign]
    app(sys.argv[2:])
