"""Errors of the namespace as AMQP writes them.

Owns: where what the condition cannot say is told. Conditions are those that clients know and act upon; so the fragment
that failed, what of a batch is stored, that a disk is full, and that nothing was stored, stand in `info`, where nobody
is disturbed by them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twinbus.amqp.performatives import Error
from twinbus.amqp.types import Symbol
from twinbus.model.errors import DiskFull, PartlyStored

if TYPE_CHECKING:
    from twinbus.model.errors import ServiceBusError

FRAGMENT: Final = Symbol("twinbus:fragment")
STORED: Final = Symbol("twinbus:stored")
"""The positions of the stored messages in a batch."""
UNSURE: Final = Symbol("twinbus:unsure")
"""The positions of messages in a batch that may be stored nevertheless."""
ERROR: Final = Symbol("twinbus:error")
"""The name of an error whose condition others have, too."""
MAY_HAVE_HAPPENED: Final = Symbol("twinbus:may-have-happened")
"""Whether the operation may have been carried out, where more is known than the error's class says."""


def error_of(error: ServiceBusError) -> Error:
    """For a rejected message, a detach or a close."""
    info: dict[str, object] = {}
    if isinstance(error, DiskFull):
        info[ERROR] = DiskFull.__name__
    if error.fragment is not None:
        info[FRAGMENT] = error.fragment
    if isinstance(error, PartlyStored):
        info[STORED] = list(error.stored)
        if error.unsure is not None:
            info[UNSURE] = list(error.unsure)
    if error.may_have_happened is not type(error).may_have_happened:
        info[MAY_HAVE_HAPPENED] = error.may_have_happened
    return Error(condition=Symbol(error.condition), description=str(error), info=info or None)
