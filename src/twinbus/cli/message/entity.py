"""The entity that a command works on: its path, and a connection to its namespace.

Owns the grammar of paths: `orders`, `topic/Subscriptions/name`, with --dead-letter for the dead-letter queue. A path
such as `topic/name` is the path of a queue, because names of queues may contain slashes.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Final

import typer

from twinbus.cli.output import CommandFailed, Misuse

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from twinbus.cli.connection import Target
    from twinbus.client import MessagingFactory

DEAD_LETTER_SUFFIX: Final = "/$DeadLetterQueue"
OPERATION_TIMEOUT_S: Final = 30.0
EntityArgument = Annotated[
    str, typer.Argument(metavar="ENTITY", help="Queue, topic, or subscription (TOPIC/Subscriptions/NAME).")
]
DeadLetterOption = Annotated[bool, typer.Option("--dead-letter", "-d", help="Use the dead-letter queue of the entity.")]
FilterOption = Annotated[
    str | None,
    typer.Option(
        "--filter",
        metavar="SQL",
        help='Only messages for which this condition is true, as in subscription rules: "price > 100 AND sys.Label ='
        " 'paid'\".",
        show_default=False,
    ),
]


def entity_path(entity: str, *, dead_letter: bool = False) -> str:
    """Return the path of an entity or of its dead-letter queue. Raise Misuse if the path is empty."""
    path = entity.strip("/")
    if not path:
        raise Misuse("ENTITY is empty: give the path of a queue, topic or subscription")
    has_suffix = path.lower().endswith(DEAD_LETTER_SUFFIX.lower())
    return path + DEAD_LETTER_SUFFIX if dead_letter and not has_suffix else path


@asynccontextmanager
async def connect(target: Target) -> AsyncIterator[MessagingFactory]:
    """Connect to a namespace. Raise CommandFailed if its connection string is invalid."""
    from twinbus.client import MessagingFactory  # noqa: PLC0415  # `--help` starts faster

    try:
        factory = MessagingFactory.from_connection_string(
            target.connection_string, tls=target.tls_context(), operation_timeout=OPERATION_TIMEOUT_S
        )
    except ValueError as error:
        raise CommandFailed(f"{target.source}: {error}") from None
    async with factory:
        yield factory
