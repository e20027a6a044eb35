"""What the supervisor and a worker say to each other.

Owns: the words, and how rows of the catalogue and changes of it are written in them. They are data and nothing else.
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
    """Anything that is said: written as an array that begins with its name."""


# --- rows and changes -------------------------------------------------------------------------------------------------


class EncodedDescription(msgspec.Struct, array_like=True):
    """What an entity is told to be."""

    kind: str
    content: bytes

    @classmethod
    def encode(cls, description: Description) -> Self:
        """As it is said."""
        return cls(KIND_OF_DESCRIPTION[type(description)], msgspec.msgpack.encode(description))

    def decode(self) -> Description:
        """As it is meant."""
        return msgspec.msgpack.decode(self.content, type=DESCRIPTION_TYPES[self.kind])


class EncodedRow(msgspec.Struct, array_like=True):
    """An entity, as the catalogue has it."""

    id: int
    path: str
    description: EncodedDescription
    created_ms: int
    updated_ms: int
    fragments: tuple[int, ...]

    @classmethod
    def encode(cls, row: EntityRow) -> Self:
        """As it is said."""
        described = EncodedDescription.encode(row.description)
        return cls(row.id, row.path, described, row.created_ms, row.updated_ms, row.fragments)

    def decode(self) -> EntityRow:
        """As it is meant."""
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
    """An entity was described anew."""

    row: EncodedRow


class EntityDeletedMessage(Message):
    """An entity was deleted."""

    path: str
    cleanups: tuple[CleanupRow, ...]


class RulePutMessage(Message):
    """A subscription has a rule."""

    subscription: str
    rule: RuleDescription


class RuleDeletedMessage(Message):
    """A subscription has a rule no more."""

    subscription: str
    name: str


class OutageBegun(Message):
    """An outage on purpose was switched on, for so many seconds from now on. Times are of the wall clock."""

    path: str
    kind: OutageKind
    seconds: float
    since_ms: int
    until_ms: int


class OutageEnded(Message):
    """The outage of that path was switched off, or all."""

    path: str | None


class IdentityReloaded(Message):
    """Keys, certificate and log level are others; None: as before. Keys are secret: this is never logged."""

    keys: list[Key]
    certificate: tuple[str, str] | None
    """The files of the certificate and of its key."""
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
    """A change of the catalogue, as it is said."""
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
    """... and as it is meant."""
    if isinstance(message, EntityCreatedMessage):
        return EntityCreated(message.row.decode(), message.rules)
    if isinstance(message, EntityUpdatedMessage):
        return EntityUpdated(message.row.decode())
    if isinstance(message, EntityDeletedMessage):
        return EntityDeleted(message.path, message.cleanups)
    if isinstance(message, RulePutMessage):
        return RulePut(message.subscription, message.rule)
    return RuleDeleted(message.subscription, message.name)


# --- the supervisor says ----------------------------------------------------------------------------------------------


class CatalogueSnapshot(msgspec.Struct, array_like=True):
    """All of the catalogue."""

    entities: list[tuple[EncodedRow, list[RuleDescription]]]
    """A topic comes before its subscriptions."""
    pending_cleanups: list[CleanupRow]
    created_ms: int


class Start(Message):
    """What a worker is to serve, and how. Keys are secret: this is never logged."""

    workers: int
    run_folder: str
    """Where the workers' sockets are."""
    stores: list[str]
    """The directory of every store, by its number."""
    usage_folder: str
    """The directory of what clients use, as it is counted."""
    sockets: dict[str, list[int]]
    """Descriptors that were inherited, by the names of the ways in."""
    connection_counts: int
    """... and that of the memory in which workers say how many connections they have."""
    settings: dict[str, Any]
    limits: NamespaceLimits
    keys: list[Key]
    certificate: tuple[str, str]
    """The files of the certificate and of its key."""
    version: int
    catalogue: bytes
    """A Copy."""
    outages: list[OutageBegun]


class Serve(Message):
    """Clients may come."""


class Apply(Message):
    """A change, with the version that the catalogue has after it. Answered when it is made."""

    version: int
    change: AnyChange


class GetIdleSeconds(Message):
    """For how many seconds each entity was not used that is to be deleted then. Answered with a map of ids."""


# --- a worker says ----------------------------------------------------------------------------------------------------


class Hello(Message):
    """It runs, and waits for `Start`."""


class Loaded(Message):
    """Its stores are open, and it knows what they hold."""


class Failed(Message):
    """It cannot start."""

    reason: str


class Serving(Message):
    """Clients can come to it."""


class Heartbeat(Message):
    """It lives. Why some of its stores do not work, by their numbers."""

    unavailable_stores: dict[int, str]


class CleanupFinished(Message):
    """Nothing of a deleted entity is left in these stores."""

    entity_id: int
    stores: list[int]


class CreateEntity(Message):
    """Make a queue or topic. Answered with its path."""

    path: str
    description: EncodedDescription


class CreateSubscription(Message):
    """Make a subscription. Answered with its path."""

    topic: str
    name: str
    description: EncodedDescription
    rule: RuleDescription | None


class UpdateEntity(Message):
    """Describe an entity anew. Answered with its path."""

    path: str
    description: EncodedDescription


class DeleteEntity(Message):
    """Delete an entity."""

    path: str


class CreateRule(Message):
    """Add a rule. Answered with it."""

    subscription: str
    rule: RuleDescription


class UpdateRule(Message):
    """Put a rule in the place of another. Answered with it."""

    subscription: str
    rule: RuleDescription


class DeleteRule(Message):
    """Delete a rule."""

    subscription: str
    name: str


class BeginOutage(Message):
    """Switch an outage on. Answered with how it is told."""

    path: str
    kind: OutageKind
    seconds: float


class EndOutage(Message):
    """Switch an outage off, or all. Answered with how each was told."""

    path: str | None


class PutReport(Message):
    """Keep what a paired client reports."""

    report: Report


class RemoveReport(Message):
    """Forget the report of a client that has ended."""

    departure: ClientDeparture


class ListPrimaries(Message):
    """The primaries that there are reports of."""


class ReadReports(Message):
    """Reports of some primaries. Answered with a page."""

    primaries: list[str]
    skip: int
    top: int


# --- answers ----------------------------------------------------------------------------------------------------------


class Done(Message):
    """It was done; what is answered is in MessagePack."""

    result: bytes


class RequestFailed(Message):
    """It was not: the name of the error's class, and its text."""

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
