"""Entry point of `python -m twinbus`, which runs the `twinbus` command."""

from twinbus.cli.main import app

if __name__ == "__main__":
    app(prog_name="twinbus")
