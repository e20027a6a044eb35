"""Conversion of namespace errors to AMQP errors.

Owns: the keys of an error's `info`. Errors have only conditions that clients know and act upon. Additional details are
in `info`, where clients can ignore them: the fragment that failed, which messages in a batch are stored, that a disk is
full, and whether the operation may have happened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twinbus.amqp.codec.performatives import Error
from twinbus.amqp.types import Symbol
from twinbus.broker.ports.outage import SilentOutage
from twinbus.model.errors import DiskFull, PartlyStored

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.amqp.link import Link
    from twinbus.broker.clock import Clock
    from twinbus.model.errors import ServiceBusError


def send_error(owner: object, error: ServiceBusError, send: Callable[[], None]) -> None:
    """Send an error by calling `send`: at once, or after a silent outage if `owner` still exists then."""
    if isinstance(error, SilentOutage):
        error.outage.defer_reply(owner, send)
    else:
        send()


class UnansweredLink:
    """A link that is neither accepted nor refused, because its entity has a silent outage."""

    def __init__(self, link: Link, clock: Clock) -> None:
        """Create a handler that leaves the link unanswered."""
        self.link = link
        self.path = ""
        self.last_used_s = clock.monotonic_s()

    @property
    def is_busy(self) -> bool:
        """Always True, because the client is waiting for a response."""
        return True


INFO_FRAGMENT: Final = Symbol("twinbus:fragment")
INFO_STORED: Final = Symbol("twinbus:stored")
"""The positions of the stored messages in a batch."""
INFO_UNSURE: Final = Symbol("twinbus:unsure")
"""The positions of messages in a batch that may have been stored despite the error."""
INFO_ERROR: Final = Symbol("twinbus:error")
"""The name of an error that shares its condition with other errors."""
INFO_MAY_HAVE_HAPPENED: Final = Symbol("twinbus:may-have-happened")
"""Whether the operation may have happened; present only if the value differs from the default of the error's class."""


def to_amqp_error(error: ServiceBusError) -> Error:
    """Return the AMQP error for a rejected message, a detach or a close."""
    info: dict[str, object] = {}
    if isinstance(error, DiskFull):
        info[INFO_ERROR] = DiskFull.__name__
    if error.fragment is not None:
        info[INFO_FRAGMENT] = error.fragment
    if isinstance(error, PartlyStored):
        info[INFO_STORED] = list(error.stored)
        if error.unsure is not None:
            info[INFO_UNSURE] = list(error.unsure)
    if error.may_have_happened is not type(error).may_have_happened:
        info[INFO_MAY_HAVE_HAPPENED] = error.may_have_happened
    return Error(condition=Symbol(error.condition), description=str(error), info=info or None)
