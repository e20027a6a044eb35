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

FragmentAddress: TypeAlias = tuple[int, int, int]
"""An entity's id, the number of one of its fragments, and which of the entity's queues is meant (`SUB_QUEUES`)."""
SUB_QUEUES: Final = tuple(SubQueue)
Delivery: TypeAlias = tuple[bytes, bytes]
TransactionSend: TypeAlias = tuple[bytes, int, str | None]
"""Of a transaction: a payload, its message format, and where it goes on to, if elsewhere."""


class _Message(msgspec.Struct, array_like=True, tag=True, gc=False):
    """Anything that is said: written as an array that begins with its name."""


# --- calls ------------------------------------------------------------------------------------------------------------


class Send(_Message):
    """Store messages; none of them asks whether the store works. Answered by `Numbers`."""

    entity_id: int
    fragment: int
    records: list[bytes]
    identities: list[bytes]


class CheckCapacity(_Message):
    """Whether parts of an entity can store so many bytes each, by the numbers of fragments. Answered by `Refusals`."""

    entity_id: int
    sizes_by_fragment: dict[int, int]


class SendVia(_Message):
    """Store messages that go on to another entity. Answered by `Done`."""

    entity_id: int
    fragment: int
    records: list[bytes]
    destination: str


class AcceptForwarded(_Message):
    """Store messages that another entity forwards, each with its number there. Answered by `Done`."""

    entity_id: int
    fragment: int
    source_prefix: bytes
    numbered_records: list[tuple[int, bytes]]


class Settle(_Message):
    """Settle messages by their tags; `properties` are a map as AMQP writes it. Answered by `Lost`."""

    address: FragmentAddress
    disposition: str
    lock_tokens: list[bytes]
    properties: bytes


class Peek(_Message):
    """Look at messages. Answered by `Page`."""

    address: FragmentAddress
    from_sequence: int
    count: int
    max_bytes: int
    deferred_only: bool


class FindByEnqueuedTime(_Message):
    """The first number that was not enqueued before a time. Answered by `Numbers`, of one."""

    address: FragmentAddress
    enqueued_ms: int


class GetLogRange(_Message):
    """From where to where there are messages. Answered by `Numbers`: the lowest, and the next to be given."""

    address: FragmentAddress


class FindLockedMessage(_Message):
    """What a lock is on. Answered by `FoundLock`."""

    address: FragmentAddress
    lock_token: bytes


class RenewLock(_Message):
    """Let a lock last longer. Answered by `Numbers`: until when."""

    address: FragmentAddress
    lock_token: bytes


class ManagementCall(_Message):
    """A request to `$management`: one subclass for each operation. Answered by `Managed`.

    `arguments` are encoded as AMQP; `client` is the number of the client that asks, `transaction` that of the
    transaction that the operation is part of, or 0.
    """

    address: FragmentAddress
    arguments: bytes
    client_id: int
    transaction_id: int


class PeekMessages(ManagementCall):
    """Look at messages."""


class CancelScheduled(ManagementCall):
    """Cancel scheduled messages."""


class FindScheduled(ManagementCall):
    """Whether messages are scheduled."""


class RenewLocks(ManagementCall):
    """Let locks last longer."""


class ReceiveDeferred(ManagementCall):
    """Receive deferred messages."""


class UpdateDisposition(ManagementCall):
    """Settle messages by their lock tokens."""


class ScheduleMessages(ManagementCall):
    """Store scheduled messages, in a transaction."""


class RenewSession(ManagementCall):
    """Let a session's lock last longer."""


class SetSessionState(ManagementCall):
    """Set or clear a session's state."""


class GetSessionState(ManagementCall):
    """Get a session's state."""


class ListSessions(ManagementCall):
    """List sessions."""


class BatchDelete(ManagementCall):
    """Delete the oldest messages."""


class Purge(ManagementCall):
    """Delete all messages of a state."""


class DeleteBySequenceNumber(ManagementCall):
    """Delete messages by their sequence numbers."""


class Resubmit(ManagementCall):
    """Make dead letters active again."""


class CompleteUpTo(ManagementCall):
    """Complete messages up to a sequence number."""


class ListFragments(ManagementCall):
    """From where to where the fragment's log reaches."""


class Withhold(ManagementCall):
    """Skip messages that an exclusive receiver does not want."""


class GetRuntimes(_Message):
    """What the parts of some entities hold. Answered by `Weighed`."""

    entity_ids: list[int]


class AttachConsumer(_Message):
    """A receiver comes to a fragment; `link` is the same for all fragments that it receives from. `Done`.

    Where there are sessions it names one, or waits for any: it hears of that by `Granted`.
    """

    consumer_id: int
    address: FragmentAddress
    link_id: int
    client_id: int
    receive_and_delete: bool
    session_id: bytes | None
    epoch: int | None
    if_free: bool = False


class AttachBrowser(_Message):
    """Somebody reads a fragment from one number to another, and is `Gone` then if it `ends`. Answered by `Done`."""

    consumer_id: int
    address: FragmentAddress
    first_sequence: int
    last_sequence: int
    is_bounded: bool


class GrantCredit(_Message):
    """A receiver takes so many messages now. It is told what there is by `Given`, then `Drained`."""

    consumer_id: int
    credit: int


class Detach(_Message):
    """A receiver, or a reader, has gone, and has `seen` so many messages since it claimed some: the others not."""

    consumer_id: int
    received_count: int


class ReturnMessages(_Message):
    """A receiver did not take these messages, which were deleted for it: they come back. Answered by `Done`."""

    consumer_id: int
    sequence_numbers: list[int]


class ConfirmDelivered(_Message):
    """A receiver that receives and deletes has the first `delivered_count` messages since it granted credit.

    Messages that it did not accept are named in a `ReturnMessages` before.
    """

    consumer_id: int
    delivered_count: int


class Barrier(_Message):
    """Say that all was heard that was said so far. Answered by `Done`."""


class SettleInTransaction(_Message):
    """Settle messages when a transaction is committed."""

    transaction_id: int
    address: FragmentAddress
    lock_tokens: list[bytes]
    disposition: str
    properties: bytes


class Commit(_Message):
    """Do all that a transaction asked for; `sent` is what it sends. Answered by `Done`."""

    transaction_id: int
    entity_id: int
    fragment: int
    sends: list[TransactionSend]


class RollBack(_Message):
    """Do nothing of what a transaction asked for."""

    transaction_id: int


Request: TypeAlias = (
    Send
    | CheckCapacity
    | SendVia
    | AcceptForwarded
    | Settle
    | Peek
    | FindByEnqueuedTime
    | GetLogRange
    | FindLockedMessage
    | RenewLock
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
    | DeleteBySequenceNumber
    | Resubmit
    | CompleteUpTo
    | ListFragments
    | Withhold
    | GetRuntimes
    | AttachConsumer
    | AttachBrowser
    | GrantCredit
    | Detach
    | ReturnMessages
    | ConfirmDelivered
    | Barrier
    | SettleInTransaction
    | Commit
    | RollBack
)


# --- answers and notices ----------------------------------------------------------------------------------------------


class Done(_Message):
    """It is done, and on disk."""


class Failed(_Message):
    """It is not, for this reason: the name of the error's class, and its text."""

    error_name: str
    text: str


class Numbers(_Message):
    """What was asked for."""

    numbers: list[int]


class CapacityErrors(_Message):
    """The fragments that cannot store what was asked: the name of each error's class, and its text."""

    errors_by_fragment: dict[int, tuple[str, str]]


class LocksLost(_Message):
    """Settled, but for those at these places, whose locks are lost."""

    indexes: list[int]


class PeekedMessages(_Message):
    """Messages that were peeked, and when the last one of the fragment was enqueued."""

    messages: list[bytes]
    last_enqueued_ms: int


class LockedMessage(_Message):
    """The message that a lock is on."""

    sequence_number: int
    message_id: str | None


class ManagementResponse(_Message):
    """What `$management` answers, as AMQP writes it."""

    response: bytes


class FragmentRuntime(_Message):
    """What one part of an entity holds: the fields of its runtime, by their names."""

    entity_id: int
    fragment: int
    runtime: dict[str, int | bool]


class Runtimes(_Message):
    """What the parts hold that are this process's own."""

    fragments: list[FragmentRuntime]


class Deliveries(_Message):
    """Messages for a receiver, or a reader."""

    consumer_id: int
    deliveries: list[Delivery]


class Drained(_Message):
    """A claim is over: there was no more for it."""

    consumer_id: int


class MessagesAvailable(_Message):
    """There is something for a receiver that has claimed nothing."""

    consumer_id: int


class SessionGranted(_Message):
    """A receiver has a session, until a time of the wall clock."""

    consumer_id: int
    session_id: bytes
    locked_until_ms: int


class ConsumerDetached(_Message):
    """A receiver or reader gets nothing any more, for this reason."""

    consumer_id: int
    error_name: str
    text: str


class StoreHealth(_Message):
    """Stores of this process: why each does not work, and why it takes no messages; None where it does."""

    stores: dict[int, tuple[str | None, str | None]]


Reply: TypeAlias = (
    Done
    | Failed
    | Numbers
    | CapacityErrors
    | LocksLost
    | PeekedMessages
    | LockedMessage
    | ManagementResponse
    | Runtimes
    | Deliveries
    | Drained
    | MessagesAvailable
    | SessionGranted
    | ConsumerDetached
    | StoreHealth
)


# --- errors -----------------------------------------------------------------------------------------------------------


def error_name(error: ServiceBusError) -> str:
    """The name of an error's class; of the nearest that the other side knows, if it is one of the broker's own."""
    names = (kind.__name__ for kind in type(error).__mro__ if getattr(errors, kind.__name__, None) is kind)
    return next(names, ServiceBusError.__name__)


def failure_reply(error: ServiceBusError) -> Failed:
    """An error, as it is told."""
    return Failed(error_name(error), str(error))


def make_error(name: str, text: str) -> ServiceBusError:
    """The error that was told."""
    found = getattr(errors, name, ServiceBusError)
    error: ServiceBusError = found.__new__(found)  # some make their texts themselves
    error.args = (text,)
    return error
