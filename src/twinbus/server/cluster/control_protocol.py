"""The control protocol: messages between the supervisor and its workers.

Owns: the message types, and the encoding of catalogue rows and changes. Messages are plain data without behaviour.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

import msgspec

from twinbus.model.limits import NamespaceLimits  # noqa: TC001  # msgspec reads the types of fields
from twinbus.model.outage import OutageKind  # noqa: TC001  # msgspec reads the types of fields
from twinbus.model.rule import RuleDescription  # noqa: TC001  # msgspec reads the types of fields
from twinbus.server.auth.keys import Key  # noqa: TC001  # msgspec reads the types of fields
from twinbus.server.catalogue.changes import Change, EntityCreated, EntityDeleted, EntityUpdated, RuleDeleted, RulePut
from twinbus.server.paired_clients.report_format import ClientDeparture, Report  # noqa: TC001  # msgspec reads them
from twinbus.store.catalogue import DESCRIPTION_TYPES, KIND_OF_DESCRIPTION, CleanupRow, EntityRow

if TYPE_CHECKING:
    from twinbus.model.info import Description


class Message(msgspec.Struct, array_like=True, tag=True):
    """The base of all messages: encoded as an array that begins with the name of the type."""


# --- rows and changes -------------------------------------------------------------------------------------------------


class EncodedDescription(msgspec.Struct, array_like=True):
    """An entity's description, encoded."""

    kind: str
    content: bytes

    @classmethod
    def encode(cls, description: Description) -> Self:
        """Encode a description."""
        return cls(KIND_OF_DESCRIPTION[type(description)], msgspec.msgpack.encode(description))

    def decode(self) -> Description:
        """Return the description."""
        return msgspec.msgpack.decode(self.content, type=DESCRIPTION_TYPES[self.kind])


class EncodedRow(msgspec.Struct, array_like=True):
    """An entity's catalogue row, encoded."""

    id: int
    path: str
    description: EncodedDescription
    created_ms: int
    updated_ms: int
    fragments: tuple[int, ...]

    @classmethod
    def encode(cls, row: EntityRow) -> Self:
        """Encode a catalogue row."""
        encoded = EncodedDescription.encode(row.description)
        return cls(row.id, row.path, encoded, row.created_ms, row.updated_ms, row.fragments)

    def decode(self) -> EntityRow:
        """Return the catalogue row."""
        return EntityRow(
            id=self.id,
            kind=self.description.kind,
            path=self.path,
            description=self.description.decode(),
            created_ms=self.created_ms,
            updated_ms=self.updated_ms,
            fragments=self.fragments,
        )


class EntityCreatedMessage(Message):
    """An entity was created."""

    row: EncodedRow
    rules: tuple[RuleDescription, ...]


class EntityUpdatedMessage(Message):
    """The description of an entity was replaced."""

    row: EncodedRow


class EntityDeletedMessage(Message):
    """An entity was deleted."""

    path: str
    cleanups: tuple[CleanupRow, ...]


class RulePutMessage(Message):
    """A rule was added to a subscription, or replaced the rule with the same name."""

    subscription: str
    rule: RuleDescription


class RuleDeletedMessage(Message):
    """A rule of a subscription was deleted."""

    subscription: str
    name: str


class OutageBegun(Message):
    """A rehearsed outage began and lasts `seconds` from now. The times in milliseconds are wall-clock times."""

    path: str
    kind: OutageKind
    seconds: float
    since_ms: int
    until_ms: int


class OutageEnded(Message):
    """The rehearsed outage of `path` ended, or all outages if None."""

    path: str | None


class IdentityReloaded(Message):
    """Keys, certificate or log level were reloaded; None means unchanged.

    Never log this message, because it has keys.
    """

    keys: list[Key]
    certificate: tuple[str, str] | None
    """The paths of the certificate file and of its key file."""
    log_level: str | None


AnyChange: TypeAlias = (
    EntityCreatedMessage
    | EntityUpdatedMessage
    | EntityDeletedMessage
    | RulePutMessage
    | RuleDeletedMessage
    | OutageBegun
    | OutageEnded
    | IdentityReloaded
)


def encode_change(change: Change) -> AnyChange:
    """Return the message for a catalogue change."""
    if isinstance(change, EntityCreated):
        return EntityCreatedMessage(EncodedRow.encode(change.row), change.rules)
    if isinstance(change, EntityUpdated):
        return EntityUpdatedMessage(EncodedRow.encode(change.row))
    if isinstance(change, EntityDeleted):
        return EntityDeletedMessage(change.path, change.deleted_rows)
    if isinstance(change, RulePut):
        return RulePutMessage(change.subscription, change.rule)
    return RuleDeletedMessage(change.subscription, change.name)


def decode_change(
    message: EntityCreatedMessage | EntityUpdatedMessage | EntityDeletedMessage | RulePutMessage | RuleDeletedMessage,
) -> Change:
    """Return the catalogue change in a message."""
    if isinstance(message, EntityCreatedMessage):
        return EntityCreated(message.row.decode(), message.rules)
    if isinstance(message, EntityUpdatedMessage):
        return EntityUpdated(message.row.decode())
    if isinstance(message, EntityDeletedMessage):
        return EntityDeleted(message.path, message.cleanups)
    if isinstance(message, RulePutMessage):
        return RulePut(message.subscription, message.rule)
    return RuleDeleted(message.subscription, message.name)


# --- messages from the supervisor -------------------------------------------------------------------------------------


class CatalogueSnapshot(msgspec.Struct, array_like=True):
    """The whole catalogue at one version."""

    entities: list[tuple[EncodedRow, list[RuleDescription]]]
    """Entities with their rules; a topic comes before its subscriptions."""
    pending_cleanups: list[CleanupRow]
    created_ms: int


class Start(Message):
    """Start a worker with settings, sockets, stores and catalogue. Never log this message, because it has keys."""

    workers: int
    run_folder: str
    """The folder for the workers' Unix sockets."""
    stores: list[str]
    """The directory of each store, by store number."""
    usage_folder: str
    """The directory for the usage journals and Parquet files."""
    sockets: dict[str, list[int]]
    """Inherited descriptors of listening sockets, by listener name."""
    connection_counts: int
    """The inherited descriptor of the shared memory with the connection counts of all workers."""
    settings: dict[str, Any]
    limits: NamespaceLimits
    keys: list[Key]
    certificate: tuple[str, str]
    """The paths of the certificate file and of its key file."""
    version: int
    catalogue: bytes
    """A `CatalogueSnapshot` in MessagePack, at `version`."""
    outages: list[OutageBegun]


class Serve(Message):
    """Accept clients from now on."""


class Apply(Message):
    """Apply a change, then reply; `version` is the catalogue's version after the change."""

    version: int
    change: AnyChange


class GetIdleSeconds(Message):
    """Ask how long each entity with AutoDeleteOnIdle has been idle. The result is the seconds by entity id."""


# --- messages from a worker -------------------------------------------------------------------------------------------


class Hello(Message):
    """The worker is running and waits for `Start`."""


class Loaded(Message):
    """The worker has opened its stores and loaded their fragments."""


class Failed(Message):
    """The worker cannot start."""

    reason: str


class Serving(Message):
    """The worker accepts clients."""


class Heartbeat(Message):
    """The worker is alive; `unavailable_stores` has the reason for each unavailable store, by store number."""

    unavailable_stores: dict[int, str]


class CleanupFinished(Message):
    """The records of a deleted entity are removed from `stores`."""

    entity_id: int
    stores: list[int]


class CreateEntity(Message):
    """Create a queue or a topic. The result is the entity's path."""

    path: str
    description: EncodedDescription


class CreateSubscription(Message):
    """Create a subscription. The result is the subscription's path."""

    topic: str
    name: str
    description: EncodedDescription
    rule: RuleDescription | None


class UpdateEntity(Message):
    """Replace the description of an entity. The result is the entity's path."""

    path: str
    description: EncodedDescription


class DeleteEntity(Message):
    """Delete an entity. The result is the entity's path."""

    path: str


class CreateRule(Message):
    """Add a rule to a subscription. The result is the rule."""

    subscription: str
    rule: RuleDescription


class UpdateRule(Message):
    """Replace the rule with the same name. The result is the new rule."""

    subscription: str
    rule: RuleDescription


class DeleteRule(Message):
    """Delete a rule of a subscription."""

    subscription: str
    name: str


class BeginOutage(Message):
    """Begin a rehearsed outage. The result is the outage's description."""

    path: str
    kind: OutageKind
    seconds: float


class EndOutage(Message):
    """End the rehearsed outage of `path`, or all outages if None. The result describes the ended outages."""

    path: str | None


class PutReport(Message):
    """Store a report from a paired client."""

    report: Report


class RemoveReport(Message):
    """Remove the report of a paired client that has stopped."""

    departure: ClientDeparture


class ListPrimaries(Message):
    """List the primaries that paired clients have reported on."""


class ReadReports(Message):
    """Read reports on some primaries. The result is one page."""

    primaries: list[str]
    skip: int
    top: int


# --- replies ----------------------------------------------------------------------------------------------------------


class Done(Message):
    """The request succeeded; `result` is in MessagePack."""

    result: bytes


class RequestFailed(Message):
    """The request failed with an error of the class `error_name`."""

    error_name: str
    text: str


Request: TypeAlias = (
    CreateEntity
    | CreateSubscription
    | UpdateEntity
    | DeleteEntity
    | CreateRule
    | UpdateRule
    | DeleteRule
    | BeginOutage
    | EndOutage
    | PutReport
    | RemoveReport
    | ListPrimaries
    | ReadReports
)
FromSupervisor: TypeAlias = Start | Serve | Apply | GetIdleSeconds | Done | RequestFailed
FromWorker: TypeAlias = Hello | Loaded | Failed | Serving | Heartbeat | CleanupFinished | Request | Done | RequestFailed
SUPERVISOR_DECODER: Final = msgspec.msgpack.Decoder(tuple[int, FromSupervisor])
WORKER_DECODER: Final = msgspec.msgpack.Decoder(tuple[int, FromWorker])
