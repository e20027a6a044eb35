"""The command group `twinbus pipeline`, the option `--master`, and error reporting for all commands of the group."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Annotated

import typer

from twinbus.cli.output import CommandFailed, CommandGroup, Misuse, fail
from twinbus.model.errors import ServiceBusError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from twinbus.cli.connection import Target

app = typer.Typer(cls=CommandGroup, help="Run jobs on Apache Spark.", no_args_is_help=True)

MasterOption = Annotated[
    str | None,
    typer.Option(
        metavar="URL", help="Spark master: local[2], spark://host:7077, yarn, ... (default: local, all processors)."
    ),
]


@app.callback()
def pipeline() -> None:
    """Run jobs on Apache Spark."""


@contextlib.contextmanager
def reported_errors(command: str) -> Iterator[None]:
    """Report errors that the user can fix in one line, and exit with code 1."""
    from twinbus.pipeline.errors import PipelineError  # noqa: PLC0415  # `serve` starts faster

    try:
        yield
    except CommandFailed as error:
        fail(f"pipeline {command}", error)
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


def single_ca_file(target: Target) -> str | None:
    """Return the CA file for a source or sink, which accept only one. Raise Misuse if there are several."""
    if len(target.ca_files) > 1:
        names = ", ".join(map(str, target.ca_files))
        raise Misuse(f"{names}: this command takes one CA file; join them in one file")
    return str(target.ca_files[0]) if target.ca_files else None


def _spark_failure_reason(error: Exception) -> str | None:
    """Return why Spark failed or is missing; None for other errors. PySpark errors are recognised by module name."""
    if isinstance(error, ImportError):
        names = [cause.name or "" for cause in (error, error.__cause__) if isinstance(cause, ImportError)]
        missing = {name.partition(".")[0] for name in names} & {"pyspark", "pyarrow"}
        return f"{missing.pop()} is not installed: pip install 'twinbus[spark]'" if missing else None
    if type(error).__module__.partition(".")[0] not in ("pyspark", "py4j"):
        return None
    from twinbus.pipeline.spark import failure_reason  # noqa: PLC0415

    return f"Spark failed: {failure_reason(error)}"
