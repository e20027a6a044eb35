"""Which failures of a send trigger failover: a table that applications can read and change.

    from twinbus.client.pairing import triggers

    options.triggers = {QuotaExceeded: FailureClass.UNAVAILABLE}
    options.triggers = triggers.AS_DOCUMENTED
    options.triggers = {**triggers.AS_DOCUMENTED, EntityNotFound: FailureClass.CALLER}

Owns: the table. Each error has a class of its own (`model.errors`); an entry here takes precedence.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, TypeAlias

from twinbus.client.errors import FactoryFaulted, ObjectClosed
from twinbus.model.errors import (
    CallerError,
    FailureClass,
    InvalidArgument,
    InvalidOperation,
    MalformedMessage,
    NotAllowed,
    NotImplementedHere,
    PartlyStored,
    ServerBusy,
    ServiceBusError,
    Unauthorized,
)

Triggers: TypeAlias = Mapping[type[ServiceBusError], FailureClass]

AS_DOCUMENTED: Final[Triggers] = MappingProxyType(
    {
        CallerError: FailureClass.UNAVAILABLE,
        Unauthorized: FailureClass.CALLER,
        ServerBusy: FailureClass.THROTTLED,
        # Argument and operation errors of the caller's program: no MessagingException in the original object model.
        InvalidArgument: FailureClass.CALLER,
        InvalidOperation: FailureClass.CALLER,
        MalformedMessage: FailureClass.CALLER,
        NotAllowed: FailureClass.CALLER,
        NotImplementedHere: FailureClass.CALLER,
        ObjectClosed: FailureClass.CALLER,
        FactoryFaulted: FailureClass.CALLER,
        # Names the messages of a batch that are stored: parking the batch would store these twice.
        PartlyStored: FailureClass.CALLER,
    }
)
"""The reading of Microsoft's documents (R031): any messaging error that is not transient triggers failover, except
unauthorised and server busy. So do disabled, missing and full entities, and messages that are too large."""


def class_of(error: ServiceBusError, triggers: Triggers) -> FailureClass:
    """Return the class of a failure to a paired sender: the entry of the nearest base class, or the error's own."""
    for kind in type(error).__mro__:
        if kind in triggers:
            return triggers[kind]
    return error.failure_class
