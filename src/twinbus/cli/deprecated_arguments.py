"""Connection strings as arguments, which commands took before they had --ready-file and --profile.

Owns how such an argument becomes an option, and the warning: other users of the machine can read the arguments of a
process. The options are in `connection`.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

import typer
from typer.core import TyperCommand

_START: Final = "endpoint="
_WARNING: Final = (
    "a connection string in an argument can be read by other users: use --ready-file, --profile or "
    "TWINBUS_CONNECTION_STRING"
)


class CommandWithConnectionStrings(TyperCommand):
    """Command that accepts connection strings as its first arguments."""

    string_options: ClassVar[tuple[str, ...]] = ()
    """The options that replace these arguments, in order."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401  # typer has its own copy of click
        """Turn connection strings among the arguments into options, and warn."""
        with_value = {name for one in self.params if not getattr(one, "is_flag", False) for name in one.opts}
        kept: list[str] = []
        strings: list[str] = []
        for number, text in enumerate(args):
            is_value = number > 0 and args[number - 1] in with_value
            is_string = not is_value and text.lower().startswith(_START)
            (strings if is_string and len(strings) < len(self.string_options) else kept).append(text)
        if strings:
            typer.echo(f"{ctx.command_path}: {_WARNING}", err=True)
        options = zip(self.string_options, strings, strict=False)
        parsed: list[str] = super().parse_args(ctx, [*(word for option in options for word in option), *kept])
        return parsed


def accepting(*options: str) -> type[TyperCommand]:
    """Return a class for a command that accepts connection strings as arguments instead of `options`."""
    return type("CommandWithConnectionStrings", (CommandWithConnectionStrings,), {"string_options": options})
