"""`twinbus`: the commands in one place.

Owns: the list of the commands, and `--version`. What a command takes and does is in the file of its name.
"""

from __future__ import annotations

from importlib import resources
from typing import Annotated

import typer

from twinbus import version_and_build
from twinbus.cli import drain, key, pair  # noqa: F401  # drain is a command of pair
from twinbus.cli.pipeline import app as pipeline
from twinbus.cli.pipeline import audit, capture, costs, replay, syphon  # noqa: F401  # commands of pipeline
from twinbus.cli.rehearse import rehearse
from twinbus.cli.serve import serve

config_app = typer.Typer(help="About configuration files.", no_args_is_help=True)


@config_app.callback()
def config() -> None:
    """About configuration files."""


@config_app.command()
def sample() -> None:
    """Print a file for `twinbus serve --config` that has every setting in it, with its default."""
    typer.echo(resources.files("twinbus.server.config").joinpath("sample.toml").read_text("utf-8"), nl=False)


app = typer.Typer(
    help="A Service Bus you run yourself, that goes on accepting messages when it is down.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # an error in a frame cannot be read in a log, nor found by its words
    pretty_exceptions_enable=False,  # they show local variables, and with them keys
)
app.command()(serve)
app.command()(rehearse)
app.add_typer(pair.app, name="pair")
app.add_typer(key.app, name="key")
app.add_typer(config_app, name="config")
app.add_typer(pipeline.app, name="pipeline")


def _show_version(is_requested: bool) -> None:  # noqa: FBT001  # typer calls it so
    if is_requested:
        typer.echo(f"twinbus {version_and_build()}")
        raise typer.Exit


@app.callback()
def twinbus(
    *,
    _version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_show_version,
            is_eager=True,
            help="Show the version, whether twinbus is compiled, and exit.",
        ),
    ] = False,
) -> None:
    """Options that come before a command."""
