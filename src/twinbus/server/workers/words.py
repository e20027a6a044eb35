"""What the supervisor and a worker say to each other.

Owns: the words, and how rows of the catalogue and changes of it are written in them. They are data and nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

import msgspec

from twinbus.model.limits import NamespaceLimits  # noqa: TC001  # msgspec reads the types of fields
from twinbus.model.outage import OutageKind  # noqa: TC001  # msgspec reads the types of fields
from twinbus.model.rule import RuleDescription  # noqa: TC001  # msgspec reads the types of fields
from twinbus.server.changes import Change, EntityCreated, EntityDeleted, EntityUpdated, RuleDeleted, RulePut
from twinbus.server.keys import Key  # noqa: TC001  # msgspec reads the types of fields
from twinbus.server.pairing_report import Leave, Report  # noqa: TC001  # msgspec reads the types of fields
from twinbus.store.catalogue import DESCRIPTIONS, KINDS, DoomedRow, EntityRow

if TYPE_CHECKING:
    from twinbus.model.info import Description


class Word(msgspec.Struct, array_like=True, tag=True):
    """Anything that is said: written as an array that begins with its name."""


# --- rows and changes -------------------------------------------------------------------------------------------------


class Described(msgspec.Struct, array_like=True):
    """What an entity is told to be."""

    kind: str
    content: bytes

    @classmethod
    def of(cls, description: Description) -> Self:
        """As it is said."""
        return cls(KINDS[type(description)], msgspec.msgpack.encode(description))

    def read(self) -> Description:
        """As it is meant."""
        return msgspec.msgpack.decode(self.content, type=DESCRIPTIONS[self.kind])


class Row(msgspec.Struct, array_like=True):
    """An entity, as the catalogue has it."""

    id: int
    path: str
    described: Described
    created_ms: int
    updated_ms: int
    fragments: tuple[int, ...]

    @classmethod
    def of(cls, row: EntityRow) -> Self:
        """As it is said."""
        described = Described.of(row.description)
        return cls(row.id, row.path, described, row.created_ms, row.updated_ms, row.fragments)

    def read(self) -> EntityRow:
        """As it is meant."""
        return EntityRow(
            id=self.id,
            kind=self.described.kind,
            path=self.path,
            description=self.described.read(),
            created_ms=self.created_ms,
            updated_ms=self.updated_ms,
            fragments=self.fragments,
        )


class Created(Word):
    """An entity was created."""

    row: Row
    rules: tuple[RuleDescription, ...]


class Updated(Word):
    """An entity was described anew."""

    row: Row


class Deleted(Word):
    """An entity was deleted."""

    path: str
    doomed: tuple[DoomedRow, ...]


class Put(Word):
    """A subscription has a rule."""

    subscription: str
    rule: RuleDescription


class Dropped(Word):
    """A subscription has a rule no more."""

    subscription: str
    name: str


class OutageBegun(Word):
    """An outage on purpose was switched on, for so many seconds from now on. Times are of the wall clock."""

    path: str
    kind: OutageKind
    seconds: float
    since_ms: int
    until_ms: int


class OutageEnded(Word):
    """The outage of that path was switched off, or all."""

    path: str | None


class Reloaded(Word):
    """Keys, certificate and log level are others; None: as before. Keys are secret: this is never logged."""

    keys: list[Key]
    certificate: tuple[str, str] | None
    """The files of the certificate and of its key."""
    log_level: str | None


AnyChange: TypeAlias = Created | Updated | Deleted | Put | Dropped | OutageBegun | OutageEnded | Reloaded


def write(change: Change) -> AnyChange:
    """A change of the catalogue, as it is said."""
    if isinstance(change, EntityCreated):
        return Created(Row.of(change.row), change.rules)
    if isinstance(change, EntityUpdated):
        return Updated(Row.of(change.row))
    if isinstance(change, EntityDeleted):
        return Deleted(change.path, change.doomed)
    if isinstance(change, RulePut):
        return Put(change.subscription, change.rule)
    return Dropped(change.subscription, change.name)


def read(word: Created | Updated | Deleted | Put | Dropped) -> Change:
    """... and as it is meant."""
    if isinstance(word, Created):
        return EntityCreated(word.row.read(), word.rules)
    if isinstance(word, Updated):
        return EntityUpdated(word.row.read())
    if isinstance(word, Deleted):
        return EntityDeleted(word.path, word.doomed)
    if isinstance(word, Put):
        return RulePut(word.subscription, word.rule)
    return RuleDeleted(word.subscription, word.name)


# --- the supervisor says ----------------------------------------------------------------------------------------------


class Copy(msgspec.Struct, array_like=True):
    """All of the catalogue."""

    entities: list[tuple[Row, list[RuleDescription]]]
    """A topic comes before its subscriptions."""
    doomed: list[DoomedRow]
    created_ms: int


class Start(Word):
    """What a worker is to serve, and how. Keys are secret: this is never logged."""

    workers: int
    folder: str
    """Where the workers' sockets are."""
    stores: list[str]
    """The directory of every store, by its number."""
    usage: str
    """The directory of what clients use, as it is counted."""
    sockets: dict[str, list[int]]
    """Descriptors that were inherited, by the names of the ways in."""
    tally: int
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


class Serve(Word):
    """Clients may come."""


class Apply(Word):
    """A change, with the version that the catalogue has after it. Answered when it is made."""

    version: int
    change: AnyChange


class HowIdle(Word):
    """For how many seconds each entity was not used that is to be deleted then. Answered with a map of ids."""


# --- a worker says ----------------------------------------------------------------------------------------------------


class Hello(Word):
    """It runs, and waits for `Start`."""


class Loaded(Word):
    """Its stores are open, and it knows what they hold."""


class Failed(Word):
    """It cannot start."""

    reason: str


class Serving(Word):
    """Clients can come to it."""


class Beat(Word):
    """It lives. Why some of its stores do not work, by their numbers."""

    troubles: dict[int, str]


class Buried(Word):
    """Nothing of a deleted entity is left in these stores."""

    entity: int
    stores: list[int]


class CreateEntity(Word):
    """Make a queue or topic. Answered with its path."""

    path: str
    described: Described


class CreateSubscription(Word):
    """Make a subscription. Answered with its path."""

    topic: str
    name: str
    described: Described
    rule: RuleDescription | None


class UpdateEntity(Word):
    """Describe an entity anew. Answered with its path."""

    path: str
    described: Described


class DeleteEntity(Word):
    """Delete an entity."""

    path: str


class CreateRule(Word):
    """Add a rule. Answered with it."""

    subscription: str
    rule: RuleDescription


class UpdateRule(Word):
    """Put a rule in the place of another. Answered with it."""

    subscription: str
    rule: RuleDescription


class DeleteRule(Word):
    """Delete a rule."""

    subscription: str
    name: str


class BeginOutage(Word):
    """Switch an outage on. Answered with how it is told."""

    path: str
    kind: OutageKind
    seconds: float


class EndOutage(Word):
    """Switch an outage off, or all. Answered with how each was told."""

    path: str | None


class PutReport(Word):
    """Keep what a paired client reports."""

    report: Report


class DropReport(Word):
    """Forget the report of a client that has ended."""

    leave: Leave


class ListPrimaries(Word):
    """The primaries that there are reports of."""


class ReadReports(Word):
    """Reports of some primaries. Answered with a page."""

    primaries: list[str]
    skip: int
    top: int


# --- answers ----------------------------------------------------------------------------------------------------------


class Done(Word):
    """It was done; what is answered is in MessagePack."""

    result: bytes


class Refused(Word):
    """It was not: the name of the error's class, and its text."""

    kind: str
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
    | DropReport
    | ListPrimaries
    | ReadReports
)
FromSupervisor: TypeAlias = Start | Serve | Apply | HowIdle | Done | Refused
FromWorker: TypeAlias = Hello | Loaded | Failed | Serving | Beat | Buried | Request | Done | Refused
FROM_SUPERVISOR: Final = msgspec.msgpack.Decoder(tuple[int, FromSupervisor])
FROM_WORKER: Final = msgspec.msgpack.Decoder(tuple[int, FromWorker])
