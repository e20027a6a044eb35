"""`twinbus message peek`, `watch` and `dead-letters` show messages without receiving them."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

from twinbus.client import BrokeredMessage, MessagingFactory

if TYPE_CHECKING:
    from tests.cli.message.conftest import MessageCommands
    from tests.support.server_process import ServerProcess


def send_orders(run: MessageCommands, queue: str, count: int) -> None:
    messages = [{"message_id": f"order-{n}", "body": f"order {n}", "properties": {"price": n}} for n in range(count)]
    run("send", queue, "--json-lines", "-", stdin="\n".join(map(json.dumps, messages)))


def test_a_table_fits_the_terminal_and_shows_what_differs(run: MessageCommands, queue: str) -> None:
    run("send", queue, "a body that is much too long for a line of this table " * 3, "--subject", "a long subject")
    run("send", queue, "two\nlines\x1b[0m", "--id", "x" * 60)
    lines = run("peek", queue).splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert lines[0].split() == ["NUMBER", "ENQUEUED", "(UTC)", "MESSAGE", "ID", "SUBJECT", "BODY"]
    assert "a long subj…" in lines[1]
    assert "xxxxxxxxxxxxxxxx…" in lines[2]


def test_full_messages_show_when_they_are_due_and_why_they_are_dead_letters(run: MessageCommands, queue: str) -> None:
    run("send", queue, "later", "--at", "2090-01-02T03:04:05Z", "--id", "one")
    assert run("peek", queue, "--full").splitlines()[0].endswith("  one  scheduled for 2090-01-02 03:04:05")
    run("send", queue, "wrong", "--id", "two")
    run("receive", queue, "--settle", "dead-letter", "--reason", "late")
    shown = run("peek", queue, "--dead-letter", "--full")
    assert shown.splitlines()[0].endswith("  two  dead-lettered: late")


def test_peeked_messages_are_chosen_by_number_filter_and_state(run: MessageCommands, queue: str) -> None:
    send_orders(run, queue, 30)
    run("send", queue, "later", "--in", "1h")

    def numbers(*options: str) -> list[int]:
        return [message["sequence_number"] for message in run.json_lines("peek", queue, *options)]

    assert numbers() == list(range(1, 11))
    assert numbers("--from", "28", "--count", "9") == [28, 29, 30, 31]
    assert numbers("--filter", "price >= 27") == [28, 29, 30]
    assert numbers("--filter", "price >= 10", "--count", "2") == [11, 12]
    assert numbers("--state", "scheduled") == [31]
    run("peek", queue, "--filter", "price >", exit_code=1)
    assert "filter" in run.errors
    run("peek", queue, "--state", "locked", exit_code=2)
    assert "--state is 'locked': use active, deferred, scheduled" in run.errors


def test_one_session_can_be_peeked(run: MessageCommands, server: ServerProcess) -> None:
    queue = server.create_queue(RequiresSession="true")
    for number, session in enumerate("aba"):
        run("send", queue, f"{number}", "--session", session, "--property", f"price={number}")
    assert [message["body"] for message in run.json_lines("peek", queue, "--session", "a")] == ["0", "2"]
    assert [m["body"] for m in run.json_lines("peek", queue, "--session", "a", "--filter", "price > 0")] == ["2"]


def test_dead_letters_are_counted_by_reason_and_listed(run: MessageCommands, queue: str) -> None:
    send_orders(run, queue, 5)
    for reason, count in (("late", 3), ("broken", 2)):
        run("receive", queue, "--count", f"{count}", "--settle", "dead-letter", "--reason", reason)
    summary = run.json("dead-letters", queue)
    assert [(each["reason"], each["count"]) for each in summary["reasons"]] == [("late", 3), ("broken", 2)]
    assert run("dead-letters", queue).splitlines()[1].split() == ["3", "late"]
    listed = run.json_lines("dead-letters", queue, "--list", "--filter", "DeadLetterReason = 'broken'")
    assert [message["dead_letter_reason"] for message in listed] == ["broken"] * 2
    assert "order-3" in run("dead-letters", queue, "--list")
    assert run.json("dead-letters", queue, "--filter", "price = 0")["count"] == 1
    assert not run.json("dead-letters", queue, "--count", "2")["is_complete"]


@pytest.mark.parametrize(
    ("elements", "options"),
    [({}, []), ({"EnablePartitioning": "true"}, []), ({"EnablePartitioning": "true"}, ["--filter", "price > 1"])],
    ids=["plain", "partitioned", "filtered"],
)
async def test_new_messages_are_watched_and_stay_in_the_queue(
    run: MessageCommands, server: ServerProcess, elements: dict[str, str], options: list[str]
) -> None:
    """A message that was there before is not shown. Messages are sent until the command has shown two."""
    queue = server.create_queue(**elements)
    async with MessagingFactory.from_connection_string(server.connection_string) as factory:
        sender = factory.create_message_sender(queue)
        await sender.send(BrokeredMessage("before", properties={"price": 9}))
        watching = asyncio.ensure_future(asyncio.to_thread(run.json_lines, "watch", queue, "--count", "2", *options))
        count = 0
        while not watching.done():
            await sender.send(BrokeredMessage(f"{count}", properties={"price": count % 3}))
            count += 1
        shown = [int(message["body"]) for message in await watching]
    assert len(set(shown)) == 2
    assert all(number < count for number in shown)
    assert {number % 3 for number in shown} <= ({2} if options else {0, 1, 2})
    assert server.message_counts(queue) == (count + 1, 0)
