"""The operation by which an exclusive receiver says which messages it does not want for now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twinbus.model.errors import InvalidArgument, NotAllowed
from twinbus.server.operations.outcomes import success

if TYPE_CHECKING:
    from twinbus.server.operations.arguments import Arguments
    from twinbus.server.operations.subject import RequestContext
    from twinbus.server.requests import OnReply

MAX_WITHHELD_VALUES: Final = 1_000
MAX_WITHHELD_CHARACTERS: Final = 65_536
"""Of all values together."""


def withhold(context: RequestContext, arguments: Arguments, on_reply: OnReply) -> None:
    """Skip messages whose application property has one of these values, and no others, until told otherwise."""
    context.check_is_exclusive_receiver()
    name, values = arguments.text("property"), arguments.text_list("values", max_items=MAX_WITHHELD_VALUES)
    if len(name) + sum([len(value) for value in values]) > MAX_WITHHELD_CHARACTERS:
        raise InvalidArgument(f"property and values have more than {MAX_WITHHELD_CHARACTERS} characters together")
    line = context.fragment.dispatcher
    if context.fragment.has_sessions:
        raise NotAllowed(f"'{context.path}' has sessions: its messages cannot be withheld")
    line.withhold(name, values)
    line.dispatch()
    on_reply(success({}))
