"""The commands that look at messages without receiving them: peek, watch and dead-letters.

Owns the options and the output. The searches are in `client.inspector`.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Annotated, Final

import typer

from twinbus.cli.connection import CaFileOption, ConnectionStringOption, ProfileOption, ReadyFileOption, find_target
from twinbus.cli.message.entity import DeadLetterOption, EntityArgument, FilterOption, connect, entity_path
from twinbus.cli.message.message_view import BodyFormat, BodyOption, print_message, print_messages
from twinbus.cli.message.progress_line import ProgressLine
from twinbus.cli.output import (
    JsonOption,
    Misuse,
    SequenceNumber,
    examples,
    plural,
    print_json,
    print_json_line,
    print_table,
    run_command,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from twinbus.client import BrokeredMessage, MessageInspector, MessagingFactory

MAX_COUNT: Final = 100_000
STATES: Final = ("active", "deferred", "scheduled")
WATCH_INTERVAL_S: Final = 0.5
"""How often `watch --filter` asks for new messages."""
MAX_QUEUED_MESSAGES: Final = 200
PEEK_EXAMPLES: Final = examples(
    "twinbus message peek orders --count 20",
    'twinbus message peek orders --filter "price > 100" --json',
    "twinbus message peek orders --state scheduled",
)
WATCH_EXAMPLES: Final = examples(
    "twinbus message watch orders",
    "twinbus message watch orders --filter \"sys.Label = 'paid'\" --json",
)
DEAD_LETTERS_EXAMPLES: Final = examples(
    "twinbus message dead-letters orders",
    "twinbus message dead-letters orders --filter \"DeadLetterReason = 'late'\"",
)
StateOption = Annotated[
    str | None,
    typer.Option(metavar="|".join(STATES), help="Only messages in this state.", show_default="all states"),
]
CountOption = Annotated[
    int, typer.Option("--count", "-n", metavar="N", min=1, max=MAX_COUNT, help="Maximum number of messages.")
]


def check_state(state: str | None) -> str | None:
    """Return the state. Raise Misuse if it is not the name of a state."""
    if state is not None and state not in STATES:
        raise Misuse(f"--state is {state!r:.60}: use {', '.join(STATES)}")
    return state


def peek(  # noqa: PLR0913  # one per option
    entity: EntityArgument,
    *,
    dead_letter: DeadLetterOption = False,
    count: CountOption = 10,
    start: Annotated[int, typer.Option("--from", metavar="NUMBER", min=0, help="Begin at this sequence number.")] = 0,
    state: StateOption = None,
    expression: FilterOption = None,
    session: Annotated[str | None, typer.Option(metavar="TEXT", help="Only messages of this session.")] = None,
    full: Annotated[bool, typer.Option("--full", help="Print properties and bodies instead of a table.")] = False,
    body: BodyOption = BodyFormat.AUTO,
    connection_string: ConnectionStringOption = None,
    ready_file: ReadyFileOption = None,
    profile: ProfileOption = None,
    ca_file: CaFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show messages without locking or deleting them: active, deferred and scheduled ones. JSON: a line per message."""

    async def run() -> None:
        check_state(state)
        async with connect(find_target(connection_string, ready_file, profile, ca_file)) as factory:
            inspector = factory.create_message_inspector(entity_path(entity, dead_letter=dead_letter))
            if state is None and expression is None:  # peeking works on other servers, too
                found = await _peek_pages(inspector, count, start, session)
            else:
                found = await _search(inspector, count, start, state, expression, session)
        if as_json:
            from twinbus.cli.message.message_json import to_json  # noqa: PLC0415  # `--help` starts faster

            for message in found:
                print_json_line(to_json(message))
        elif full:
            for message in found:
                print_message(message, body)
        elif found:
            print_messages(found)
        else:
            typer.echo("No messages.", err=True)

    run_command("message peek", run)


async def _peek_pages(
    inspector: MessageInspector, count: int, start: int, session: str | None
) -> list[BrokeredMessage]:
    found: list[BrokeredMessage] = []
    while len(found) < count:
        page = await inspector.peek(min(count - len(found), 250), from_sequence_number=start, session_id=session)
        if not page:
            break
        found += page
        start = page[-1].sequence_number + 1
    return found


async def _search(
    inspector: MessageInspector,
    count: int,
    start: int,
    state: str | None,
    expression: str | None,
    session: str | None,
) -> list[BrokeredMessage]:
    found: list[BrokeredMessage] = []
    scanned = 0
    with ProgressLine() as progress:
        async for page in inspector.search_pages(
            expression, state=state, session_id=session, from_sequence_number=start, page_size=min(count, 100)
        ):
            found += page.messages
            scanned += page.scanned_count
            _warn_of_missing(page.unavailable_fragments)
            progress.show(f"{scanned:,} searched, {len(found):,} found")
            if len(found) >= count:
                break
    return found[:count]


def _warn_of_missing(fragments: tuple[int, ...]) -> None:
    for fragment in fragments:
        typer.echo(f"fragment {fragment} does not respond: its messages are not shown", err=True)


# --- watch ------------------------------------------------------------------------------------------------------------


def watch(  # noqa: PLR0913  # one per option
    entity: EntityArgument,
    *,
    dead_letter: DeadLetterOption = False,
    count: Annotated[
        int | None, typer.Option("--count", "-n", metavar="N", min=1, help="Stop after this many messages.")
    ] = None,
    from_start: Annotated[
        bool, typer.Option("--from-start", help="Begin with the messages that exist, not with new ones.")
    ] = False,
    expression: FilterOption = None,
    body: BodyOption = BodyFormat.AUTO,
    connection_string: ConnectionStringOption = None,
    ready_file: ReadyFileOption = None,
    profile: ProfileOption = None,
    ca_file: CaFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show new active messages as they arrive, without receiving them, until Ctrl-C. JSON: one line per message.

    With --filter, the server is asked twice a second: messages that are received in between are not shown.
    """

    async def run() -> None:
        from twinbus.cli.message.message_json import to_json  # noqa: PLC0415  # `--help` starts faster

        async with connect(find_target(connection_string, ready_file, profile, ca_file)) as factory:
            path = entity_path(entity, dead_letter=dead_letter)
            ends = await factory.create_message_inspector(path).end_positions()
            starts = [0] * len(ends) if from_start else ends
            typer.echo(f"Watching {path}; stop with Ctrl-C.", err=True)
            if expression is None:
                arrivals = _browse(factory, path, starts)
            else:
                arrivals = _poll(factory.create_message_inspector(path), expression, starts)
            seen = 0
            async with contextlib.aclosing(arrivals) as messages:
                async for message in messages:
                    if as_json:
                        print_json_line(to_json(message))
                    else:
                        print_message(message, body)
                    seen += 1
                    if seen == count:
                        return

    run_command("message watch", run)


async def _browse(factory: MessagingFactory, path: str, starts: list[int]) -> AsyncGenerator[BrokeredMessage, None]:
    """Yield active messages of all fragments as they arrive."""
    arrived: asyncio.Queue[BrokeredMessage] = asyncio.Queue(MAX_QUEUED_MESSAGES)

    async def read(fragment: int, start: int) -> None:
        async with factory.create_message_browser(path, from_sequence_number=start, fragment=fragment) as browser:
            async for message in browser:
                await arrived.put(message)

    readers = [asyncio.ensure_future(read(fragment, start)) for fragment, start in enumerate(starts)]
    next_message = asyncio.ensure_future(arrived.get())
    try:
        while True:
            done, _ = await asyncio.wait([next_message, *readers], return_when=asyncio.FIRST_COMPLETED)
            for reader in done - {next_message}:
                reader.result()  # raises the error that ended the reader
            if next_message.done():
                yield next_message.result()
                next_message = asyncio.ensure_future(arrived.get())
    finally:
        for task in (next_message, *readers):
            task.cancel()
        await asyncio.gather(next_message, *readers, return_exceptions=True)


async def _poll(
    inspector: MessageInspector, expression: str, starts: list[int]
) -> AsyncGenerator[BrokeredMessage, None]:
    """Yield active messages for which the filter is true, asking for new messages at regular intervals."""
    from twinbus.model.description import FRAGMENT_SHIFT  # noqa: PLC0415  # `--help` starts faster

    positions = list(starts)
    while True:
        for fragment, start in enumerate(list(positions)):
            async for page in inspector.search_pages(expression, state="active", from_sequence_number=start):
                for message in page.messages:
                    yield message
                if page.next_sequence_number >> FRAGMENT_SHIFT != fragment:  # continues in the next fragment
                    positions[fragment] = max(start, page.end_sequence_number)
                    break
                positions[fragment] = page.next_sequence_number
        await asyncio.sleep(WATCH_INTERVAL_S)


# --- dead letters -----------------------------------------------------------------------------------------------------


def dead_letters(  # noqa: PLR0913  # one per option
    entity: EntityArgument,
    *,
    listed: Annotated[
        bool, typer.Option("--list", help="List the messages instead of counting them by reason.")
    ] = False,
    count: Annotated[
        int,
        typer.Option("--count", "-n", metavar="N", min=1, max=MAX_COUNT, help="Maximum number of messages to read."),
    ] = 10_000,
    expression: FilterOption = None,
    connection_string: ConnectionStringOption = None,
    ready_file: ReadyFileOption = None,
    profile: ProfileOption = None,
    ca_file: CaFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Count the dead letters of an entity by their reason, or list them with --list."""

    async def run() -> None:
        async with connect(find_target(connection_string, ready_file, profile, ca_file)) as factory:
            inspector = factory.create_message_inspector(entity_path(entity, dead_letter=True))
            if listed:
                found = await _search(inspector, count, 0, None, expression, None)
                _print_dead_letters(found, as_json=as_json)
                return
            summary = await inspector.summarize_dead_letters(count, filter=expression)
        if as_json:
            print_json(summary)
            return
        if summary.reasons:
            rows = [(each.count, each.reason or "(none)", each.description) for each in summary.reasons]
            print_table(["count", "reason", "first description"], rows)
        more = "" if summary.is_complete else f"; these are the first {count:,}: read more with --count"
        typer.echo(f"{plural(summary.count, 'dead letter')} in {inspector.path}{more}", err=True)

    run_command("message dead-letters", run)


def _print_dead_letters(messages: list[BrokeredMessage], *, as_json: bool) -> None:
    from twinbus.cli.message.message_json import to_json  # noqa: PLC0415  # `--help` starts faster

    if as_json:
        for message in messages:
            print_json_line(to_json(message))
    elif messages:
        rows = [
            (
                SequenceNumber(each.sequence_number),
                each.message_id,
                each.dead_letter_reason,
                each.dead_letter_error_description,
            )
            for each in messages
        ]
        print_table(["number", "message id", "reason", "description"], rows)
    else:
        typer.echo("No dead letters.", err=True)
