"""The roller: runs the program that makes Parquet files of journals, and heeds what it says.

Owns: that program's process. Where pyarrow is not installed journals stay as they are, which is said once.
"""

from __future__ import annotations

import logging
import subprocess
import threading
from typing import TYPE_CHECKING, Final

from twinbus.model.usage import JOURNAL_SUFFIX
from twinbus.server.metering.roll import NO_PYARROW
from twinbus.server.process import python

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

log: Final = logging.getLogger(__name__)

AT_ONCE: Final = 500
"""Journals of one run; more are left by servers that were killed that often, and wait an hour."""
LONGEST_S: Final = 1_800.0


class Roller:
    """Of one clerk."""

    def __init__(self, folder: Path, days: int, run: Callable[[list[str]], object] | None = None) -> None:
        """`run` is what is done in place of the program."""
        self._folder = folder
        self._days = days
        self._run = run or self._run_program
        self._can = True
        """... as far as is known: pyarrow is there."""
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._is_stopped = False

    def roll(self, is_finished: Callable[[Path], bool]) -> None:
        """Make Parquet files of all journals that are finished. Takes as long as that does."""
        found = sorted(filter(is_finished, self._folder.glob(f"*{JOURNAL_SUFFIX}")))[:AT_ONCE]
        if found and self._can:
            self._run([str(self._folder), str(self._days), *map(str, found)])

    def stop(self) -> None:
        """Do not wait for it any more: what it has not done is done at the next start."""
        with self._lock:
            self._is_stopped = True
            if self._process is not None:
                self._process.kill()

    def _run_program(self, arguments: list[str]) -> None:
        with self._lock:
            if self._is_stopped:
                return
            try:
                process = self._process = subprocess.Popen(  # noqa: S603  # the program is ours
                    [*python(), "-m", "twinbus.server.metering.roll", *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    start_new_session=True,  # who presses Ctrl-C means the server
                )
            except OSError as error:
                log.warning("journals of usage stay: the program that makes Parquet files cannot run: %s", error)
                return
        try:
            _, said = process.communicate(timeout=LONGEST_S)
        except subprocess.TimeoutExpired:
            process.kill()
            _, said = process.communicate()
        self._process = None
        if not self._is_stopped:
            self._heed(process.returncode, said.decode("utf-8", "replace").strip())

    def _heed(self, code: int, said: str) -> None:
        if code == NO_PYARROW:
            self._can = False
            log.info("journals of usage stay as they are, without pyarrow: pip install twinbus[metering]")
        elif code or said:
            log.warning("journals of usage: %s", said.splitlines()[-1] if said else f"exit code {code}")
