"""The commands in one place, and what they share."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Annotated

import typer

from twinbus.model.errors import ServiceBusError

if TYPE_CHECKING:
    from collections.abc import Iterator

app = typer.Typer(help="Jobs on Apache Spark.", no_args_is_help=True)

Master = Annotated[
    str | None,
    typer.Option(
        metavar="URL", help="Where Spark runs: local[2], spark://host:7077, yarn, ...; all processors of this machine."
    ),
]


@app.callback()
def pipeline() -> None:
    """Jobs on Apache Spark."""


@contextlib.contextmanager
def plain_errors(command: str) -> Iterator[None]:
    """What the user can mend is said in a sentence; exit code 1."""
    from twinbus.pipeline.errors import PipelineError  # noqa: PLC0415  # `serve` starts sooner without

    try:
        yield
    except (PipelineError, ServiceBusError, ValueError, OSError) as error:
        typer.echo(f"twinbus pipeline {command}: {error}", err=True)
        raise typer.Exit(1) from error
    except KeyboardInterrupt:
        typer.echo(f"twinbus pipeline {command}: stopped", err=True)
        raise typer.Exit(130) from None
