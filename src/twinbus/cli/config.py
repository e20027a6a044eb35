"""`twinbus config`: about configuration files.

Owns: what is printed. What the files mean is in `server.config`.
"""

from __future__ import annotations

from importlib import resources

import typer

config_app = typer.Typer(help="About configuration files.", no_args_is_help=True)


@config_app.callback()
def config() -> None:
    """About configuration files."""


@config_app.command()
def sample() -> None:
    """Print a file for `twinbus serve --config` that has every setting in it, with its default."""
    typer.echo(resources.files("twinbus.server.config").joinpath("sample.toml").read_text("utf-8"), nl=False)
