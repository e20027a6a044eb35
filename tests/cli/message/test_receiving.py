"""`twinbus message receive` prints messages or writes them to files, and settles them afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.cli.message.conftest import MessageCommands
    from tests.support.server_process import ServerProcess


def test_received_messages_are_printed_and_deleted(run: MessageCommands, queue: str, server: ServerProcess) -> None:
    run("send", queue, "two pounds of apples", "--property", "price=3", "--id", "order-1")
    run("send", queue, "-", stdin=b"\x1b[31mred\x00\xff")
    output = run("receive", queue, "--count", "5", "--wait", "500ms")
    assert "order-1\n  price: 3\ntwo pounds of apples\n" in output
    assert "1b 5b 33 31 6d 72 65 64 00 ff" in output
    assert server.message_counts(queue) == (0, 0)
    assert run("receive", queue, "--wait", "1ms") == ""
    assert "Received 0 messages." in run.errors


def test_control_characters_of_a_text_are_escaped(run: MessageCommands, queue: str) -> None:
    run("send", queue, "-", "--property", "a=\x1b]0;x\x07", stdin="\x1b[31mred")
    output = run("receive", queue)
    assert "\\x1b[31mred" in output
    assert "a: \\x1b]0;x\\x07" in output


@pytest.mark.parametrize(
    ("settlement", "counts", "states"),
    [("abandon", (2, 0), ["active"] * 2), ("defer", (0, 0), ["deferred"] * 2), ("dead-letter", (0, 2), [])],
)
def test_messages_are_settled_as_asked(
    run: MessageCommands, queue: str, server: ServerProcess, settlement: str, counts: tuple[int, int], states: list[str]
) -> None:
    run("send", queue, "x", "--repeat", "2")
    assert len(run.json_lines("receive", queue, "--count", "9", "--wait", "300ms", "--settle", settlement)) == 2
    assert server.message_counts(queue) == counts
    assert [message["state"] for message in run.json_lines("peek", queue)] == states


def test_deferred_messages_are_received_by_number(run: MessageCommands, queue: str) -> None:
    run("send", queue, "x", "--repeat", "3")
    run("receive", queue, "--count", "3", "--settle", "defer")
    received = run.json_lines("receive", queue, "--deferred", "1", "--deferred", "3")
    assert [message["sequence_number"] for message in received] == [1, 3]
    assert [message["sequence_number"] for message in run.json_lines("peek", queue)] == [2]


def test_sessions_are_received_by_id_or_the_next_one(run: MessageCommands, server: ServerProcess) -> None:
    queue = server.create_queue(RequiresSession="true")
    for session in ("a", "b"):
        run("send", queue, f"of {session}", "--session", session)
    [message] = run.json_lines("receive", queue, "--session", "b", "--count", "9", "--wait", "300ms")
    assert (message["session_id"], message["body"]) == ("b", "of b")
    run("receive", queue, exit_code=1)
    assert run.errors == f"twinbus message receive: '{queue}' requires sessions: use --session ID or --next-session\n"
    [message] = run.json_lines("receive", queue, "--next-session", "--wait", "300ms")
    assert message["session_id"] == "a"


def test_messages_are_written_to_new_files_before_they_are_deleted(
    run: MessageCommands, queue: str, server: ServerProcess
) -> None:
    run("send", queue, "-", "--id", "../evil", stdin=b"\xff\x00")
    run("send", queue, "text", "--id", "2")
    assert run("receive", queue, "--count", "2", "--to-files", "out") == ""
    assert {file.name: file.read_bytes() for file in Path("out").iterdir()} == {
        "1-___evil.body": b"\xff\x00",
        "2-2.body": b"text",
    }
    run("send", queue, "third", "--id", "3")
    Path("out/3-3.body").write_text("in the way")
    run("receive", queue, "--to-files", "out", exit_code=1)
    assert "3-3.body exists: the message was not settled" in run.errors
    assert server.message_counts(queue) == (1, 0)
