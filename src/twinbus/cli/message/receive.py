"""The command `twinbus message receive`: receive messages and settle them.

Owns the options, and the order of its steps: a message is printed or written to a file first, and then settled, so that
no message is lost if the output fails.
"""

from __future__ import annotations

import re
import sys
from contextlib import contextmanager
from enum import Enum
from pathlib import Path  # noqa: TC003  # typer reads the annotations
from typing import TYPE_CHECKING, Annotated, Final

import typer

from twinbus.cli.connection import CaFileOption, ConnectionStringOption, ProfileOption, ReadyFileOption, find_target
from twinbus.cli.message.entity import DeadLetterOption, EntityArgument, connect, entity_path
from twinbus.cli.message.message_view import BodyFormat, BodyOption, print_message
from twinbus.cli.message.progress_line import ProgressLine
from twinbus.cli.output import CommandFailed, JsonOption, Misuse, examples, plural, print_json_line, run_command
from twinbus.cli.units import parse_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from twinbus.client import BrokeredMessage, MessageReceiver, MessageSession, MessagingFactory

MAX_BATCH: Final = 100
MAX_HELD: Final = 1_000
"""Maximum number of messages that are locked at once, if messages are settled at the end."""
EXAMPLES: Final = examples(
    "twinbus message receive orders --count 10",
    "twinbus message receive orders --count 1000 --to-files ./orders",
    "twinbus message receive orders --dead-letter --json > dead.jsonl",
    "twinbus message receive baskets --next-session --settle abandon",
)


class Settlement(Enum):
    """What happens to a received message."""

    COMPLETE = "complete"
    ABANDON = "abandon"
    DEFER = "defer"
    DEAD_LETTER = "dead-letter"


def receive(  # noqa: PLR0913  # one per option
    entity: EntityArgument,
    *,
    dead_letter: DeadLetterOption = False,
    count: Annotated[int, typer.Option("--count", "-n", metavar="N", min=1, help="Maximum number of messages.")] = 1,
    wait_ms: Annotated[
        int,
        typer.Option(
            "--wait", metavar="DURATION", parser=parse_duration, help="How long to wait for the next message."
        ),
    ] = "5s",  # type: ignore[assignment]  # the parser converts the default, too
    settle: Annotated[
        Settlement,
        typer.Option(
            metavar="complete|abandon|defer|dead-letter",
            help="What to do with each message: delete it, make it available again, defer it, or dead-letter it.",
        ),
    ] = Settlement.COMPLETE,
    reason: Annotated[str | None, typer.Option(metavar="TEXT", help="Reason, with --settle dead-letter.")] = None,
    session: Annotated[str | None, typer.Option(metavar="TEXT", help="Receive from this session.")] = None,
    next_session: Annotated[bool, typer.Option("--next-session", help="Receive from the next free session.")] = False,
    deferred: Annotated[
        list[int] | None,
        typer.Option("--deferred", metavar="NUMBER", help="Receive this deferred message; repeatable."),
    ] = None,
    to_files: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write each body, or with --json each message, to a new file.")
    ] = None,
    body: BodyOption = BodyFormat.AUTO,
    connection_string: ConnectionStringOption = None,
    ready_file: ReadyFileOption = None,
    profile: ProfileOption = None,
    ca_file: CaFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Receive messages, print them, and delete them from the entity (or see --settle). JSON: one line per message.

    If no message arrives in time (--wait), the command prints nothing and ends with 0.
    """

    async def run() -> None:
        if session is not None and next_session:
            raise Misuse("give only one of --session and --next-session")
        if reason is not None and settle is not Settlement.DEAD_LETTER:
            raise Misuse("--reason is for --settle dead-letter")
        if settle is Settlement.ABANDON and count > MAX_HELD:
            raise Misuse(f"--settle abandon holds all messages until the end: --count can be at most {MAX_HELD:,}")
        if dead_letter and settle is Settlement.DEAD_LETTER:
            raise Misuse("these messages are dead letters already: use another --settle")
        write = _make_writer(to_files, body, as_json=as_json)
        async with connect(find_target(connection_string, ready_file, profile, ca_file)) as factory:
            path = entity_path(entity, dead_letter=dead_letter)
            receiver = await _open(factory, path, session, wait_ms / 1000, next_session=next_session)
            if receiver is None:
                total = 0
            elif deferred:
                total = await _settle_each(receiver, await receiver.receive_deferred(*deferred), write, settle, reason)
            else:
                with _advice_on_sessions(path):
                    total = await _receive_all(receiver, count, wait_ms / 1000, write, settle, reason)
            if receiver is not None:
                await receiver.close()
        if to_files is not None or not total:
            typer.echo(f"Received {plural(total, 'message')}.", err=True)

    run_command("message receive", run)


@contextmanager
def _advice_on_sessions(path: str) -> Iterator[None]:
    """Name the options for sessions, if the entity requires them."""
    from twinbus.model.errors import NotAllowed  # noqa: PLC0415  # `--help` starts faster

    try:
        yield
    except NotAllowed as error:
        if "requires sessions" not in str(error):
            raise
        raise CommandFailed(f"{path!r:.300} requires sessions: use --session ID or --next-session") from None


async def _open(
    factory: MessagingFactory, path: str, session: str | None, wait_s: float, *, next_session: bool
) -> MessageReceiver | MessageSession | None:
    """Return a receiver, or a session; None if no session is free."""
    from twinbus.client.errors import TimedOut  # noqa: PLC0415  # `--help` starts faster
    from twinbus.model.errors import OperationTimeout  # noqa: PLC0415

    if session is None and not next_session:
        return factory.create_message_receiver(path)
    try:
        return await factory.create_queue_client(path).accept_session(session, timeout=wait_s)
    except (TimedOut, OperationTimeout):
        if session is not None:
            raise
        return None


async def _receive_all(
    receiver: MessageReceiver | MessageSession,
    count: int,
    wait_s: float,
    write: Callable[[BrokeredMessage], None],
    settlement: Settlement,
    reason: str | None,
) -> int:
    """Receive up to `count` messages; stop when none arrives in time. Return their number."""
    total = 0
    held: list[BrokeredMessage] = []
    with ProgressLine() as progress:
        while total < count:
            messages = await receiver.receive_batch(min(MAX_BATCH, count - total), wait_s)
            if not messages:
                break
            if settlement is Settlement.ABANDON:  # an abandoned message would be received again
                for message in messages:
                    write(message)
                held += messages
            else:
                await _settle_each(receiver, messages, write, settlement, reason)
            total += len(messages)
            if not sys.stdout.isatty():
                progress.show(f"{total:,} received")
    for message in held:
        await receiver.abandon(message)
    return total


async def _settle_each(
    receiver: MessageReceiver | MessageSession,
    messages: list[BrokeredMessage],
    write: Callable[[BrokeredMessage], None],
    settlement: Settlement,
    reason: str | None,
) -> int:
    """Write messages, and then settle each; return their number."""
    for message in messages:
        write(message)
        if settlement is Settlement.COMPLETE:
            await receiver.complete(message)
        elif settlement is Settlement.DEFER:
            await receiver.defer(message)
        elif settlement is Settlement.DEAD_LETTER:
            await receiver.dead_letter(message, reason)
        else:
            await receiver.abandon(message)
    return len(messages)


def _make_writer(folder: Path | None, body_format: BodyFormat, *, as_json: bool) -> Callable[[BrokeredMessage], None]:
    from twinbus.cli.message.message_json import to_json  # noqa: PLC0415  # `--help` starts faster

    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        return lambda message: _write_file(folder, message, as_json=as_json)
    if as_json:
        return lambda message: print_json_line(to_json(message))

    def print_and_flush(message: BrokeredMessage) -> None:
        print_message(message, body_format)
        sys.stdout.flush()

    return print_and_flush


def _write_file(folder: Path, message: BrokeredMessage, *, as_json: bool) -> None:
    """Write a message to a new file named after its sequence number and id. Raise CommandFailed if the file exists."""
    import msgspec  # noqa: PLC0415  # `--help` starts faster

    from twinbus.cli.message.message_json import to_json  # noqa: PLC0415

    safe_id = re.sub(r"[^A-Za-z0-9_-]", "_", str(message.message_id))[:60]
    content = msgspec.json.encode(to_json(message)) if as_json else message.body
    if not isinstance(content, bytes):
        content = content.encode() if isinstance(content, str) else msgspec.json.encode(to_json(message))
    file = folder / f"{message.sequence_number}-{safe_id}{'.json' if as_json else '.body'}"
    try:
        with file.open("xb") as stream:
            stream.write(content)
    except FileExistsError:
        raise CommandFailed(f"{file} exists: the message was not settled; give an empty folder") from None
