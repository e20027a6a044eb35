"""Which failures of a send trigger failover: one table, to be seen and to be changed.

    options.triggers[QuotaExceeded] = FailureClass.UNAVAILABLE

Owns: the table. An error's own class (`model.errors`) says what it usually is; what stands here comes first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

    from twinbus.model.errors import FailureClass, ServiceBusError

Triggers: TypeAlias = "dict[type[ServiceBusError], FailureClass]"


def class_of(error: ServiceBusError, triggers: Mapping[type[ServiceBusError], FailureClass]) -> FailureClass:
    """What a failure is to a paired sender: the most special entry that fits, or what the error says of itself."""
    for kind in type(error).__mro__:
        if kind in triggers:
            return triggers[kind]
    return error.failure_class
