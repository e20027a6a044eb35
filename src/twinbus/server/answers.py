"""Errors of the namespace as AMQP writes them.

Owns: where what the condition cannot say is told. Conditions are those that clients know and act upon; so that it is a
fragment that failed, and which, stands in `info`, where nobody is disturbed by it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twinbus.amqp.performatives import Error
from twinbus.amqp.types import Symbol

if TYPE_CHECKING:
    from twinbus.model.errors import ServiceBusError

FRAGMENT: Final = Symbol("twinbus:fragment")


def error_of(error: ServiceBusError) -> Error:
    """For a rejected message, a detach or a close."""
    info: dict[str, object] | None = None if error.fragment is None else {FRAGMENT: error.fragment}
    return Error(condition=Symbol(error.condition), description=str(error), info=info)
