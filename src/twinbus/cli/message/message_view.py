"""Messages for people: a headline, the properties and the body, without control characters.

Owns this form, and the choice between text and hexadecimal bodies. JSON is in `message_json`.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Annotated, Final

import typer

from twinbus.cli.output import SequenceNumber, format_time, print_table, printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinbus.model.message import BrokeredMessage

HEX_COLUMNS: Final = 16
MAX_AUTO_HEX_BYTES: Final = 256
"""Bytes of a binary body that are printed unless --body hex is given."""
MAX_TABLE_BODY: Final = 200
MAX_TABLE_ID: Final = 18
MAX_TABLE_LABEL: Final = 12
"""Columns of ids and labels, so that a table of 80 columns has room for times and bodies."""


class BodyFormat(Enum):
    """How a body is printed."""

    AUTO = "auto"
    TEXT = "text"
    HEX = "hex"
    NONE = "none"


BodyOption = Annotated[
    BodyFormat,
    typer.Option("--body", metavar="auto|text|hex|none", help="How to print bodies; auto: text if it is UTF-8."),
]


def print_message(message: BrokeredMessage, body_format: BodyFormat) -> None:
    """Print a message: a headline, a line for each property, and the body."""
    session = None if message.session_id is None else f"session {message.session_id}"
    parts = (f"#{message.sequence_number}", format_time(message.enqueued_time_utc), message.message_id, message.label)
    typer.echo("  ".join(printable(str(part)) for part in (*parts, session, _state(message)) if part is not None))
    for name, value in message.properties.items():
        typer.echo(f"  {printable(name)}: {printable(str(value))}")
    text = body_text(message, body_format)
    if text:
        typer.echo(text)
    typer.echo("")


def _state(message: BrokeredMessage) -> str | None:
    """Return the state of a message that is not active, or the reason why it was dead-lettered."""
    if message.state == "scheduled":
        return f"scheduled for {format_time(message.scheduled_enqueue_time_utc)}"
    if message.dead_letter_reason is not None:
        reasons = (message.dead_letter_reason, message.dead_letter_error_description)
        return f"dead-lettered: {', '.join(filter(None, reasons))}"
    return None if message.state == "active" else message.state


def body_text(message: BrokeredMessage, body_format: BodyFormat = BodyFormat.AUTO) -> str:
    """Return the body for people; control characters are escaped, and bytes that are not text are hexadecimal."""
    body = message.body
    if body_format is BodyFormat.NONE:
        return ""
    if not isinstance(body, bytes):
        return printable(body if isinstance(body, str) else repr(body), keep_newlines=True)
    if body_format is not BodyFormat.HEX:
        try:
            return printable(body.decode(), keep_newlines=True)
        except UnicodeDecodeError:
            if body_format is BodyFormat.TEXT:
                return printable(body.decode(errors="replace"), keep_newlines=True)
    shown = body if body_format is BodyFormat.HEX else body[:MAX_AUTO_HEX_BYTES]
    lines = [shown[start : start + HEX_COLUMNS].hex(" ") for start in range(0, len(shown), HEX_COLUMNS)]
    if len(shown) < len(body):
        lines.append(f"... {len(body):,} bytes in all: see them with --body hex")
    return "\n".join(lines)


def print_messages(messages: Sequence[BrokeredMessage]) -> None:
    """Print messages as a table, one line for each; a state or label column only if needed."""
    columns: dict[str, list[object]] = {
        "number": [SequenceNumber(message.sequence_number) for message in messages],
        "enqueued (UTC)": [message.enqueued_time_utc for message in messages],
    }
    if any(message.state != "active" for message in messages):
        columns["state"] = [message.state for message in messages]
    columns["message id"] = [_cut(str(message.message_id), MAX_TABLE_ID) for message in messages]
    if any(message.label for message in messages):
        columns["subject"] = [_cut(message.label or "", MAX_TABLE_LABEL) for message in messages]
    columns["body"] = [" ".join(body_text(message)[:MAX_TABLE_BODY].split()) for message in messages]
    print_table(list(columns), list(zip(*columns.values(), strict=True)))


def _cut(text: str, columns: int) -> str:
    return text if len(text) <= columns else f"{text[: columns - 1]}…"
