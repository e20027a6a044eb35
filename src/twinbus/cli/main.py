"""The command `twinbus`.

Owns the list of subcommands, and `--version`. Each subcommand is in the file of its name.
"""

from __future__ import annotations

from importlib import resources
from typing import Annotated

import typer

from twinbus import version_and_build
from twinbus.cli import connections, drain, key, pair, profile, token, top  # noqa: F401  # drain is a command of pair
from twinbus.cli.deprecated_arguments import accepting
from twinbus.cli.entity import app as entity
from twinbus.cli.entity import create, show, transfer  # noqa: F401  # commands of entity
from twinbus.cli.message.app import app as message
from twinbus.cli.output import CommandGroup, examples
from twinbus.cli.pipeline import app as pipeline
from twinbus.cli.pipeline import audit, capture, costs, replay, syphon  # noqa: F401  # commands of pipeline
from twinbus.cli.rehearse import EXAMPLES, rehearse
from twinbus.cli.serve import serve

config_app = typer.Typer(cls=CommandGroup, help="Work with configuration files.", no_args_is_help=True)


@config_app.callback()
def config() -> None:
    """Work with configuration files."""


@config_app.command(epilog=examples("twinbus config sample > twinbus.toml"))
def sample() -> None:
    """Print a configuration file for `twinbus serve --config` with every setting and its default."""
    typer.echo(resources.files("twinbus.server.config").joinpath("sample.toml").read_text("utf-8"), nl=False)


app = typer.Typer(
    cls=CommandGroup,
    help="A Service Bus that you run yourself. While it is down, its senders keep working.",
    no_args_is_help=True,
    rich_markup_mode=None,  # boxes around errors make logs hard to read and to search
    pretty_exceptions_enable=False,  # typer's tracebacks print local variables, which may hold keys
)
app.command(epilog=examples("twinbus serve contoso --data twinbus-data", "twinbus serve --config twinbus.toml"))(serve)
app.command(cls=accepting("--admin-connection-string"), epilog=EXAMPLES)(rehearse)
app.add_typer(entity.app, name="entity")
app.add_typer(pair.app, name="pair")
app.add_typer(key.app, name="key")
app.add_typer(connections.app, name="connections")
app.command(epilog=top.EXAMPLES)(top.top)
app.add_typer(profile.app, name="profile")
app.command(epilog=token.EXAMPLES)(token.token)
app.add_typer(message, name="message")
app.add_typer(config_app, name="config")
app.add_typer(pipeline.app, name="pipeline")


def _show_version(is_requested: bool) -> None:  # noqa: FBT001  # the signature that typer calls
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
            help="Show the version and whether twinbus is compiled, then exit.",
        ),
    ] = False,
) -> None:
    """Handle the options before the subcommand."""
