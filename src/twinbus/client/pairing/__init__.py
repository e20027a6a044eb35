"""Paired namespaces: sends succeed during an outage of the primary, and parked messages reach the primary later.

    options = SendAvailabilityPairedNamespaceOptions(secondary_factory=..., secondary_namespace_manager=...)
    pairing = await primary.pair_namespace(options)

After pairing, every sender created by the primary factory parks the messages that the primary cannot accept.
`docs/pairing.md` states the guarantees and their limits.
"""

from twinbus.client.pairing import triggers
from twinbus.client.pairing.errors import (
    FailedOver,
    MessageCannotBeParked,
    NotSent,
    PairedMessagingFactoryError,
    PairingFailed,
    PairingRefused,
    ReservedPropertyName,
    SpoolFailed,
    SpoolFull,
)
from twinbus.client.pairing.failover.entity_health import EntityState
from twinbus.client.pairing.observe.alarms import Alarm, AlarmKind
from twinbus.client.pairing.observe.events import EventKind, PairingEvent
from twinbus.client.pairing.observe.status import EntityStatus, PairingStatus, PumpState
from twinbus.client.pairing.options import PairedNamespaceOptions, SendAvailabilityPairedNamespaceOptions
from twinbus.client.pairing.pairing import Pairing
from twinbus.client.pairing.spool.spool import SpoolStatus
from twinbus.model.message import POSSIBLE_DUPLICATE

__all__ = [
    "POSSIBLE_DUPLICATE",
    "Alarm",
    "AlarmKind",
    "EntityState",
    "EntityStatus",
    "EventKind",
    "FailedOver",
    "MessageCannotBeParked",
    "NotSent",
    "PairedMessagingFactoryError",
    "PairedNamespaceOptions",
    "Pairing",
    "PairingEvent",
    "PairingFailed",
    "PairingRefused",
    "PairingStatus",
    "PumpState",
    "ReservedPropertyName",
    "SendAvailabilityPairedNamespaceOptions",
    "SpoolFailed",
    "SpoolFull",
    "SpoolStatus",
    "triggers",
]
