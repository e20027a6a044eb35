"""What workers inherit: the sockets that clients come to, and a folder for their own.

Owns: the listening sockets, which are bound once and accepted from by every worker: one that is stopped or gone takes
nobody from the others. The folder is private, and has a short name: that of a socket cannot be long.
"""

from __future__ import annotations

import shutil
import socket
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from twinbus.server.data_directory import write_atomically
from twinbus.server.settings import WAYS, StartError

if TYPE_CHECKING:
    from twinbus.server.data_directory import DataDirectory
    from twinbus.server.settings import ServeSettings

BACKLOG: Final = 1_024
LONGEST_FOLDER: Final = 80
"""Characters: the name of a local socket has at most 107."""
_PREFIX: Final = "twinbus-"


def open_sockets(settings: ServeSettings) -> dict[str, list[socket.socket]]:
    """Those of each way in: one for each address that the host has. StartError."""
    return {way: _listen(settings.host, way, getattr(settings, f"{way}_port")) for way in WAYS}


def _listen(host: str, way: str, port: int) -> list[socket.socket]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        places = dict.fromkeys((family, address[:2]) for family, _, _, _, address in found)
        return [socket.create_server(address, family=family, backlog=BACKLOG) for family, address in places]
    except OSError as error:
        raise StartError(f"--{way}-port {port}: cannot be listened on: {error}") from error


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
