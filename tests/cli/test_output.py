"""What commands print: tables that fit, JSON that parses, errors in one line with an exit code."""

from __future__ import annotations

import datetime as dt
import json
import os
import pty
import signal
import subprocess
import sys
from typing import NoReturn

import pytest
import typer

from twinbus.cli.output import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_MISUSE,
    CommandFailed,
    Misuse,
    SequenceNumber,
    print_json,
    print_table,
    run_command,
)
from twinbus.model.errors import EntityNotFound, InternalFault, InvalidArgument

Capture = pytest.CaptureFixture[str]


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_a_table_fits_the_terminal_and_cuts_the_widest_text(
    columns: int, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    print_table(("path", "state", "messages"), [("q" * 100, "Active", 1_234_567), ("見" * 60, None, 5)])
    head, first, second = capsys.readouterr().out.splitlines()
    assert head.startswith("PATH")
    assert head.endswith("MESSAGES")
    assert first.endswith("Active  1,234,567")
    assert len(first) == min(columns, 139)
    assert ("…" in first) is (columns < 200)
    assert second.endswith("        5")


def test_sequence_numbers_and_times_in_a_table_can_be_copied(capsys: Capture) -> None:
    moment = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)
    print_table(("number", "time", "id"), [(SequenceNumber(2_814_749_767_106_561), moment, "i" * 90)])
    assert capsys.readouterr().out.splitlines()[1].startswith("2814749767106561  2026-01-02 03:04:05  iii")


ASKING_COMMAND = """
import typer
from twinbus.cli.output import confirm, run_command

async def ask():
    confirm("Delete it?", is_confirmed=False)

typer.run(lambda: run_command("try", ask))
"""


def test_ctrl_c_ends_a_command_that_asks_for_confirmation() -> None:
    terminal, far_end = pty.openpty()
    arguments = [sys.executable, "-c", ASKING_COMMAND]
    with subprocess.Popen(arguments, stdin=far_end, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            assert process.stderr is not None
            assert os.read(process.stderr.fileno(), 100).startswith(b"Delete it?")
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=10)
        finally:
            process.kill()
            os.close(terminal)
            os.close(far_end)
    assert errors.decode().splitlines()[-1] == "twinbus try: interrupted; nothing was changed"
    assert process.returncode == EXIT_INTERRUPTED


def test_a_table_shows_no_control_characters(capsys: Capture) -> None:
    print_table(("text",), [("\x1b[31mred\n\x07",)])
    assert capsys.readouterr().out == "TEXT\n\\x1b[31mred\\n\\x07\n"


def test_json_has_times_in_utc(capsys: Capture) -> None:
    local = dt.timezone(dt.timedelta(hours=2))
    print_json({"at": dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=local), "text": "ä"})
    assert json.loads(capsys.readouterr().out) == {"at": "2026-01-02T01:04:05Z", "text": "ä"}


@pytest.mark.parametrize(
    ("error", "line", "code"),
    [
        (CommandFailed("no\nway\x1b"), "twinbus try: no way\\x1b\n", EXIT_FAILED),
        (Misuse("not so"), "twinbus try: not so\n", EXIT_MISUSE),
        (EntityNotFound("q"), "twinbus try: The messaging entity 'q' could not be found.\n", EXIT_FAILED),
        (
            InvalidArgument("GET of 'q': there is no 'q'. TrackingId:51b1-a"),
            "twinbus try: there is no 'q'\n",
            EXIT_FAILED,
        ),
        (
            InternalFault("status 500: GET of 'q': failed. TrackingId:51b1-a"),
            "twinbus try: status 500: GET of 'q': failed. TrackingId:51b1-a\n",
            EXIT_FAILED,
        ),
        (
            OSError("localhost:1 cannot be reached: [Errno 111] Connect call failed ('127.0.0.1', 1)"),
            "twinbus try: localhost:1 cannot be reached: the connection is refused; is the server running?\n",
            EXIT_FAILED,
        ),
        (OSError("CERTIFICATE_VERIFY_FAILED."), "with --ca-file FILE, or use its --ready-file\n", EXIT_FAILED),
        (KeyboardInterrupt(), "twinbus try: interrupted\n", EXIT_INTERRUPTED),
    ],
)
def test_a_failure_is_one_line_with_an_exit_code(error: BaseException, line: str, code: int, capsys: Capture) -> None:
    def function() -> NoReturn:
        raise error

    async def coroutine() -> NoReturn:
        raise error

    for each in (function, coroutine):
        with pytest.raises(typer.Exit) as exit_:
            run_command("try", each)
        assert exit_.value.exit_code == code
        printed = capsys.readouterr()
        assert printed.err.endswith(line)
        assert printed.err.count("\n") == 1
        assert printed.out == ""


def test_a_result_is_returned_whether_it_is_awaited_or_not() -> None:
    async def coroutine() -> int:
        return 2

    assert run_command("try", lambda: 1) == 1
    assert run_command("try", coroutine) == 2
