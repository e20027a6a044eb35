"""The commands for scheduled messages: cancel and reschedule. `peek --state scheduled` lists them.

Owns the options and the output.
"""

from __future__ import annotations

import datetime as dt  # noqa: TC003  # typer reads the annotations
from pathlib import Path  # noqa: TC003  # typer reads the annotations
from typing import Annotated, Final

import typer

from twinbus.cli.connection import CaFileOption, ConnectionStringOption, ProfileOption, ReadyFileOption, find_target
from twinbus.cli.message.arguments import check_numbers, parse_time, scheduled_time
from twinbus.cli.message.entity import EntityArgument, connect, entity_path
from twinbus.cli.output import CommandFailed, JsonOption, Misuse, examples, plural, print_json, run_command
from twinbus.cli.units import parse_duration

MAX_EDIT_BYTES: Final = 100 * 1_048_576
CANCEL_EXAMPLES: Final = examples(
    "twinbus message peek orders --state scheduled",
    "twinbus message cancel orders 17 18",
)
RESCHEDULE_EXAMPLES: Final = examples(
    "twinbus message reschedule orders 17 --at 2030-12-31T08:00:00Z",
    "twinbus message reschedule orders 17 --edit corrected.json",
)


def cancel(
    entity: EntityArgument,
    numbers: Annotated[list[int], typer.Argument(metavar="NUMBER", help="Sequence numbers of scheduled messages.")],
    *,
    connection_string: ConnectionStringOption = None,
    ready_file: ReadyFileOption = None,
    profile: ProfileOption = None,
    ca_file: CaFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Cancel scheduled messages: all of them, or none if one message is not scheduled."""

    async def run() -> None:
        chosen = check_numbers(numbers) or []
        async with connect(find_target(connection_string, ready_file, profile, ca_file)) as factory:
            await factory.create_message_inspector(entity_path(entity)).cancel_scheduled(*chosen)
        if as_json:
            print_json({"cancelled": chosen})
        else:
            typer.echo(f"Cancelled {plural(len(chosen), 'message')}.")

    run_command("message cancel", run)


def reschedule(  # noqa: PLR0913  # one per option
    entity: EntityArgument,
    number: Annotated[int, typer.Argument(metavar="NUMBER", min=1, help="Sequence number of a scheduled message.")],
    *,
    at: Annotated[
        dt.datetime | None,
        typer.Option(metavar="TIME", parser=parse_time, help="New time (ISO 8601; UTC without a zone)."),
    ] = None,
    in_ms: Annotated[
        int | None,
        typer.Option("--in", metavar="DURATION", parser=parse_duration, help="New time, from now on."),
    ] = None,
    edit: Annotated[
        Path | None, typer.Option(metavar="FILE", help="New content: JSON, as peek --json prints it.")
    ] = None,
    connection_string: ConnectionStringOption = None,
    ready_file: ReadyFileOption = None,
    profile: ProfileOption = None,
    ca_file: CaFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Change the time or content of a scheduled message. The message gets a new sequence number and is never lost."""

    async def run() -> None:
        from twinbus.cli.message.message_json import InvalidMessage, from_json  # noqa: PLC0415

        when = scheduled_time(at, in_ms)
        if when is None and edit is None:
            raise Misuse("give --at, --in or --edit")
        message = None
        if edit is not None:
            try:
                message = from_json(edit.read_bytes()[:MAX_EDIT_BYTES])
            except InvalidMessage as error:
                raise CommandFailed(f"{edit}: {error}") from None
            except OSError as error:
                raise CommandFailed(f"{edit} cannot be read: {error.strerror}") from None
            when = when or message.scheduled_enqueue_time_utc
        async with connect(find_target(connection_string, ready_file, profile, ca_file)) as factory:
            inspector = factory.create_message_inspector(entity_path(entity))
            new_number = await inspector.change_scheduled(number, when=when, message=message)
        if as_json:
            print_json({"sequence_number": new_number})
        else:
            typer.echo(f"Message {number} is now message {new_number}.")

    run_command("message reschedule", run)
