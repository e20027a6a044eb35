"""Errors of the namespace as AMQP writes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.amqp.performatives import Error
from twinbus.amqp.types import Symbol

if TYPE_CHECKING:
    from twinbus.model.errors import ServiceBusError


def error_of(error: ServiceBusError) -> Error:
    """For a rejected message, a detach or a close."""
    return Error(condition=Symbol(error.condition), description=str(error))
