"""Errors of the namespace as AMQP writes them.

Owns: where what the condition cannot say is told. Conditions are those that clients know and act upon; so the fragment
that failed, what of a batch is stored, that a disk is full, and that nothing was stored, stand in `info`, where nobody
is disturbed by them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twinbus.amqp.performatives import Error
from twinbus.amqp.types import Symbol
from twinbus.broker.ports.outage import SilentOutage
from twinbus.model.errors import DiskFull, PartlyStored

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.amqp.link import Link
    from twinbus.broker.clock import Clock
    from twinbus.model.errors import ServiceBusError


def send_error(owner: object, error: ServiceBusError, send: Callable[[], None]) -> None:
    """Answer with an error: at once, or when the silence is over if `owner` is still there then."""
    if isinstance(error, SilentOutage):
        error.outage.defer_reply(owner, send)
    else:
        send()


class UnansweredLink:
    """A link that is neither accepted nor refused while its entity is silent."""

    def __init__(self, link: Link, clock: Clock) -> None:
        """Nothing is done: that is what it is for."""
        self.link = link
        self.path = ""
        self.last_used_s = clock.monotonic_s()

    @property
    def is_busy(self) -> bool:
        """The client waits."""
        return True


INFO_FRAGMENT: Final = Symbol("twinbus:fragment")
INFO_STORED: Final = Symbol("twinbus:stored")
"""The positions of the stored messages in a batch."""
INFO_UNSURE: Final = Symbol("twinbus:unsure")
"""The positions of messages in a batch that may be stored nevertheless."""
INFO_ERROR: Final = Symbol("twinbus:error")
"""The name of an error whose condition others have, too."""
INFO_MAY_HAVE_HAPPENED: Final = Symbol("twinbus:may-have-happened")
"""Whether the operation may have been carried out, where more is known than the error's class says."""


def to_amqp_error(error: ServiceBusError) -> Error:
    """For a rejected message, a detach or a close."""
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
