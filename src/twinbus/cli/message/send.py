"""The command `twinbus message send`: send one message, or many from files, lines or JSON lines.

Owns the options and the send rate; the messages come from `message_source`. Many sends are under way at once, in order;
the first failure stops the command, which says how many messages were accepted.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
from pathlib import Path  # noqa: TC003  # typer reads the annotations
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from twinbus.cli.connection import CaFileOption, ConnectionStringOption, ProfileOption, ReadyFileOption, find_target
from twinbus.cli.message.arguments import check_one_of, parse_property, parse_time, scheduled_time
from twinbus.cli.message.entity import EntityArgument, connect, entity_path
from twinbus.cli.message.message_source import STDIN, MessageSource
from twinbus.cli.message.progress_line import ProgressLine
from twinbus.cli.output import CommandFailed, JsonOption, Misuse, examples, plural, print_json, run_command
from twinbus.cli.units import parse_duration

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from twinbus.client import BrokeredMessage, MessageSender

MAX_PENDING_SENDS: Final = 64
MAX_REPORTED_NUMBERS: Final = 20
EXAMPLES: Final = examples(
    'twinbus message send orders "two pounds of apples" --property price=3',
    "twinbus message send orders --json-lines orders.jsonl",
    'twinbus message send orders "later" --in 10m',
    "tail -f app.log | twinbus message send logs --lines -",
)


def send(  # noqa: PLR0913  # one per option
    entity: EntityArgument,
    body: Annotated[str | None, typer.Argument(metavar="BODY", help="Text to send; - reads stdin.")] = None,
    *,
    file: Annotated[
        list[Path] | None, typer.Option("--file", metavar="FILE", help="Send this file as a message; repeatable.")
    ] = None,
    lines: Annotated[
        str | None, typer.Option(metavar="FILE", help="Send each line of a file as a message; - reads stdin.")
    ] = None,
    json_lines: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Send each line, a message in JSON as --json prints it; - reads stdin."),
    ] = None,
    property: Annotated[  # noqa: A002  # the name of the option
        list[str] | None,
        typer.Option(
            "--property",
            "-p",
            metavar="NAME=VALUE",
            help="Application property; repeatable. NAME:string=5 keeps the text (types: string, int, float, bool).",
        ),
    ] = None,
    message_id: Annotated[
        str | None, typer.Option("--id", metavar="TEXT", help="Message id (default: random).")
    ] = None,
    session: Annotated[str | None, typer.Option(metavar="TEXT", help="Session id.")] = None,
    key: Annotated[str | None, typer.Option(metavar="TEXT", help="Partition key.")] = None,
    subject: Annotated[str | None, typer.Option(metavar="TEXT", help="Subject, also called label.")] = None,
    content_type: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Content type, for example text/csv.")
    ] = None,
    correlation_id: Annotated[str | None, typer.Option(metavar="TEXT", help="Correlation id.")] = None,
    reply_to: Annotated[str | None, typer.Option(metavar="TEXT", help="Queue for replies.")] = None,
    ttl_ms: Annotated[
        int | None,
        typer.Option("--ttl", metavar="DURATION", parser=parse_duration, help="Time to live, for example 1h."),
    ] = None,
    at: Annotated[
        dt.datetime | None,
        typer.Option(metavar="TIME", parser=parse_time, help="Schedule for this time (ISO 8601; UTC without a zone)."),
    ] = None,
    in_ms: Annotated[
        int | None,
        typer.Option("--in", metavar="DURATION", parser=parse_duration, help="Schedule for after this time."),
    ] = None,
    repeat: Annotated[int, typer.Option(metavar="N", min=1, help="Send everything this often.")] = 1,
    rate: Annotated[
        float | None, typer.Option(metavar="N", min=0.001, help="Send at most this many messages a second.")
    ] = None,
    connection_string: ConnectionStringOption = None,
    ready_file: ReadyFileOption = None,
    profile: ProfileOption = None,
    ca_file: CaFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send messages to a queue or a topic. When the command ends with 0, the namespace has stored all of them."""

    async def run() -> None:
        sources = {"BODY": body is not None, "--file": file, "--lines": lines, "--json-lines": json_lines}
        source = check_one_of(**sources)
        if message_id is not None and (repeat > 1 or source in ("--lines", "--json-lines") or len(file or ()) > 1):
            raise Misuse("--id is for a single message: leave it out, or put ids into --json-lines")
        if repeat > 1 and STDIN in (body, lines, json_lines):
            raise Misuse("--repeat cannot read stdin again: give a file")
        fields = {
            "message_id": message_id,
            "session_id": session,
            "partition_key": key,
            "label": subject,
            "content_type": content_type,
            "correlation_id": correlation_id,
            "reply_to": reply_to,
            "time_to_live": None if ttl_ms is None else dt.timedelta(milliseconds=ttl_ms),
            "scheduled_enqueue_time_utc": scheduled_time(at, in_ms),
        }
        template = MessageTemplate(
            {name: value for name, value in fields.items() if value is not None},
            dict(map(parse_property, property or ())),
        )
        async with connect(find_target(connection_string, ready_file, profile, ca_file)) as factory:
            path = entity_path(entity)
            sender = factory.create_message_sender(path)
            await sender.open()  # sends that wait for the link together would overtake each other
            sending = Sending(sender, path, rate)
            try:
                for _ in range(repeat):
                    reader = MessageSource(body, file or (), lines, json_lines)
                    if not await sending.send_all(reader.read(), template):
                        break
                await sending.finish()
            except asyncio.CancelledError:
                sending.report_interruption()
                raise
        sending.print_result(as_json=as_json)

    run_command("message send", run)


class MessageTemplate:
    """Values that options give to every message; they override the values in JSON lines."""

    def __init__(self, fields: dict[str, Any], properties: dict[str, object]) -> None:
        """Create a template from fields of BrokeredMessage and application properties."""
        self._fields = fields
        self._properties = properties

    def apply_to(self, message: BrokeredMessage) -> None:
        """Set the values in a message."""
        for name, value in self._fields.items():
            setattr(message, name, value)
        message.properties |= self._properties


# --- sending ----------------------------------------------------------------------------------------------------------


class Sending:
    """Pending sends, in order, and the results of finished sends."""

    def __init__(self, sender: MessageSender, path: str, rate: float | None) -> None:
        """Create a run without sends; `rate` is the maximum number of messages a second."""
        self._sender = sender
        self._path = path
        self._interval_s = None if rate is None else 1 / rate
        self._next_s = 0.0
        self._slots = asyncio.Semaphore(MAX_PENDING_SENDS)
        self._pending: dict[asyncio.Task[int | None], str] = {}
        self._sent_count = 0
        self._sequence_numbers: list[int] = []
        """Sequence numbers of scheduled messages."""
        self._failure: tuple[str, BaseException] | None = None
        self._read_error: CommandFailed | None = None
        self._scope = asyncio.timeout(None)
        """Timeout of the loop that reads messages: it expires when a send fails, so that the loop ends at once."""

    async def send_all(self, messages: AsyncIterator[tuple[str, BrokeredMessage]], template: MessageTemplate) -> bool:
        """Send messages; return False if one failed, so that no more are sent."""
        loop = asyncio.get_running_loop()
        with ProgressLine() as progress:
            try:
                async with asyncio.timeout(None) as self._scope:
                    async for where, message in messages:
                        template.apply_to(message)
                        await self._wait_for_turn(loop)
                        await self._slots.acquire()
                        task = loop.create_task(self._send(message))
                        self._pending[task] = where
                        task.add_done_callback(self._on_sent)
                        progress.show(f"{self._sent_count:,} sent")
            except CommandFailed as error:
                self._read_error = error
            except TimeoutError:
                assert self._failure is not None
        return self._failure is None and self._read_error is None

    async def finish(self) -> None:
        """Wait for the sends that are under way."""
        while self._pending:
            await asyncio.wait(self._pending)

    async def _send(self, message: BrokeredMessage) -> int | None:
        when = message.scheduled_enqueue_time_utc
        if when is not None:
            return await self._sender.schedule(message, when)
        await self._sender.send(message)
        return None

    async def _wait_for_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._interval_s is not None:
            now_s = loop.time()
            if now_s < self._next_s:
                await asyncio.sleep(self._next_s - now_s)
            self._next_s = max(self._next_s, now_s) + self._interval_s

    def _on_sent(self, task: asyncio.Task[int | None]) -> None:
        where = self._pending.pop(task)
        self._slots.release()
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            self._sent_count += 1
            number = task.result()
            if number is not None:
                self._sequence_numbers.append(number)
        elif self._failure is None:
            self._failure = (where, error)
            if self._scope.when() is None:
                with contextlib.suppress(RuntimeError):  # all messages were read
                    self._scope.reschedule(asyncio.get_running_loop().time())

    def report_interruption(self) -> None:
        """Say how many messages were accepted before the command was interrupted."""
        typer.echo(f"{plural(self._sent_count, 'message')} accepted before the command ended.", err=True)

    def print_result(self, *, as_json: bool) -> None:
        """Print what was sent. Raise CommandFailed if a message could not be read or sent."""
        sent = plural(self._sent_count, "message")
        if self._failure is not None:
            where, error = self._failure
            raise CommandFailed(f"{where} was not sent: {error} ({sent} accepted)") from error
        if self._read_error is not None:
            raise CommandFailed(f"{self._read_error} ({sent} accepted)")
        if as_json:
            result: dict[str, object] = {"entity": self._path, "sent": self._sent_count}
            if self._sequence_numbers:
                result["scheduled_sequence_numbers"] = self._sequence_numbers
            print_json(result)
            return
        if not self._sequence_numbers:
            typer.echo(f"Sent {sent} to {self._path}.")
            return
        shown = ", ".join(map(str, self._sequence_numbers[:MAX_REPORTED_NUMBERS]))
        more = ", ..." if len(self._sequence_numbers) > MAX_REPORTED_NUMBERS else ""
        typer.echo(f"Scheduled {sent} to {self._path}: {shown}{more}.")
