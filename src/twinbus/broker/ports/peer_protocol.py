"""What processes of one namespace say to each other about fragments.

A *call* goes from the process that a client is connected to, to the owner of a fragment; an *answer* goes back, and so
do notices of what happens there. Owns: the words. They are data and nothing else, so that a socket can carry them.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

from twinbus.model import errors
from twinbus.model.errors import ServiceBusError
from twinbus.model.path import SubQueue

Place: TypeAlias = tuple[int, int, int]
"""An entity's id, the number of one of its fragments, and which of the entity's queues is meant (`SUB_QUEUES`)."""
SUB_QUEUES: Final = tuple(SubQueue)
Delivery: TypeAlias = tuple[bytes, bytes]
Sent: TypeAlias = tuple[bytes, int, str | None]
"""Of a transaction: a payload, its message format, and where it goes on to, if elsewhere."""


class _Word(msgspec.Struct, array_like=True, tag=True, gc=False):
    """Anything that is said: written as an array that begins with its name."""


# --- calls ------------------------------------------------------------------------------------------------------------


class Send(_Word):
    """Store messages; none of them asks whether the store works. Answered by `Numbers`."""

    entity: int
    fragment: int
    records: list[bytes]
    ids: list[bytes]


class Check(_Word):
    """Whether parts of an entity can store so many bytes each, by the numbers of fragments. Answered by `Refusals`."""

    entity: int
    sizes: dict[int, int]


class SendOn(_Word):
    """Store messages that go on to another entity. Answered by `Done`."""

    entity: int
    fragment: int
    records: list[bytes]
    destination: str


class Arrive(_Word):
    """Store messages that another entity forwards, each with its number there. Answered by `Done`."""

    entity: int
    fragment: int
    source: bytes
    items: list[tuple[int, bytes]]


class Settle(_Word):
    """Settle messages by their tags; `properties` are a map as AMQP writes it. Answered by `Lost`."""

    place: Place
    how: str
    tags: list[bytes]
    properties: bytes


class Peek(_Word):
    """Look at messages. Answered by `Page`."""

    place: Place
    start: int
    count: int
    max_bytes: int
    deferred_only: bool


class FindTime(_Word):
    """The first number that was not enqueued before a time. Answered by `Numbers`, of one."""

    place: Place
    enqueued_ms: int


class Look(_Word):
    """From where to where there are messages. Answered by `Numbers`: the lowest, and the next to be given."""

    place: Place


class FindLock(_Word):
    """What a lock is on. Answered by `FoundLock`."""

    place: Place
    tag: bytes


class Renew(_Word):
    """Let a lock last longer. Answered by `Numbers`: until when."""

    place: Place
    tag: bytes


class Manage(_Word):
    """A request to `$management`: one subclass for each operation. Answered by `Managed`.

    `arguments` are encoded as AMQP; `client` is the number of the client that asks, `transaction` that of the
    transaction that the operation is part of, or 0.
    """

    place: Place
    arguments: bytes
    client: int
    transaction: int


class PeekMessages(Manage):
    """Look at messages."""


class CancelScheduled(Manage):
    """Cancel scheduled messages."""


class FindScheduled(Manage):
    """Whether messages are scheduled."""


class RenewLocks(Manage):
    """Let locks last longer."""


class ReceiveDeferred(Manage):
    """Receive deferred messages."""


class UpdateDisposition(Manage):
    """Settle messages by their lock tokens."""


class ScheduleMessages(Manage):
    """Store scheduled messages, in a transaction."""


class RenewSession(Manage):
    """Let a session's lock last longer."""


class SetSessionState(Manage):
    """Set or clear a session's state."""


class GetSessionState(Manage):
    """Get a session's state."""


class ListSessions(Manage):
    """List sessions."""


class BatchDelete(Manage):
    """Delete the oldest messages."""


class Purge(Manage):
    """Delete all messages of a state."""


class DeleteByNumber(Manage):
    """Delete messages by their sequence numbers."""


class Resubmit(Manage):
    """Make dead letters active again."""


class CompleteUpTo(Manage):
    """Complete messages up to a sequence number."""


class ListFragments(Manage):
    """From where to where the fragment's log reaches."""


class Withhold(Manage):
    """Skip messages that an exclusive receiver does not want."""


class Weigh(_Word):
    """What the parts of some entities hold. Answered by `Weighed`."""

    entities: list[int]


class Open(_Word):
    """A receiver comes to a fragment; `link` is the same for all fragments that it receives from. `Done`.

    Where there are sessions it names one, or waits for any: it hears of that by `Granted`.
    """

    consumer: int
    place: Place
    link: int
    client: int
    deletes: bool
    session: bytes | None
    epoch: int | None
    if_free: bool = False


class Browse(_Word):
    """Somebody reads a fragment from one number to another, and is `Gone` then if it `ends`. Answered by `Done`."""

    consumer: int
    place: Place
    first: int
    last: int
    ends: bool


class Claim(_Word):
    """A receiver takes so many messages now. It is told what there is by `Given`, then `Drained`."""

    consumer: int
    count: int


class Close(_Word):
    """A receiver, or a reader, has gone, and has `seen` so many messages since it claimed some: the others not."""

    consumer: int
    seen: int


class Untaken(_Word):
    """A receiver did not take these messages, which were deleted for it: they come back. Answered by `Done`."""

    consumer: int
    sequences: list[int]


class Hear(_Word):
    """Say that all was heard that was said so far. Answered by `Done`."""


class SetApart(_Word):
    """Settle messages when a transaction is committed."""

    transaction: int
    place: Place
    tags: list[bytes]
    how: str
    properties: bytes


class Commit(_Word):
    """Do all that a transaction asked for; `sent` is what it sends. Answered by `Done`."""

    transaction: int
    entity: int
    fragment: int
    sent: list[Sent]


class RollBack(_Word):
    """Do nothing of what a transaction asked for."""

    transaction: int


Call: TypeAlias = (
    Send
    | Check
    | SendOn
    | Arrive
    | Settle
    | Peek
    | FindTime
    | Look
    | FindLock
    | Renew
    | PeekMessages
    | CancelScheduled
    | FindScheduled
    | RenewLocks
    | ReceiveDeferred
    | UpdateDisposition
    | ScheduleMessages
    | RenewSession
    | SetSessionState
    | GetSessionState
    | ListSessions
    | BatchDelete
    | Purge
    | DeleteByNumber
    | Resubmit
    | CompleteUpTo
    | ListFragments
    | Withhold
    | Weigh
    | Open
    | Browse
    | Claim
    | Close
    | Untaken
    | Hear
    | SetApart
    | Commit
    | RollBack
)


# --- answers and notices ----------------------------------------------------------------------------------------------


class Done(_Word):
    """It is done, and on disk."""


class Failed(_Word):
    """It is not, for this reason: the name of the error's class, and its text."""

    kind: str
    text: str


class Numbers(_Word):
    """What was asked for."""

    numbers: list[int]


class Refusals(_Word):
    """The fragments that cannot store what was asked: the name of each error's class, and its text."""

    fragments: dict[int, tuple[str, str]]


class Lost(_Word):
    """Settled, but for those at these places, whose locks are lost."""

    places: list[int]


class Page(_Word):
    """Messages that were peeked, and when the last one of the fragment was enqueued."""

    messages: list[bytes]
    latest_ms: int


class FoundLock(_Word):
    """The message that a lock is on."""

    sequence: int
    message_id: str | None


class Managed(_Word):
    """What `$management` answers, as AMQP writes it."""

    response: bytes


class Weight(_Word):
    """What one part of an entity holds: the fields of its runtime, by their names."""

    entity: int
    fragment: int
    runtime: dict[str, int | bool]


class Weighed(_Word):
    """What the parts hold that are this process's own."""

    parts: list[Weight]


class Given(_Word):
    """Messages for a receiver, or a reader."""

    consumer: int
    deliveries: list[Delivery]


class Drained(_Word):
    """A claim is over: there was no more for it."""

    consumer: int


class Ready(_Word):
    """There is something for a receiver that has claimed nothing."""

    consumer: int


class Granted(_Word):
    """A receiver has a session, until a time of the wall clock."""

    consumer: int
    session: bytes
    until_ms: int


class Gone(_Word):
    """A receiver or reader gets nothing any more, for this reason."""

    consumer: int
    kind: str
    text: str


class Health(_Word):
    """Stores of this process: why each does not work, and why it takes no messages; None where it does."""

    stores: dict[int, tuple[str | None, str | None]]


Answer: TypeAlias = (
    Done
    | Failed
    | Numbers
    | Refusals
    | Lost
    | Page
    | FoundLock
    | Managed
    | Weighed
    | Given
    | Drained
    | Ready
    | Granted
    | Gone
    | Health
)


# --- errors -----------------------------------------------------------------------------------------------------------


def kind_of(error: ServiceBusError) -> str:
    """The name of an error's class; of the nearest that the other side knows, if it is one of the broker's own."""
    names = (kind.__name__ for kind in type(error).__mro__ if getattr(errors, kind.__name__, None) is kind)
    return next(names, ServiceBusError.__name__)


def failed(error: ServiceBusError) -> Failed:
    """An error, as it is told."""
    return Failed(kind_of(error), str(error))


def error_of(kind: str, text: str) -> ServiceBusError:
    """The error that was told."""
    found = getattr(errors, kind, ServiceBusError)
    error: ServiceBusError = found.__new__(found)  # some make their texts themselves
    error.args = (text,)
    return error
