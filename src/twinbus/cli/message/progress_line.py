"""Progress of a long command: one line on stderr that is overwritten, shown only on a terminal.

Owns the line. The commands own its text.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from types import TracebackType

INTERVAL_S: Final = 0.1
_CLEAR: Final = "\r\x1b[K"


class ProgressLine:
    """A line on stderr, which disappears at the end."""

    def __init__(self) -> None:
        """Create a line that is not visible yet."""
        self._is_terminal = sys.stderr.isatty()
        self._last_s = 0.0
        self._is_visible = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.clear()

    def show(self, text: str) -> None:
        """Show a text, unless another text was shown less than a tenth of a second ago."""
        now_s = time.monotonic()
        if self._is_terminal and now_s - self._last_s >= INTERVAL_S:
            self._last_s, self._is_visible = now_s, True
            sys.stderr.write(f"{_CLEAR}{text}")
            sys.stderr.flush()

    def clear(self) -> None:
        """Remove the line."""
        if self._is_visible:
            self._is_visible = False
            sys.stderr.write(_CLEAR)
            sys.stderr.flush()
