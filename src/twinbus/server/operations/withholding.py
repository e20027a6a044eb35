"""The operation by which an exclusive receiver says which messages it does not want for now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twinbus.model.errors import InvalidArgument, NotAllowed
from twinbus.server.operations.outcomes import success

if TYPE_CHECKING:
    from twinbus.server.operations.arguments import Arguments
    from twinbus.server.operations.subject import Subject
    from twinbus.server.requests import Reply

MOST_VALUES: Final = 1_000
MOST_CHARACTERS: Final = 65_536
"""Of all values together."""


def withhold(subject: Subject, arguments: Arguments, reply: Reply) -> None:
    """Skip messages whose application property has one of these values, and no others, until told otherwise."""
    subject.check_exclusive()
    name, values = arguments.text("property"), arguments.texts("values", most=MOST_VALUES)
    if len(name) + sum([len(value) for value in values]) > MOST_CHARACTERS:
        raise InvalidArgument(f"property and values have more than {MOST_CHARACTERS} characters together")
    line = subject.fragment.line
    if subject.fragment.has_sessions:
        raise NotAllowed(f"'{subject.path}' has sessions: its messages cannot be withheld")
    line.withhold(name, values)
    line.dispatch()
    reply(success({}))
