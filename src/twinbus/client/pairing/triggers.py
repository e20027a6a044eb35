"""The table of failures that trigger failover, which applications can read and change.

    from twinbus.client.pairing import triggers

    options.triggers = {QuotaExceeded: FailureClass.UNAVAILABLE}
    options.triggers = triggers.AS_DOCUMENTED
    options.triggers = {**triggers.AS_DOCUMENTED, EntityNotFound: FailureClass.CALLER}

Owns: the table. Each error has a default class (`model.errors`); an entry in this table takes precedence.
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
        # Argument and operation errors of the application: in Microsoft's client they are not MessagingExceptions.
        InvalidArgument: FailureClass.CALLER,
        InvalidOperation: FailureClass.CALLER,
        MalformedMessage: FailureClass.CALLER,
        NotAllowed: FailureClass.CALLER,
        NotImplementedHere: FailureClass.CALLER,
        ObjectClosed: FailureClass.CALLER,
        FactoryFaulted: FailureClass.CALLER,
        # Some messages of the batch are stored already, and parking the batch would store them twice.
        PartlyStored: FailureClass.CALLER,
    }
)
"""The table that follows Microsoft's documentation: every messaging error that is not transient triggers
failover, except Unauthorized and ServerBusy. So disabled, missing and full entities, and messages that are too large,
trigger failover."""


def class_of(error: ServiceBusError, triggers: Triggers) -> FailureClass:
    """Return the failure class for a paired sender: the entry for the nearest base class, or else the default."""
    for kind in type(error).__mro__:
        if kind in triggers:
            return triggers[kind]
    return error.failure_class
