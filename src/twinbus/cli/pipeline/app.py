"""The commands in one place, and what they share."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Annotated

import typer

from twinbus.model.errors import ServiceBusError

if TYPE_CHECKING:
    from collections.abc import Iterator

app = typer.Typer(help="Jobs on Apache Spark.", no_args_is_help=True)

MasterOption = Annotated[
    str | None,
    typer.Option(
        metavar="URL", help="Where Spark runs: local[2], spark://host:7077, yarn, ...; all processors of this machine."
    ),
]


@app.callback()
def pipeline() -> None:
    """Jobs on Apache Spark."""


@contextlib.contextmanager
def reported_errors(command: str) -> Iterator[None]:
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
    except Exception as error:
        reason = _spark_failure_reason(error)
        if reason is None:
            raise
        typer.echo(f"twinbus pipeline {command}: {reason}", err=True)
        raise typer.Exit(1) from error


def _spark_failure_reason(error: Exception) -> str | None:
    """Why Spark failed, or that it is not there; None of what is none of its errors. It is known by the name of it."""
    if isinstance(error, ImportError):
        names = [one.name or "" for one in (error, error.__cause__) if isinstance(one, ImportError)]
        missing = {name.partition(".")[0] for name in names} & {"pyspark", "pyarrow"}
        return f"{missing.pop()} is not installed: pip install 'twinbus[spark]'" if missing else None
    if type(error).__module__.partition(".")[0] not in ("pyspark", "py4j"):
        return None
    from twinbus.pipeline.spark import failure_reason  # noqa: PLC0415

    return f"Spark gave up: {failure_reason(error)}"
