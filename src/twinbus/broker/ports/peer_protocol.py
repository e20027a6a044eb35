"""Messages between the processes of one namespace.

A request goes from the client's process to the owner of a fragment. The owner sends replies to requests, and notices of
events in its fragments. Owns the message types, which are plain data, so that a socket can carry them.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

from twinbus.model import errors
from twinbus.model.errors import ServiceBusError
from twinbus.model.path import SubQueue

FragmentAddress: TypeAlias = tuple[int, int, int]
"""Entity id, fragment number, and index of the sub-queue in `SUB_QUEUES`."""
SUB_QUEUES: Final = tuple(SubQueue)
Delivery: TypeAlias = tuple[bytes, bytes]
TransactionSend: TypeAlias = tuple[bytes, int, str | None]
"""A send in a transaction: payload, message format, and final destination (None: the transaction's entity)."""


class _Message(msgspec.Struct, array_like=True, tag=True, gc=False):
    """Base class of all messages; encoded as an array that begins with the name of the message type."""


# --- requests ---------------------------------------------------------------------------------------------------------


class Send(_Message):
    """Store messages; an empty list asks whether the store works. Reply: `Numbers`."""

    entity_id: int
    fragment: int
    records: list[bytes]
    identities: list[bytes]


class CheckCapacity(_Message):
    """Check whether fragments of an entity can store these sizes in bytes. Reply: `CapacityErrors`."""

    entity_id: int
    sizes_by_fragment: dict[int, int]


class SendVia(_Message):
    """Store messages for forwarding to another entity. Reply: `Done`."""

    entity_id: int
    fragment: int
    records: list[bytes]
    destination: str


class AcceptForwarded(_Message):
    """Store messages forwarded by another entity, each with its sequence number in that entity. Reply: `Done`."""

    entity_id: int
    fragment: int
    source_prefix: bytes
    numbered_records: list[tuple[int, bytes]]


class Settle(_Message):
    """Settle messages by lock tokens; `properties` are an AMQP-encoded map. Reply: `LocksLost`."""

    address: FragmentAddress
    disposition: str
    lock_tokens: list[bytes]
    properties: bytes


class Peek(_Message):
    """Peek messages. Reply: `PeekedMessages`."""

    address: FragmentAddress
    from_sequence: int
    count: int
    max_bytes: int
    deferred_only: bool


class FindByEnqueuedTime(_Message):
    """Find the first message enqueued at or after a time. Reply: `Numbers` with its sequence number."""

    address: FragmentAddress
    enqueued_ms: int


class GetLogRange(_Message):
    """Get the range of sequence numbers. Reply: `Numbers` with the lowest number and the next number to be assigned."""

    address: FragmentAddress


class FindLockedMessage(_Message):
    """Find the message that a lock belongs to. Reply: `LockedMessage`."""

    address: FragmentAddress
    lock_token: bytes


class RenewLock(_Message):
    """Renew a lock. Reply: `Numbers` with the wall-clock time of its expiry."""

    address: FragmentAddress
    lock_token: bytes


class ManagementCall(_Message):
    """A request to `$management`, with one subclass for each operation. Reply: `ManagementResponse`.

    `arguments` are AMQP-encoded; `transaction_id` names the transaction that the operation is part of; 0 means none.
    """

    address: FragmentAddress
    arguments: bytes
    client_id: int
    transaction_id: int


class PeekMessages(ManagementCall):
    """Peek messages."""


class CancelScheduled(ManagementCall):
    """Cancel scheduled messages."""


class FindScheduled(ManagementCall):
    """Check whether messages are scheduled."""


class RenewLocks(ManagementCall):
    """Renew message locks."""


class ReceiveDeferred(ManagementCall):
    """Receive deferred messages."""


class UpdateDisposition(ManagementCall):
    """Settle messages by their lock tokens."""


class ScheduleMessages(ManagementCall):
    """Store scheduled messages, in a transaction."""


class RenewSession(ManagementCall):
    """Renew the lock of a session."""


class SetSessionState(ManagementCall):
    """Set or clear the state of a session."""


class GetSessionState(ManagementCall):
    """Get the state of a session."""


class ListSessions(ManagementCall):
    """List sessions."""


class BatchDelete(ManagementCall):
    """Delete the oldest messages."""


class Purge(ManagementCall):
    """Delete all messages in one state."""


class DeleteBySequenceNumber(ManagementCall):
    """Delete messages by their sequence numbers."""


class Resubmit(ManagementCall):
    """Make dead letters active again."""


class MoveMessages(ManagementCall):
    """Move active messages to another entity."""


class SearchMessages(ManagementCall):
    """Search messages with a filter."""


class CompleteUpTo(ManagementCall):
    """Complete messages up to a sequence number."""


class ListFragments(ManagementCall):
    """Get the range of sequence numbers in a fragment's log."""


class Withhold(ManagementCall):
    """Skip messages that an exclusive receiver does not want."""


class GetRuntimes(_Message):
    """Get the message counts and sizes of entities' fragments. Reply: `Runtimes`."""

    entity_ids: list[int]


class GetStatus(_Message):
    """Get figures of the owner's process, connections or locks, for the JSON API. Reply: `Status`.

    The package `server.api` encodes the request and the reply: the broker does not know what they say.
    """

    content: bytes


class AttachConsumer(_Message):
    """Attach a receiver to a fragment; `link_id` is the same for all fragments of the receiver. Reply: `Done`.

    A session receiver names a session, or accepts any session (None). When the receiver holds a session, it gets
    `SessionGranted`.
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
    """Attach a browse reader to a range of a fragment's log. Reply: `Done`.

    If `is_bounded`, the reader gets `ConsumerDetached` after the last message in the range.
    """

    consumer_id: int
    address: FragmentAddress
    first_sequence: int
    last_sequence: int
    is_bounded: bool


class GrantCredit(_Message):
    """Grant credit to a fragment, which sends available messages as `Deliveries`, and then `Drained`."""

    consumer_id: int
    credit: int


class Detach(_Message):
    """Detach a receiver or reader; requeue its deliveries, except the first `received_count` since its last grant."""

    consumer_id: int
    received_count: int


class ReturnMessages(_Message):
    """Restore messages that were deleted for a receiver, but that the receiver did not accept. Reply: `Done`."""

    consumer_id: int
    sequence_numbers: list[int]


class ConfirmDelivered(_Message):
    """Confirm that a receive-and-delete receiver has the first `delivered_count` messages since it granted credit.

    Messages that the receiver did not accept are returned by `ReturnMessages` beforehand.
    """

    consumer_id: int
    delivered_count: int


class Barrier(_Message):
    """Confirm that all previous requests were received. Reply: `Done`."""


class SettleInTransaction(_Message):
    """Settle messages when a transaction commits."""

    transaction_id: int
    address: FragmentAddress
    lock_tokens: list[bytes]
    disposition: str
    properties: bytes


class Commit(_Message):
    """Commit a transaction, and store its sends. Reply: `Done`."""

    transaction_id: int
    entity_id: int
    fragment: int
    sends: list[TransactionSend]


class RollBack(_Message):
    """Roll back a transaction."""

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
    | MoveMessages
    | SearchMessages
    | CompleteUpTo
    | ListFragments
    | Withhold
    | GetRuntimes
    | GetStatus
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


# --- replies and notices ----------------------------------------------------------------------------------------------


class Done(_Message):
    """The request succeeded; its changes are on disk."""


class Failed(_Message):
    """The request failed with this error: the name of its class, and its text."""

    error_name: str
    text: str


class Numbers(_Message):
    """The numbers that a request asked for."""

    numbers: list[int]


class CapacityErrors(_Message):
    """Errors of the fragments that cannot store the requested sizes: class name and text, by fragment number."""

    errors_by_fragment: dict[int, tuple[str, str]]


class LocksLost(_Message):
    """The messages are settled, except those at these indexes in the request, whose locks are lost."""

    indexes: list[int]


class PeekedMessages(_Message):
    """Peeked messages, and the enqueued time of the fragment's last message."""

    messages: list[bytes]
    last_enqueued_ms: int


class LockedMessage(_Message):
    """The message that a lock belongs to."""

    sequence_number: int
    message_id: str | None


class ManagementResponse(_Message):
    """AMQP-encoded response from `$management`."""

    response: bytes


class FragmentRuntime(_Message):
    """Message counts and sizes of one fragment of an entity: the fields of its runtime, by name."""

    entity_id: int
    fragment: int
    runtime: dict[str, int | bool]


class Runtimes(_Message):
    """Message counts and sizes of the fragments that the replying process owns."""

    fragments: list[FragmentRuntime]


class Status(_Message):
    """The reply to `GetStatus`."""

    content: bytes


class Deliveries(_Message):
    """Messages for a receiver or reader."""

    consumer_id: int
    deliveries: list[Delivery]


class Drained(_Message):
    """No more messages are available for the granted credit; unused credit is released."""

    consumer_id: int


class MessagesAvailable(_Message):
    """Messages are available for a receiver or reader that has granted no credit."""

    consumer_id: int


class SessionGranted(_Message):
    """A receiver holds a session, until a wall-clock time."""

    consumer_id: int
    session_id: bytes
    locked_until_ms: int


class ConsumerDetached(_Message):
    """The owner has detached a receiver or reader with this error."""

    consumer_id: int
    error_name: str
    text: str


class StoreHealth(_Message):
    """Health of the owner's stores, by store number.

    The first text is the reason why a store is unavailable, the second text is the reason why it accepts no messages
    (its disk is full). None means that there is no such reason.
    """

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
    | Status
    | Deliveries
    | Drained
    | MessagesAvailable
    | SessionGranted
    | ConsumerDetached
    | StoreHealth
)


# --- errors -----------------------------------------------------------------------------------------------------------


def error_name(error: ServiceBusError) -> str:
    """Return the class name of an error, or of its nearest base class in `model.errors`, which every process knows."""
    names = (kind.__name__ for kind in type(error).__mro__ if getattr(errors, kind.__name__, None) is kind)
    return next(names, ServiceBusError.__name__)


def failure_reply(error: ServiceBusError) -> Failed:
    """Return the reply to a request that failed with this error."""
    return Failed(error_name(error), str(error))


def make_error(name: str, text: str) -> ServiceBusError:
    """Return the error that another process has reported by name and text."""
    error_type = getattr(errors, name, ServiceBusError)
    error: ServiceBusError = error_type.__new__(error_type)  # some constructors build the text from other arguments
    error.args = (text,)
    return error
