"""`python -m twinbus` is `twinbus`."""

from twinbus.cli.main import app

if __name__ == "__main__":
    app(prog_name="twinbus")
