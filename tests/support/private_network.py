"""A network namespace of the tests' own: the default ports are free in it, whatever else this machine runs.

    with PrivateNetwork() as network:
        subprocess.Popen([*network.launcher, "twinbus", "serve"])

Needs root. Owns: the namespace, which has a loopback interface only.
"""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from types import TracebackType

_HOLD_NAMESPACE: Final = """
import fcntl, socket, struct, sys
SIOCSIFFLAGS, IFF_UP = 0x8914, 1
with socket.socket() as sock:
    fcntl.ioctl(sock, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))
print("ready", flush=True)
sys.stdin.read()
"""
"""A program that brings up the loopback interface, and keeps the namespace until its input ends."""


class PrivateNetwork:
    """A network namespace that exists until the block ends."""

    launcher: list[str]
    """A command that runs its arguments in the namespace."""

    def __enter__(self) -> Self:
        self._holder = subprocess.Popen(
            ["unshare", "--net", sys.executable, "-c", _HOLD_NAMESPACE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == "ready\n", "unshare --net needs root"
        self.launcher = ["nsenter", f"--net=/proc/{self._holder.pid}/ns/net"]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._holder.communicate("")
