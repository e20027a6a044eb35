"""The port of a fragment: the operations that a gateway may call on a fragment in any process.

Owns the signatures of these operations. A fragment in this process completes some operations during the call, a
fragment in another process completes them later; callers must handle both. `broker.fragment` and `broker.remote`
implement the port.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeAlias

from twinbus.broker.message_record import enqueued_time_of, session_id_of
from twinbus.broker.ports.settlement import Disposition
from twinbus.model.callbacks import ignore
from twinbus.model.errors import ServiceBusError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from twinbus.broker.clock import TimeServices
    from twinbus.broker.fragment.fragment import Fragment
    from twinbus.broker.ports.callbacks import OnDone
    from twinbus.broker.ports.consumer import Consumer, GatewayBrowseReader
    from twinbus.broker.ports.exclusive_receiver import ExclusiveLocks
    from twinbus.broker.ports.read_limiter import ReadLimiter

    OnCapacityChecked: TypeAlias = Callable[[dict[int, ServiceBusError]], None]

SEQUENCE_FRAGMENT_SHIFT: Final = 48
"""Shift of the fragment's number within a sequence number."""
TOKEN_FRAGMENT_BYTE: Final = 8
"""Position of the fragment's number in a lock token and in a delivery tag."""
LOCK_TOKEN_BYTES: Final = 16


def fragment_of_sequence(sequence: int) -> int:
    """Return the number of the fragment that holds the message with this sequence number."""
    return sequence >> SEQUENCE_FRAGMENT_SHIFT


def delivery_tag_of(token: bytes) -> bytes:
    """Return the delivery tag of a lock token: the bytes of the GUID in .NET's order."""
    return token[3::-1] + token[5:3:-1] + token[7:5:-1] + token[8:]


lock_token_of: Final = delivery_tag_of
"""Return the lock token of a delivery tag; the same conversion works both ways."""


READ_BATCH_SIZE: Final = 100
"""Maximum number of records that are read at once: 25 MB, if all have the maximum size. The same number of dead letters
can be resubmitted together, because they are read at once."""
UNLIMITED: Final = 2**63


class RemovalCriteria:
    """Criteria for messages to delete in bulk."""

    __slots__ = ("enqueued_before_ms", "max_count", "max_sequence", "session_id")

    def __init__(
        self,
        *,
        max_count: int = UNLIMITED,
        max_sequence: int = UNLIMITED,
        enqueued_before_ms: int = UNLIMITED,
        session_id: bytes | None = None,
    ) -> None:
        """Create criteria, all of which must hold; by default all messages match."""
        self.max_count = max_count
        self.max_sequence = max_sequence
        self.enqueued_before_ms = enqueued_before_ms
        self.session_id = session_id

    def matches(self, record: bytes) -> bool:
        """Return whether a message matches by its enqueued time and session."""
        if self.session_id is not None and session_id_of(record) != self.session_id:
            return False
        return enqueued_time_of(record) < self.enqueued_before_ms


class RemovalResult:
    """Result of a bulk deletion."""

    __slots__ = ("removed_count", "skipped_count")

    def __init__(self) -> None:
        """Create a result with counts of 0."""
        self.removed_count = 0
        self.skipped_count = 0
        """Matching messages that were not deleted because they are in flight."""


OnRemoved: TypeAlias = Callable[[RemovalResult | ServiceBusError], None]


OWNER_TIMEOUT_S: Final = 0.25
"""Time that a gateway waits for the owner of a fragment before it continues without the owner's reply."""


class SessionLock:
    """Lock of a session, as its receiver sees it."""

    def __init__(self, session_id: bytes, consumer: Consumer, locked_until_ms: int = 0) -> None:
        """Create a receiver's lock of a session, which expires at the wall-clock time `locked_until_ms`."""
        self.session_id = session_id
        self.consumer = consumer
        self.locked_until_ms = locked_until_ms
        self.has_ended = False
        """Whether the receiver has lost or released the session."""


class DispatcherPort:
    """Receivers of a fragment, and delivery of messages to them."""

    @property
    def consumers(self) -> Collection[Consumer]:
        """All receivers; for a fragment with sessions, the receivers that hold a session or wait for a session."""
        raise NotImplementedError

    def add(self, consumer: Consumer) -> None:
        """Add a receiver to a fragment without sessions; call `dispatch_to` when the receiver has credit."""
        raise NotImplementedError

    def accept_session(self, consumer: Consumer, session_id: bytes, on_accepted: Callable[[SessionLock], None]) -> None:
        """Lock a session for a receiver.

        SessionCannotBeLocked is raised, or reported by the receiver's `force_detach`.
        """
        raise NotImplementedError

    def accept_next_session(self, consumer: Consumer, on_accepted: Callable[[SessionLock], None]) -> None:
        """Lock any free session with messages for a receiver, as soon as there is one."""
        raise NotImplementedError

    def cancel_accept(self, consumer: Consumer) -> bool:
        """Stop waiting for a session; return False if the receiver already holds a session."""
        raise NotImplementedError

    def owns_session_lock(self, session_lock: SessionLock) -> bool:
        """Return whether a session lock belongs to this fragment."""
        raise NotImplementedError

    def remove(self, consumer: Consumer) -> None:
        """Remove a receiver and release its session, whose locked messages become available again."""
        raise NotImplementedError

    def dispatch_to(self, consumer: Consumer) -> None:
        """Deliver messages to a receiver that has credit."""
        raise NotImplementedError

    def drain(self, consumer: Consumer, on_drained: Callable[[], None]) -> None:
        """Deliver the available messages to a receiver, then call `on_drained`, after at most 0.1 s."""
        raise NotImplementedError

    def has_reserved_credit(self, consumer: Consumer) -> bool:  # noqa: ARG002
        """Return whether credit of a receiver is reserved, because the receiver asked the fragment for messages."""
        return False

    def close(self, error: ServiceBusError) -> None:
        """Detach all receivers with an error."""
        raise NotImplementedError

    def dispatch(self) -> None:
        """Deliver available messages to all receivers with credit."""
        raise NotImplementedError

    def withhold(self, property_name: str = "", values: Sequence[str] = ()) -> None:
        """Skip messages whose property `property_name` has one of `values`; each call replaces the previous values."""


class SettlementPort:
    """Settlement of locked messages, whose locks are identified by numbers (`FragmentPort.lock_numbers`).

    Each method returns the numbers of locks that are known to be lost, and calls `on_done` for the other locks. A
    fragment in another process reports lost locks to `on_done` instead (`SomeLocksLost`).
    """

    def complete(self, lock_numbers: Iterable[int], on_done: OnDone) -> list[int]:
        """Complete messages: delete them."""
        raise NotImplementedError

    def release(self, lock_numbers: Iterable[int], on_done: OnDone) -> list[int]:
        """Requeue messages that no client has received; their delivery count does not change."""
        raise NotImplementedError

    def reclaim(self, lock_numbers: Iterable[int]) -> None:
        """Requeue messages locked by a receiver that will not return, with a delivery count of at least 1."""
        raise NotImplementedError

    def abandon(
        self, lock_numbers: Iterable[int], on_done: OnDone, properties: Mapping[str, object] | None = None
    ) -> list[int]:
        """Requeue messages with an incremented delivery count, and set `properties` on the messages."""
        raise NotImplementedError

    def defer(
        self, lock_numbers: Iterable[int], on_done: OnDone, properties: Mapping[str, object] | None = None
    ) -> list[int]:
        """Defer messages: they can be received only by sequence number, and their delivery count does not change."""
        raise NotImplementedError

    def dead_letter(
        self,
        lock_numbers: Iterable[int],
        on_done: OnDone,
        *,
        reason: str | None = None,
        description: str | None = None,
        properties: Mapping[str, object] | None = None,
    ) -> list[int]:
        """Move messages to the dead-letter queue.

        Messages that are already in a dead-letter queue stay there, with an incremented delivery count.
        """
        raise NotImplementedError

    def settle(
        self, disposition: Disposition, lock_numbers: Iterable[int], on_done: OnDone, properties: Mapping[str, object]
    ) -> list[int]:
        """Settle messages with any disposition, and set `properties` (such as a dead-letter reason) on the messages."""
        if disposition is Disposition.COMPLETE:
            return self.complete(lock_numbers, on_done)
        if disposition is Disposition.RELEASE:
            return self.release(lock_numbers, on_done)
        if disposition is Disposition.DEFER:
            return self.defer(lock_numbers, on_done, properties)
        if disposition is Disposition.DEAD_LETTER:
            return self.dead_letter(lock_numbers, on_done, properties=properties)
        return self.abandon(lock_numbers, on_done, properties)

    def is_lock_valid(
        self, lock_number: int, session_holder_of: Callable[[bytes], Consumer | None] | None = None
    ) -> bool:
        """Return whether a lock exists, has not expired and may be used by the caller, as far as this process knows.

        Only the receiver that holds a session may settle its messages: `session_holder_of` returns the caller's
        receiver that holds a given session, or None.
        """
        raise NotImplementedError

    def renew_lock(self, lock_number: int, on_result: Callable[[int | ServiceBusError], None]) -> None:
        """Renew a lock for its full duration; `on_result` gets the wall-clock time of its expiry, or an error."""
        raise NotImplementedError

    def find_locked_message(
        self, lock_number: int, on_result: Callable[[tuple[int, str | None] | ServiceBusError], None]
    ) -> None:
        """Find the sequence number and id of a locked message; `on_result` gets MessageLockLost if the lock is lost."""
        raise NotImplementedError


class BrowseCursorPort:
    """Position of one browse reader in the log of a fragment."""

    def advance(self) -> None:
        """Deliver more messages to the reader, because it has credit or new messages have arrived."""
        raise NotImplementedError

    def drain(self, on_drained: Callable[[], None]) -> None:
        """Deliver the present messages to the reader, then call `on_drained`."""
        raise NotImplementedError

    def close(self) -> None:
        """Stop delivering messages to the reader."""
        raise NotImplementedError

    @property
    def has_reserved_credit(self) -> bool:
        """Whether credit of the reader is reserved, because the reader asked the fragment for messages."""
        return False


class MessageBrowserPort:
    """Peeking and browsing: reading messages without receiving them."""

    def peek(
        self,
        from_sequence: int,
        count: int,
        max_bytes: int,
        on_result: Callable[[list[bytes] | ServiceBusError], None],
        *,
        deferred_only: bool = False,
    ) -> None:
        """Read up to `count` messages in any state, starting at a sequence number.

        `deferred_only` reads only deferred messages, after waiting for deferrals that are not on disk yet.
        """
        raise NotImplementedError

    def find_by_enqueued_time(self, enqueued_ms: int, on_result: Callable[[int | ServiceBusError], None]) -> None:
        """Find the sequence number of the first message enqueued at or after a time.

        If there is no such message, `on_result` gets the next sequence number to be assigned.
        """
        raise NotImplementedError

    def find_sequence_range(self, on_result: Callable[[tuple[int, int] | ServiceBusError], None]) -> None:
        """Find the lowest sequence number that may still exist, and the next sequence number to be assigned."""
        raise NotImplementedError

    @property
    def last_enqueued_ms(self) -> int:
        """Enqueued time of the last message, as far as this process knows."""
        raise NotImplementedError

    def browse(
        self,
        reader: GatewayBrowseReader,
        first_sequence: int,
        last_sequence: int,
        *,
        ends_at_last: bool,
        read_limiter: ReadLimiter,
    ) -> BrowseCursorPort:
        """Deliver active messages in a range of sequence numbers (both included) to a reader.

        Messages that arrive later are delivered, too. With `ends_at_last`, the reader is detached after the last
        message in the range. `read_limiter` is shared by all browsers in the process.
        """
        raise NotImplementedError


class OwnerPort:
    """The process that owns a fragment. This base class stands for the local process, for which callers never wait."""

    @property
    def is_responsive(self) -> bool:
        """Whether the process is connected and replies, so that callers wait for its confirmation."""
        return False

    def barrier(self, on_reached: Callable[[object], None]) -> None:
        """Call `on_reached` when the owner has handled all earlier requests."""
        on_reached(None)

    @property
    def decides_capacity(self) -> bool:
        """Whether only the owner knows if its fragments can store more messages (`check_capacity`)."""
        return False

    def check_capacity(self, entity_id: int, sizes: dict[int, int], on_checked: OnCapacityChecked) -> None:
        """Check whether fragments of an entity can store `sizes` bytes, by fragment number, without reserving space.

        `on_checked` gets the errors of the fragments that cannot store the bytes, by fragment number. Raises
        StoreUnavailable if the owner is not connected.
        """
        raise NotImplementedError

    def mark_suspect(self) -> None:
        """Note that the owner did not reply in time; callers do not wait for the owner until it sends something."""


LOCAL_OWNER: Final = OwnerPort()


class ManagementRequest:
    """A request to `$management` that can be sent to the owner of a fragment."""

    def __init__(
        self,
        message_type: type,
        encode_arguments: Callable[[], bytes],
        on_reply: Callable[[bytes | ServiceBusError], None],
        *,
        client_id: int = 0,
        transaction_id: int = 0,
    ) -> None:
        """Create a request; `message_type` is the operation's message in the peer protocol.

        `transaction_id` names the client's transaction at the owner; 0 means none.
        """
        self.message_type = message_type
        self.encode_arguments = encode_arguments
        self.on_reply = on_reply
        self.client_id = client_id
        self.transaction_id = transaction_id


class FragmentPort:
    """One sub-queue (active messages, dead letters, ...) of one fragment of an entity."""

    def __init__(self, number: int, time_services: TimeServices, *, has_sessions: bool) -> None:
        """Create the port of fragment `number`."""
        self.number = number
        self.clock = time_services.clock
        self.timers = time_services.timers
        self.has_sessions = has_sessions
        self.is_suspended = False
        """Whether an outage is rehearsed, so that no messages are delivered."""
        self.attach_count = 0
        """Number of receivers attached so far; counted in the first fragment of an entity only."""

    # --- the groups of operations -------------------------------------------------------------------------------------

    @property
    def dispatcher(self) -> DispatcherPort:
        """Dispatcher of the fragment's messages."""
        raise NotImplementedError

    @property
    def settlement(self) -> SettlementPort:
        """Settlement of the fragment's locked messages."""
        raise NotImplementedError

    @property
    def browser(self) -> MessageBrowserPort:
        """Browser of the fragment's messages."""
        raise NotImplementedError

    def manage(self, request: ManagementRequest, run_locally: Callable[[], None]) -> None:  # noqa: ARG002
        """Carry out a request to `$management`: call `run_locally`, or send the request to the owning process."""
        run_locally()

    @property
    def local(self) -> Fragment:
        """The local fragment, for operations that run in the owning process (`manage`)."""
        raise NotImplementedError

    # --- state --------------------------------------------------------------------------------------------------------

    @property
    def is_available(self) -> bool:
        """Whether the fragment's store works and the fragment is loaded."""
        raise NotImplementedError

    @property
    def accepts_sends(self) -> bool:
        """Whether a message sent now can be stored, as far as this process knows."""
        raise NotImplementedError

    @property
    def can_deliver(self) -> bool:
        """Whether messages may be delivered now: the fragment is available and no outage is rehearsed."""
        return self.is_available and not self.is_suspended

    @property
    def is_in_use(self) -> bool:
        """Whether a receiver or browser is attached."""
        return bool(self.dispatcher.consumers)

    def check_available(self) -> None:
        """Raise StoreUnavailable if the fragment's store does not work now."""
        raise NotImplementedError

    def check_accepts_sends(self) -> None:
        """Raise StoreUnavailable or ServerBusy if the fragment's store accepts no messages now."""
        raise NotImplementedError

    def check_loaded(self) -> None:
        """Raise StoreUnavailable if the fragment is not loaded, or the error for a deleted entity."""

    # --- receivers ----------------------------------------------------------------------------------------------------

    def lock_numbers(self, tags: Iterable[bytes]) -> list[int]:
        """Return the lock numbers of delivery tags or tokens, with 0 for tags or tokens of an earlier incarnation."""
        raise NotImplementedError

    @property
    def admits_asynchronously(self) -> bool:
        """Whether another, connected process admits receivers and then calls their `on_admitted`."""
        return False

    @property
    def reserves_credit(self) -> bool:
        """Whether asking the fragment for messages reserves credit, which other fragments then cannot use."""
        return False

    @property
    def owner(self) -> OwnerPort:
        """The process that owns the fragment."""
        return LOCAL_OWNER

    def track_exclusive_locks(self) -> ExclusiveLocks | None:
        """Start recording the locks of an exclusive receiver; return None if the owner records them."""
        return None

    def detach_receivers(self, error: ServiceBusError) -> None:
        """Detach all receivers and browsers with an error."""
        self.dispatcher.close(error)

    def resume(self) -> None:
        """Dispatch messages again, after a commit was applied or an outage has ended."""
        self.dispatcher.dispatch()

    def close(self, error: ServiceBusError) -> None:
        """Close the fragment of a deleted entity: detach all receivers and browsers."""
        self.detach_receivers(error)


class TransactionPort:
    """The part of a transaction that the owner of a fragment carries out."""

    number = 0
    """Number of the transaction at its owner, if that is another process."""

    def settle(
        self,
        fragment: FragmentPort,
        lock_numbers: list[int],
        disposition: Disposition,
        properties: Mapping[str, object] | None,
        on_settled: Callable[[bool], None],
    ) -> list[int]:
        """Settle locked messages when the transaction commits; return the numbers of lost locks.

        `on_settled` gets True after the commit, or False after a rollback.
        """
        raise NotImplementedError

    def schedule(self, records: list[bytes]) -> list[int]:
        """Store scheduled messages when the transaction commits; return their future sequence numbers."""
        raise NotImplementedError

    def roll_back(self) -> None:
        """Roll back the transaction: messages that it would have settled stay locked."""
        raise NotImplementedError

    def commit(self, sends: list[tuple[bytes, int, str | None]], on_done: OnDone = ignore) -> None:
        """Commit the transaction; `sends` are payloads, message formats and final destinations (None: this entity)."""
        raise NotImplementedError
