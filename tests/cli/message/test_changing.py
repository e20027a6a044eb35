"""`twinbus message resubmit`, `move`, `delete`, `purge`, `cancel` and `reschedule` change messages in a queue."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.server_process import wait_until

if TYPE_CHECKING:
    from tests.cli.message.conftest import MessageCommands
    from tests.support.server_process import ServerProcess


def send_orders(run: MessageCommands, queue: str, count: int) -> None:
    lines = [json.dumps({"body": f"order {n}", "properties": {"price": n}}) for n in range(1, count + 1)]
    run("send", queue, "--json-lines", "-", stdin="\n".join(lines))


def dead_letter(run: MessageCommands, queue: str, count: int) -> None:
    send_orders(run, queue, count)
    run("receive", queue, "--count", f"{count}", "--settle", "dead-letter", "--reason", "late")


def test_dead_letters_are_resubmitted_by_number_filter_and_all(
    run: MessageCommands, queue: str, server: ServerProcess
) -> None:
    dead_letter(run, queue, 6)
    assert run("resubmit", queue, "1", "2") == "Resubmitted 2 messages.\n"
    assert run.json("resubmit", f"{queue}/$DeadLetterQueue", "--filter", "price = 5")["done"] == 1
    assert server.message_counts(queue) == (3, 3)
    assert run("resubmit", queue, "--all") == "Resubmitted 3 messages.\n"
    assert server.message_counts(queue) == (6, 0)


def test_a_dead_letter_is_resubmitted_with_edited_content(run: MessageCommands, queue: str) -> None:
    dead_letter(run, queue, 1)
    [letter] = run.json_lines("peek", queue, "--dead-letter")
    Path("edited.json").write_text(json.dumps(letter | {"body": "corrected"}))
    number = run.json("resubmit", queue, "1", "--edit", "edited.json")["new_sequence_number"]
    [message] = run.json_lines("peek", queue)
    assert (message["sequence_number"], message["body"], message["properties"]) == (number, "corrected", {"price": 1})
    assert message["message_id"] == letter["message_id"]
    Path("edited.json").write_text("[]")
    run("resubmit", queue, "1", "--edit", "edited.json", exit_code=1)
    assert "edited.json: a message is a JSON object" in run.errors


def test_skipped_messages_are_named_and_the_others_are_done(
    run: MessageCommands, queue: str, server: ServerProcess
) -> None:
    dead_letter(run, queue, 2)
    assert run("resubmit", queue, "1", "77", exit_code=1) == "Resubmitted 1 message.\n"
    assert "skipped 1 message that is locked or gone: 77" in run.errors
    assert server.message_counts(queue) == (1, 1)


def test_messages_move_to_another_queue(run: MessageCommands, queue: str, server: ServerProcess) -> None:
    other = server.create_queue()
    send_orders(run, queue, 5)
    assert run("move", queue, other, "--filter", "price > 3") == "Moved 2 messages.\n"
    wait_until(lambda: server.message_counts(other) == (2, 0))
    assert [message["body"] for message in run.json_lines("peek", other)] == ["order 4", "order 5"]
    assert run.json("move", queue, other, "--all", "--count", "1") == {
        "done": 1, "skipped": [], "unavailable_fragments": [],
    }  # fmt: skip
    assert server.message_counts(queue) == (2, 0)
    run("move", queue, "nowhere", "--all", exit_code=1)
    assert "nowhere" in run.errors
    assert server.message_counts(queue) == (2, 0)


def test_deletions_by_filter_and_purges_must_be_confirmed(
    run: MessageCommands, queue: str, server: ServerProcess
) -> None:
    send_orders(run, queue, 5)
    for command in (["delete", queue, "--filter", "price = 1"], ["purge", queue]):
        run(*command, exit_code=2)
        assert "confirm with --yes" in run.errors
    assert server.message_counts(queue) == (5, 0)
    assert run("delete", queue, "2") == "Deleted 1 message.\n"
    assert run("delete", queue, "--filter", "price = 1", "--yes") == "Deleted 1 message.\n"
    assert run("purge", queue, "--yes") == "Deleted 3 messages.\n"
    dead_letter(run, queue, 2)
    assert run.json("purge", queue, "--dead-letter", "--yes") == {"done": 2, "skipped": 0}
    assert server.message_counts(queue) == (0, 0)


def test_scheduled_messages_are_listed_changed_and_cancelled(run: MessageCommands, queue: str) -> None:
    [number] = run.json("send", queue, "later", "--id", "1", "--at", "2096-01-01")["scheduled_sequence_numbers"]
    number = run.json("reschedule", queue, f"{number}", "--at", "2097-01-01T00:00:00Z")["sequence_number"]
    [message] = run.json_lines("peek", queue, "--state", "scheduled")
    assert (message["sequence_number"], message["message_id"]) == (number, "1")
    assert message["scheduled_time"] == "2097-01-01T00:00:00+00:00"
    Path("edited.json").write_text(json.dumps(message | {"body": "corrected"}))
    number = run.json("reschedule", queue, f"{number}", "--edit", "edited.json")["sequence_number"]
    [message] = run.json_lines("peek", queue, "--state", "scheduled")
    assert (message["body"], message["scheduled_time"]) == ("corrected", "2097-01-01T00:00:00+00:00")
    assert run("cancel", queue, f"{number}") == "Cancelled 1 message.\n"
    assert run.json_lines("peek", queue) == []
    run("cancel", queue, f"{number}", exit_code=1)
    assert f"scheduled message {number}" in run.errors


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["resubmit", "q"], "give one of NUMBER, --all and --filter"),
        (["resubmit", "q", "1", "--all"], "give one of NUMBER, --all and --filter"),
        (["resubmit", "q", "--all", "--edit", "x"], "--edit is for a single message"),
        (["resubmit", "q", "0"], "0 is not a sequence number"),
        (["move", "q", "r"], "give one of"),
        (["delete", "q"], "give one of NUMBER and --filter"),
        (["delete", "q", "1", "--state", "active"], "--state is for --filter"),
        (["purge", "q", "--state", "locked"], "--state is 'locked'"),
        (["reschedule", "q", "1"], "give --at, --in or --edit"),
        (["peek", "/"], "ENTITY is empty"),
        (["receive", "q", "--session", "a", "--next-session"], "only one of --session"),
        (["receive", "q", "--reason", "a"], "--reason is for --settle dead-letter"),
    ],
)
def test_bad_input_is_refused(run: MessageCommands, arguments: list[str], text: str) -> None:
    run(*arguments, exit_code=2)
    assert text in run.errors
