"""Output of the commands: errors in one line, exit codes, JSON, and tables that fit the terminal.

Owns the form of everything that a command prints. The commands own the texts. Texts that may come from a peer are
printed without control characters, so that a message or a name cannot change the terminal.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import inspect
import re
import shutil
import signal
import sys
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn, TypeVar, overload

import typer
from typer.core import TyperGroup

from twinbus.model.errors import InternalFault, ServiceBusError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Sequence

T = TypeVar("T")

EXIT_FAILED: Final = 1
"""The namespace cannot be reached, refuses the request, or does not have the entity."""
EXIT_MISUSE: Final = 2
"""Invalid options or arguments."""
EXIT_INTERRUPTED: Final = 130
DEFAULT_COLUMNS: Final = 80
"""Width of tables if the output is not a terminal."""
_MAX_PURPOSE: Final = 200
_GAP: Final = "  "
_MIN_COLUMN: Final = 4
_CERTIFICATE_ADVICE: Final = "give the CA certificate of the server with --ca-file FILE, or use its --ready-file"
_REQUEST: Final = re.compile(r"^(?:GET|PUT|POST|DELETE) of '[^']*': (?!status [0-9])")
_TRACKING_ID: Final = re.compile(r"\.? TrackingId:[0-9A-Za-z-]+")
_ONE_REFUSED: Final = r"\[Errno 111\] (?:Connect call failed \([^)]*\)|Connection refused)"
_REFUSED: Final = re.compile(rf"(?:Multiple exceptions: )?{_ONE_REFUSED}(?:, {_ONE_REFUSED})*")

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


class CommandFailed(Exception):
    """A command cannot do what was asked. The text says why, and what to do."""

    def __init__(self, text: str, exit_code: int = EXIT_FAILED) -> None:
        super().__init__(text)
        self.exit_code = exit_code


class SequenceNumber(int):
    """A number that tables show without thousands separators, so that it can be copied into a command."""


class Misuse(CommandFailed):
    """Options or arguments are invalid."""

    def __init__(self, text: str) -> None:
        super().__init__(text, EXIT_MISUSE)


class CommandGroup(TyperGroup):
    """Group of commands whose help shows the first sentence of each command in full, on several lines if necessary."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401  # typer has its own copy of click
        """Write the names and the purposes of the commands."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, one.get_short_help_str(_MAX_PURPOSE)) for name, one in commands if one and not one.hidden]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def examples(*commands: str) -> str:
    """Return the end of a help text with example commands, which are never wrapped."""
    title = "Example:" if len(commands) == 1 else "Examples:"
    return "\n".join((title, "", "\b", *(f"  {command}" for command in commands)))


# --- running a command ------------------------------------------------------------------------------------------------


@overload
def run_command(name: str, function: Callable[[], Coroutine[Any, Any, T]]) -> T: ...
@overload
def run_command(name: str, function: Callable[[], T]) -> T: ...
def run_command(name: str, function: Callable[[], Any]) -> Any:
    """Call `function`, and run the coroutine if it returns one. Report a failure in one line, and exit with its code.

    CommandFailed, ServiceBusError and OSError become the line `twinbus NAME: text` on stderr, without a traceback.
    """
    try:
        result = function()
        return asyncio.run(result) if inspect.iscoroutine(result) else result
    except KeyboardInterrupt:
        typer.echo(f"twinbus {name}: interrupted", err=True)
        raise typer.Exit(EXIT_INTERRUPTED) from None
    except BrokenPipeError:
        raise  # the reader of the output has ended, as `head` does: click exits without a message
    except (CommandFailed, ServiceBusError, OSError) as error:
        fail(name, error)


def confirm(question: str, *, is_confirmed: bool) -> None:
    """Ask on the terminal, unless --yes was given. Raise Misuse without one, CommandFailed if the answer is no."""
    if is_confirmed:
        return
    if not sys.stdin.isatty():
        raise Misuse(f"{question} There is no terminal to ask: confirm with --yes")
    # asyncio's own handler cancels the task, which cannot end while `input` waits
    previous_handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        is_confirmed = typer.confirm(question, err=True)
    except typer.Abort:  # Ctrl-C or Ctrl-D
        typer.echo("", err=True)
        raise CommandFailed("interrupted; nothing was changed", EXIT_INTERRUPTED) from None
    finally:
        signal.signal(signal.SIGINT, previous_handler)
    if not is_confirmed:
        raise CommandFailed("nothing was changed")


def fail(name: str, error: Exception) -> NoReturn:
    """Print the error in one line on stderr, and exit with its code (default: 1)."""
    typer.echo(f"twinbus {name}: {describe_error(error)}", err=True)
    raise typer.Exit(error.exit_code if isinstance(error, CommandFailed) else EXIT_FAILED)


def describe_error(error: Exception) -> str:
    """Return the text of an error in one line, with advice if the server is down or its certificate is not trusted.

    The text is that of the user's command, without the HTTP request and its tracking id, unless the server has failed.
    """
    text = " ".join(printable(str(error), keep_newlines=True).split()) or type(error).__name__
    if not isinstance(error, InternalFault):
        text = _TRACKING_ID.sub("", _REQUEST.sub("", text))
    text = _REFUSED.sub("the connection is refused; is the server running?", text)
    if "CERTIFICATE_VERIFY_FAILED" in text and "--ca-file" not in text:
        return f"{text.rstrip('.')}: {_CERTIFICATE_ADVICE}"
    return text


# --- JSON -------------------------------------------------------------------------------------------------------------


def print_json(value: object) -> None:
    """Print a value as JSON, indented: dicts, lists, dataclasses, structs; times in ISO 8601, UTC."""
    import msgspec  # noqa: PLC0415  # `--help` starts faster

    typer.echo(msgspec.json.format(_encode(value), indent=2))


def print_json_line(value: object) -> None:
    """Print a value as JSON in one line and flush, for commands that print values as they arrive."""
    typer.echo(_encode(value))
    sys.stdout.flush()


def _encode(value: object) -> bytes:
    import msgspec  # noqa: PLC0415

    return msgspec.json.encode(_in_utc(msgspec.to_builtins(value, builtin_types=(dt.datetime,), enc_hook=str)))


def _in_utc(value: Any) -> Any:  # noqa: ANN401  # any JSON value
    """Return the value with all times in UTC; times without a zone are in UTC already."""
    if isinstance(value, dict):
        return {key: _in_utc(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_in_utc(item) for item in value]
    if isinstance(value, dt.datetime):
        return value.replace(tzinfo=dt.UTC) if value.tzinfo is None else value.astimezone(dt.UTC)
    return value


# --- tables -----------------------------------------------------------------------------------------------------------


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table no wider than the terminal (80 columns without a terminal)."""
    for line in format_table(columns, rows, shutil.get_terminal_size((DEFAULT_COLUMNS, 24)).columns):
        typer.echo(line)


def format_table(columns: Sequence[str], rows: Iterable[Sequence[object]], width: int) -> list[str]:
    """Return the lines of a table no wider than `width`.

    The widest text columns are cut with an ellipsis. Columns of numbers and times are never cut before text. Numbers
    are aligned to the right. None is printed as an empty cell.
    """
    values = [list(row) for row in rows]
    is_number, is_time = (
        [
            bool(values) and all(is_kind(row[index]) or row[index] is None for row in values)
            for index in range(len(columns))
        ]
        for is_kind in (_is_number, _is_time)
    )
    cells = [[name.upper() for name in columns], *([_cell(value) for value in row] for row in values)]
    widths = [max(_width(row[index]) for row in cells) for index in range(len(columns))]
    _fit(widths, [number or time for number, time in zip(is_number, is_time, strict=True)], width)
    return [
        _GAP.join(_pad(text, widths[index], right=is_number[index]) for index, text in enumerate(row)).rstrip()
        for row in cells
    ]


def printable(text: str, *, keep_newlines: bool = False) -> str:
    """Return the text with control characters escaped."""
    if text.isprintable():
        return text
    return "".join(
        character
        if character.isprintable() or (keep_newlines and character in "\n\t")
        else character.encode("unicode_escape").decode()
        for character in text
    )


def format_time(moment: dt.datetime | None) -> str | None:
    """Return a time for tables: UTC, to the second."""
    return None if moment is None else f"{moment:%Y-%m-%d %H:%M:%S}"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_time(value: object) -> bool:
    return isinstance(value, dt.datetime)


def plural(count: int, noun: str) -> str:
    """Return a count with its noun, for example "1 sender" or "2 senders"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, SequenceNumber):
        return str(value)
    if isinstance(value, int | float):
        return f"{value:,}"
    if isinstance(value, dt.datetime):
        return format_time(value) or ""
    return printable(str(value))


def _fit(widths: list[int], is_rigid: Sequence[bool], available: int) -> None:
    """Shrink the widest text columns until the table fits; then the rigid columns, those of numbers and times."""
    excess = sum(widths) + len(_GAP) * (len(widths) - 1) - available
    for kind in (False, True):
        while excess > 0:
            candidates = [
                index for index, width in enumerate(widths) if is_rigid[index] is kind and width > _MIN_COLUMN
            ]
            if not candidates:
                break
            widths[max(candidates, key=lambda index: widths[index])] -= 1
            excess -= 1


def _pad(text: str, width: int, *, right: bool) -> str:
    if _width(text) > width:
        from rich.cells import set_cell_size  # noqa: PLC0415

        text = f"{set_cell_size(text, width - 1).rstrip()}…"
    padding = " " * (width - _width(text))
    return padding + text if right else text + padding


def _width(text: str) -> int:
    """Return the number of terminal columns, which is not the number of characters for East Asian text."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len  # noqa: PLC0415

    return cell_len(text)
