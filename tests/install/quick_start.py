"""The commands and programs of README.md, run as printed in an empty folder.

    with QuickStart(folder, wheel) as start:
        start.run(start.blocks[0])

Owns: the blocks of the page, the shell in which they run, and the servers that they start. The wheel built from this
checkout takes the place of a published one. All servers have their default ports, in a network of their own.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from tests.support.private_network import PrivateNetwork

if TYPE_CHECKING:
    from types import TracebackType

README: Final = Path(__file__).parents[2] / "README.md"
TIMEOUT_S: Final = 100.0
STOP_TIMEOUT_S: Final = 30.0
_BLOCK: Final = re.compile(r"^```(sh|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_SERVE: Final = "twinbus serve"
_POLL_INTERVAL_S: Final = 0.05


class Block(NamedTuple):
    """A block of code in the page."""

    language: str
    text: str

    @property
    def serves(self) -> bool:
        """Whether the block is a server that runs until it is stopped."""
        return self.text.startswith(_SERVE)


def blocks_of(page: Path) -> list[Block]:
    """Return the blocks of a page."""
    return [Block(*match) for match in _BLOCK.findall(page.read_text())]


class QuickStart:
    """A user who follows README.md."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        """Create a user with an empty folder and an empty home."""
        self.folder = folder / "project"
        self.folder.mkdir()
        home = folder / "home"
        home.mkdir()
        hidden = ("PYTHON", "TWINBUS", "XDG_", "VIRTUAL_ENV")
        self._environment = {key: text for key, text in os.environ.items() if not key.startswith(hidden)} | {
            "HOME": str(home),
            "PIP_FIND_LINKS": f"{os.environ.get('PIP_FIND_LINKS', '')} {wheel.parent}".strip(),
            "PATH": f"{self.folder / 'venv' / 'bin'}:{os.environ['PATH']}",  # the activated environment
            "PYTHONWARNINGS": "default",
        }
        self._network = PrivateNetwork()
        self._server: subprocess.Popen[str] | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._stack.enter_context(self._network)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.kill()
        self._stack.close()

    def install(self, block: Block) -> None:
        """Run the block that installs twinbus, which needs the real network."""
        self._run(["sh", "-e", "-c", block.text])

    def run(self, block: Block) -> str:
        """Run a block to its end, and return its output."""
        command = ["sh", "-e", "-c"] if block.language == "sh" else ["python", "-c"]
        return self._run([*self._network.launcher, *command, block.text])

    def serve(self, block: Block) -> str:
        """Start the server of a block, and return what it has printed when its ready files are there."""
        output = self.folder.parent / "serve.log"
        names = ("contoso", "contoso-backup") if "--pair" in block.text else ("contoso",)
        ready_files = [self.folder / "twinbus-data" / f"{name}.json" for name in names]
        with output.open("w") as log:
            self._server = subprocess.Popen(
                [*self._network.launcher, "sh", "-c", f"exec {block.text}"],
                cwd=self.folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                text=True,
            )
        deadline_s = time.monotonic() + TIMEOUT_S
        while not all(file.exists() for file in ready_files):
            assert self._server.poll() is None, output.read_text()
            assert time.monotonic() < deadline_s, output.read_text()
            time.sleep(_POLL_INTERVAL_S)
        return output.read_text()

    def stop_serving(self) -> None:
        """Press Ctrl-C in the server's terminal."""
        assert self._server is not None
        self._server.send_signal(signal.SIGINT)
        assert self._server.wait(STOP_TIMEOUT_S) == 0
        self._server = None

    def _run(self, command: list[str]) -> str:
        result = subprocess.run(
            command,
            cwd=self.folder,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert result.returncode == 0, f"{command[-1]}\n{result.stdout}{result.stderr}"
        return result.stdout
