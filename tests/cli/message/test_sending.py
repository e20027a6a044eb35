"""`twinbus message send` sends one message or many, from arguments, files, lines and JSON lines."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.server_process import wait_until

if TYPE_CHECKING:
    from tests.cli.message.conftest import MessageCommands
    from tests.support.server_process import ServerProcess

TIMEOUT_S = 60


def test_a_message_has_the_values_of_the_options(run: MessageCommands, queue: str) -> None:
    properties = ["price=3", "rate=1.5", "paid=true", "code:string=5", "sum:float=2"]
    options = [part for text in properties for part in ("--property", text)]
    values = ["--id", "order-1", "--subject", "fruit", "--content-type", "text/plain", "--correlation-id", "c"]
    output = run("send", queue, "two pounds of apples", *values, "--ttl", "1h", "--key", "k", *options)
    assert output == f"Sent 1 message to {queue}.\n"
    [message] = run.json_lines("peek", queue)
    expected = {
        "message_id": "order-1",
        "subject": "fruit",
        "content_type": "text/plain",
        "correlation_id": "c",
        "partition_key": "k",
        "time_to_live_s": 3600,
        "body": "two pounds of apples",
        "properties": {"price": 3, "rate": 1.5, "paid": True, "code": "5", "sum": 2.0},
    }
    assert {name: message[name] for name in expected} == expected
    assert {name: type(value) for name, value in message["properties"].items()} == {
        "price": int, "rate": float, "paid": bool, "code": str, "sum": float,
    }  # fmt: skip


def test_files_and_lines_are_sent_in_their_order(run: MessageCommands, queue: str) -> None:
    Path("a.bin").write_bytes(b"\xff\x00a")
    Path("b.txt").write_text("b")
    Path("lines.txt").write_text("".join(f"line {number}\n" for number in range(150)))
    run("send", queue, "--file", "a.bin", "--file", "b.txt")
    assert run.json("send", queue, "--lines", "lines.txt") == {"entity": queue, "sent": 150}
    run("send", queue, "-", stdin="from stdin")
    first, second, *others = run.json_lines("peek", queue, "--count", "200")
    assert (first["body_base64"], second["body"]) == ("/wBh", "b")
    assert [message["body"] for message in others] == [*(f"line {number}" for number in range(150)), "from stdin"]


def test_a_message_that_was_printed_is_sent_again_unchanged(run: MessageCommands, queue: str) -> None:
    messages: list[dict[str, object]] = [
        {"message_id": "1", "body": "text", "properties": {"n": 1, "f": 1.5, "b": False, "s": "x", "none": None}},
        {"message_id": "2", "body_base64": "/wA=", "session_id": "s", "reply_to": "r", "to": "t"},
        {"message_id": "3", "body_value": {"list": [1, "two"]}, "time_to_live_s": 90.5},
        {
            "message_id": {"type": "uuid", "value": "6ba7b810-9dad-11d1-80b4-00c04fd430c8"},
            "body": "",
            "properties": {
                "when": {"type": "time", "value": "2030-01-02T03:04:05+00:00"},
                "long": {"type": "duration", "value": 90.5},
                "raw": {"type": "bytes", "value": "/wA="},
                "id": {"type": "uuid", "value": "6ba7b810-9dad-11d1-80b4-00c04fd430c8"},
            },
        },
    ]
    text = "".join(f"{json.dumps(message)}\n" for message in messages)
    assert "Sent 4" in run("send", queue, "--json-lines", "-", stdin=text)
    printed = run("receive", queue, "--count", "4", "--json", "--wait", "2s")
    Path("again.jsonl").write_text(printed)
    run("send", queue, "--json-lines", "again.jsonl")
    again = run.json_lines("peek", queue)
    for message, sent in zip(again, messages, strict=True):
        assert {name: message.get(name) for name in sent} == sent


def test_a_line_that_is_not_a_message_is_named_after_the_earlier_ones_were_sent(
    run: MessageCommands, queue: str
) -> None:
    Path("orders.jsonl").write_text('{"body": "1"}\n{"body": "2"}\n{"bodi": "3"}\n{"body": "4"}\n')
    run("send", queue, "--json-lines", "orders.jsonl", exit_code=1)
    assert "line 3 of orders.jsonl: a message has no field 'bodi'" in run.errors
    assert "(2 messages accepted)" in run.errors
    assert [message["body"] for message in run.json_lines("peek", queue)] == ["1", "2"]


def test_messages_are_repeated_and_scheduled(run: MessageCommands, queue: str) -> None:
    run("send", queue, "again", "--repeat", "3", "--rate", "1000")
    result = run.json("send", queue, "later", "--at", "2096-01-01T00:00:00")
    [number] = result["scheduled_sequence_numbers"]
    [scheduled] = run.json_lines("peek", queue, "--state", "scheduled")
    assert (scheduled["sequence_number"], scheduled["scheduled_time"]) == (number, "2096-01-01T00:00:00+00:00")
    assert len(run.json_lines("peek", queue, "--state", "active")) == 3


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "give one of BODY, --file, --lines and --json-lines"),
        (["x", "--lines", "-"], "give one of"),
        (["x", "--property", "price"], "'price' is not NAME=VALUE"),
        (["x", "--property", "price:int=x"], "'x' is not a value of type int"),
        (["x", "--repeat", "2", "--id", "1"], "--id is for a single message"),
        (["x", "--at", "2030-01-01", "--in", "5m"], "only one of --at and --in"),
        (["x", "--at", "tomorrow"], "'tomorrow' is not a time"),
        (["x", "--ttl", "soon"], "'soon' is not a duration"),
    ],
)
def test_bad_input_is_refused(run: MessageCommands, queue: str, arguments: list[str], text: str) -> None:
    run("send", queue, *arguments, exit_code=2)
    assert text in " ".join(run.errors.split())


async def test_lines_are_sent_as_they_arrive_until_ctrl_c(server: ServerProcess, queue: str) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "twinbus", "message", "send", queue, "--lines", "-",
        env={**os.environ, "TWINBUS_CONNECTION_STRING": server.connection_string},
        stdin=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None
    process.stdin.write(b"first\n")
    await process.stdin.drain()
    await asyncio.to_thread(wait_until, lambda: server.message_counts(queue) == (1, 0))
    process.send_signal(signal.SIGINT)
    async with asyncio.timeout(TIMEOUT_S):
        _, errors = await process.communicate()
    assert process.returncode == 130
    assert errors.decode().splitlines() == [
        "1 message accepted before the command ended.",
        "twinbus message send: interrupted",
    ]


def test_a_missing_file_is_named(run: MessageCommands, queue: str) -> None:
    run("send", queue, "--lines", "missing.txt", exit_code=1)
    assert "missing.txt cannot be read: No such file" in run.errors
