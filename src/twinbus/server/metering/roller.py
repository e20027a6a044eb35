"""The roller: runs the program that makes Parquet files of journals, and heeds what it says.

Owns: that program's process. Where pyarrow is not installed journals stay as they are, which is said once.
"""

from __future__ import annotations

import logging
import subprocess
import threading
from typing import TYPE_CHECKING, Final

from twinbus.model.usage import JOURNAL_SUFFIX
from twinbus.server.metering.roll import EXIT_NO_PYARROW
from twinbus.server.process import python_command

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

log: Final = logging.getLogger(__name__)

MAX_JOURNALS_PER_ROLLUP: Final = 500
"""Journals of one run; more are left by servers that were killed that often, and wait an hour."""
ROLLUP_TIMEOUT_S: Final = 1_800.0


class RollupProcess:
    """Of one clerk."""

    def __init__(
        self, folder: Path, retention_days: int, run_rollup: Callable[[list[str]], object] | None = None
    ) -> None:
        """`run` is what is done in place of the program."""
        self._folder = folder
        self._retention_days = retention_days
        self._run_rollup = run_rollup or self._run_program
        self._has_pyarrow = True
        """... as far as is known: pyarrow is there."""
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._is_stopped = False

    def roll_up(self, is_finished: Callable[[Path], bool]) -> None:
        """Make Parquet files of all journals that are finished. Takes as long as that does."""
        found = sorted(filter(is_finished, self._folder.glob(f"*{JOURNAL_SUFFIX}")))[:MAX_JOURNALS_PER_ROLLUP]
        if found and self._has_pyarrow:
            self._run_rollup([str(self._folder), str(self._retention_days), *map(str, found)])

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
                    [*python_command(), "-m", "twinbus.server.metering.roll", *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    start_new_session=True,  # who presses Ctrl-C means the server
                )
            except OSError as error:
                log.warning("journals of usage stay: the program that makes Parquet files cannot run: %s", error)
                return
        try:
            _, said = process.communicate(timeout=ROLLUP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            _, said = process.communicate()
        self._process = None
        if not self._is_stopped:
            self._on_exit(process.returncode, said.decode("utf-8", "replace").strip())

    def _on_exit(self, exit_code: int, output: str) -> None:
        if exit_code == EXIT_NO_PYARROW:
            self._has_pyarrow = False
            log.info("journals of usage stay as they are, without pyarrow: pip install twinbus[metering]")
        elif exit_code or output:
            log.warning("journals of usage: %s", output.splitlines()[-1] if output else f"exit code {exit_code}")
