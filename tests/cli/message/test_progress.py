"""The progress of a long command is shown on a terminal only, and disappears at the end."""

from __future__ import annotations

import io

import pytest

from twinbus.cli.message.progress_line import ProgressLine


class Stderr(io.StringIO):
    def __init__(self, *, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


@pytest.mark.parametrize(("is_terminal", "written"), [(True, "\r\x1b[K1 sent\r\x1b[K"), (False, "")])
def test_a_line_is_written_to_a_terminal_and_removed(
    monkeypatch: pytest.MonkeyPatch,
    is_terminal: bool,  # noqa: FBT001  # a parameter of the test
    written: str,
) -> None:
    stderr = Stderr(is_terminal=is_terminal)
    monkeypatch.setattr("sys.stderr", stderr)
    with ProgressLine() as line:
        line.show("1 sent")
        line.show("2 sent")  # too soon after the first
    assert stderr.getvalue() == written
