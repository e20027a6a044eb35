"""The folder of the workers' own sockets.

Owns: its making and its removal. The folder is private, and has a short name: that of a socket cannot be long.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from twinbus.server.data_directory import write_atomically
from twinbus.server.settings import StartError

if TYPE_CHECKING:
    from twinbus.server.data_directory import DataDirectory

LONGEST_FOLDER: Final = 80
"""Characters: the name of a local socket has at most 107."""
_PREFIX: Final = "twinbus-"


class RunFolder:
    """Where the workers' sockets are, from the start of a server to its end."""

    def __init__(self, data: DataDirectory) -> None:
        """Made anew; one that a server left behind which was killed is removed. StartError."""
        self._record = data.path / "run"
        self._remove_old()
        parent = tempfile.gettempdir()
        try:
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent if len(parent) < LONGEST_FOLDER else "/tmp"))  # noqa: S108  # mkdtemp is safe there
        except OSError as error:
            raise StartError(f"no folder can be made in {parent}: {error.strerror}") from error
        write_atomically(self._record, f"{self.path}\n".encode())

    def remove(self) -> None:
        """Nobody needs it any more."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._record.unlink(missing_ok=True)

    def _remove_old(self) -> None:
        try:
            old = Path(self._record.read_text("utf-8").strip())
        except (OSError, UnicodeDecodeError):
            return
        if old.name.startswith(_PREFIX) and old.is_dir() and not old.is_symlink():
            shutil.rmtree(old, ignore_errors=True)
