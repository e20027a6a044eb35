"""The commands that change many messages at once: resubmit, move, delete and purge.

Owns the options, the confirmations and the reports. The operations are in `client.inspector`. A command that is
interrupted or fails reports how many messages it has handled: repeat the command to handle the others.
"""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  # typer reads the annotations
from typing import TYPE_CHECKING, Annotated, Final

import typer

from twinbus.cli.connection import CaFileOption, ConnectionStringOption, ProfileOption, ReadyFileOption, find_target
from twinbus.cli.message.arguments import check_numbers, check_one_of
from twinbus.cli.message.browse import StateOption, check_state
from twinbus.cli.message.entity import DeadLetterOption, EntityArgument, FilterOption, connect, entity_path
from twinbus.cli.message.progress_line import ProgressLine
from twinbus.cli.output import (
    CommandFailed,
    JsonOption,
    Misuse,
    YesOption,
    confirm,
    examples,
    plural,
    print_json,
    run_command,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from twinbus.client import BulkProgress, MessageInspector

    Operation = Callable[[Callable[[BulkProgress], None]], Awaitable[BulkProgress]]

MAX_EDIT_BYTES: Final = 100 * 1_048_576
MAX_REPORTED_NUMBERS: Final = 10
RESUBMIT_EXAMPLES: Final = examples(
    "twinbus message resubmit orders --all",
    "twinbus message resubmit orders --filter \"DeadLetterReason = 'late'\"",
    "twinbus message resubmit orders 17 --edit corrected.json",
)
MOVE_EXAMPLES: Final = examples(
    'twinbus message move orders archive --filter "price < 10"',
    "twinbus message move orders bills --dead-letter --all",
)
DELETE_EXAMPLES: Final = examples(
    "twinbus message delete orders 17 18",
    "twinbus message delete orders -d --filter \"DeadLetterReason = 'test'\" --yes",
)
PURGE_EXAMPLES: Final = examples(
    "twinbus message purge orders --yes",
    "twinbus message purge orders --dead-letter",
    "twinbus message purge orders --state scheduled",
)
NumbersArgument = Annotated[
    list[int] | None, typer.Argument(metavar="NUMBER", help="Sequence numbers, as peek shows them.")
]
AllOption = Annotated[bool, typer.Option("--all", help="All messages.")]
CountOption = Annotated[
    int | None, typer.Option("--count", "-n", metavar="N", min=1, help="At most this many messages.")
]


def resubmit(  # noqa: PLR0913  # one per option
    entity: EntityArgument,
    numbers: NumbersArgument = None,
    *,
    everything: AllOption = False,
    expression: FilterOption = None,
    edit: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Resubmit one message with this content: JSON, as peek --json prints it."),
    ] = None,
    count: CountOption = None,
    connection_string: ConnectionStringOption = None,
    ready_file: ReadyFileOption = None,
    profile: ProfileOption = None,
    ca_file: CaFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Resubmit dead letters: the server removes each from the dead-letter queue and makes it active in one step."""

    async def run() -> None:
        check_one_of(NUMBER=numbers, **{"--all": everything, "--filter": expression})
        chosen = check_numbers(numbers)
        if edit is not None and (chosen is None or len(chosen) > 1):
            raise Misuse("--edit is for a single message: give its sequence number")
        async with connect(find_target(connection_string, ready_file, profile, ca_file)) as factory:
            inspector = factory.create_message_inspector(entity_path(entity, dead_letter=True))
            if edit is not None and chosen is not None:
                new_number = await _resubmit_edited(inspector, chosen[0], edit)
                if as_json:
                    print_json({"done": 1, "new_sequence_number": new_number})
                else:
                    typer.echo(f"Resubmitted message {chosen[0]} as {new_number}.")
                return
            await _run(
                lambda report: inspector.resubmit(chosen, filter=expression, max_count=count, on_progress=report),
                "Resubmitted",
                as_json=as_json,
            )

    run_command("message resubmit", run)


async def _resubmit_edited(inspector: MessageInspector, number: int, file: Path) -> int:
    from twinbus.cli.message.message_json import (  # noqa: PLC0415  # `--help` starts faster
        InvalidMessage,
        from_json,
        without_dead_letter_properties,
    )

    try:
        with file.open("rb") as stream:
            message = without_dead_letter_properties(from_json(stream.read(MAX_EDIT_BYTES)))
    except InvalidMessage as error:
        raise CommandFailed(f"{file}: {error}") from None
    except OSError as error:
        raise CommandFailed(f"{file} cannot be read: {error.strerror}") from None
    return await inspector.resubmit_edited(number, message)


def move(  # noqa: PLR0913  # one per option
    entity: EntityArgument,
    destination: Annotated[str, typer.Argument(metavar="DESTINATION", help="Queue or topic to move messages to.")],
    numbers: NumbersArgument = None,
    *,
    dead_letter: DeadLetterOption = False,
    everything: AllOption = False,
    expression: FilterOption = None,
    count: CountOption = None,
    connection_string: ConnectionStringOption = None,
    ready_file: ReadyFileOption = None,
    profile: ProfileOption = None,
    ca_file: CaFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Move active messages to another queue or topic. Each message is always in exactly one place.

    Messages that the destination refuses are in ENTITY/$Transfer/$DeadLetterQueue.
    """

    async def run() -> None:
        check_one_of(NUMBER=numbers, **{"--all": everything, "--filter": expression})
        chosen, target = check_numbers(numbers), entity_path(destination)
        async with connect(find_target(connection_string, ready_file, profile, ca_file)) as factory:
            inspector = factory.create_message_inspector(entity_path(entity, dead_letter=dead_letter))
            await _run(
                lambda report: inspector.move(target, chosen, filter=expression, max_count=count, on_progress=report),
                "Moved",
                as_json=as_json,
            )

    run_command("message move", run)


def delete(  # noqa: PLR0913  # one per option
    entity: EntityArgument,
    numbers: NumbersArgument = None,
    *,
    dead_letter: DeadLetterOption = False,
    expression: FilterOption = None,
    state: StateOption = None,
    count: CountOption = None,
    yes: YesOption = False,
    connection_string: ConnectionStringOption = None,
    ready_file: ReadyFileOption = None,
    profile: ProfileOption = None,
    ca_file: CaFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete messages by sequence number, in any state, or by a filter. Locked messages are skipped."""

    async def run() -> None:
        check_one_of(NUMBER=numbers, **{"--filter": expression})
        chosen, path = check_numbers(numbers), entity_path(entity, dead_letter=dead_letter)
        if chosen is not None and check_state(state) is not None:
            raise Misuse("--state is for --filter: a sequence number names a message in any state")
        if chosen is None:
            confirm(f"Delete all messages of {path} for which {expression} is true?", is_confirmed=yes)
        async with connect(find_target(connection_string, ready_file, profile, ca_file)) as factory:
            inspector = factory.create_message_inspector(path)
            await _run(
                lambda report: inspector.delete(
                    chosen, filter=expression, state=state, max_count=count, on_progress=report
                ),
                "Deleted",
                as_json=as_json,
            )

    run_command("message delete", run)


def purge(  # noqa: PLR0913  # one per option
    entity: EntityArgument,
    *,
    dead_letter: DeadLetterOption = False,
    state: Annotated[
        str, typer.Option(metavar="active|deferred|scheduled", help="State of the messages to delete.")
    ] = "active",
    yes: YesOption = False,
    connection_string: ConnectionStringOption = None,
    ready_file: ReadyFileOption = None,
    profile: ProfileOption = None,
    ca_file: CaFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete all messages in one state, except locked ones."""

    async def run() -> None:
        check_state(state)
        path = entity_path(entity, dead_letter=dead_letter)
        confirm(f"Delete all {state} messages of {path}?", is_confirmed=yes)
        async with connect(find_target(connection_string, ready_file, profile, ca_file)) as factory:
            progress = await factory.create_message_inspector(path).purge(state)
        if as_json:
            print_json({"done": progress.done_count, "skipped": progress.skipped_count})
        else:
            skipped = f"; {plural(progress.skipped_count, 'locked message')} left" if progress.skipped_count else ""
            typer.echo(f"Deleted {plural(progress.done_count, 'message')}{skipped}.")

    run_command("message purge", run)


async def _run(operation: Operation, verb: str, *, as_json: bool) -> None:
    """Run an operation and report it. Raise CommandFailed if messages were skipped or not found."""
    latest: BulkProgress | None = None
    with ProgressLine() as line:

        def report(progress: BulkProgress) -> None:
            nonlocal latest
            latest = progress
            searched = f" of {progress.scanned_count:,} searched" if progress.scanned_count else ""
            line.show(f"{verb.lower()} {progress.done_count:,}{searched}")

        try:
            progress = await operation(report)
        except BaseException:
            line.clear()
            if latest is not None:
                typer.echo(f"{verb} {plural(latest.done_count, 'message')} before the command ended.", err=True)
            raise
    if as_json:
        unavailable = sorted(progress.unavailable_fragments)
        print_json({"done": progress.done_count, "skipped": progress.skipped, "unavailable_fragments": unavailable})
    else:
        typer.echo(f"{verb} {plural(progress.done_count, 'message')}.")
    problems = []
    if progress.skipped:
        shown = ", ".join(map(str, progress.skipped[:MAX_REPORTED_NUMBERS]))
        more = ", ..." if len(progress.skipped) > MAX_REPORTED_NUMBERS else ""
        verb = "is" if len(progress.skipped) == 1 else "are"
        skipped = plural(len(progress.skipped), "message")
        problems.append(f"skipped {skipped} that {verb} locked or gone: {shown}{more}")
    if progress.unavailable_fragments:
        problems.append(f"fragments {sorted(progress.unavailable_fragments)} do not respond: repeat the command later")
    if problems:
        raise CommandFailed("; ".join(problems))
