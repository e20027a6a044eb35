"""The port of a fragment: the operations that a gateway may call on it, wherever it is.

Owns: their signatures. A fragment of this process answers some of them at once, a fragment of another process answers
later; callers are written for the second case. `broker.fragment` and `broker.remote.fragment` implement them.
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
"""The bits of a sequence number above these are the number of its fragment."""
TOKEN_FRAGMENT_BYTE: Final = 8
"""The position, in a lock token and in a delivery tag, of the byte that is the number of its fragment."""
LOCK_TOKEN_BYTES: Final = 16


def fragment_of_sequence(sequence: int) -> int:
    """Return the number of the fragment that holds the message of a sequence number."""
    return sequence >> SEQUENCE_FRAGMENT_SHIFT


def delivery_tag_of(token: bytes) -> bytes:
    """Return the delivery tag of a token: the bytes of the GUID in .NET's order."""
    return token[3::-1] + token[5:3:-1] + token[7:5:-1] + token[8:]


lock_token_of: Final = delivery_tag_of
"""The order of the bytes is reversed by reversing it again."""


READ_BATCH_SIZE: Final = 100
"""Records that are read at once: of the largest, they are 25 MB. Dead letters that are resubmitted together are read
together, so there can be no more of them."""
UNLIMITED: Final = 2**63


class RemovalCriteria:
    """Which messages are to go."""

    __slots__ = ("enqueued_before_ms", "max_count", "max_sequence", "session_id")

    def __init__(
        self,
        *,
        max_count: int = UNLIMITED,
        max_sequence: int = UNLIMITED,
        enqueued_before_ms: int = UNLIMITED,
        session_id: bytes | None = None,
    ) -> None:
        """So many at most, up to this sequence number, enqueued before this time, of this session."""
        self.max_count = max_count
        self.max_sequence = max_sequence
        self.enqueued_before_ms = enqueued_before_ms
        self.session_id = session_id

    def matches(self, record: bytes) -> bool:
        """This message is to go."""
        if self.session_id is not None and session_id_of(record) != self.session_id:
            return False
        return enqueued_time_of(record) < self.enqueued_before_ms


class RemovalResult:
    """What became of it."""

    __slots__ = ("removed_count", "skipped_count")

    def __init__(self) -> None:
        """Nothing yet."""
        self.removed_count = 0
        self.skipped_count = 0
        """Those that someone has."""


OnRemoved: TypeAlias = Callable[[RemovalResult | ServiceBusError], None]


OWNER_TIMEOUT_S: Final = 0.25
"""How long a gateway waits for the owner of a fragment before it goes on without it."""


class SessionLock:
    """A session that a receiver has, as the receiver knows it."""

    def __init__(self, session_id: bytes, consumer: Consumer, locked_until_ms: int = 0) -> None:
        """`until_ms` is the time on the wall clock until when it is locked."""
        self.session_id = session_id
        self.consumer = consumer
        self.locked_until_ms = locked_until_ms
        self.has_ended = False
        """The receiver does not have it any more."""


class DispatcherPort:
    """Who receives from a fragment, and who gets a message next."""

    @property
    def consumers(self) -> Collection[Consumer]:
        """All receivers; of a fragment with sessions, those that have a session or wait for one."""
        raise NotImplementedError

    def add(self, consumer: Consumer) -> None:
        """Add a receiver to a fragment without sessions; it says when it has room (`feed`)."""
        raise NotImplementedError

    def accept_session(self, consumer: Consumer, session_id: bytes, on_accepted: Callable[[SessionLock], None]) -> None:
        """Give a receiver the session that it names. SessionCannotBeLocked, raised or reported by `entity_gone`."""
        raise NotImplementedError

    def accept_next_session(self, consumer: Consumer, on_accepted: Callable[[SessionLock], None]) -> None:
        """Give a receiver any session that is free and has messages, as soon as there is one."""
        raise NotImplementedError

    def cancel_accept(self, consumer: Consumer) -> bool:
        """Stop waiting for a session. Return False if the receiver has one by now."""
        raise NotImplementedError

    def owns_session_lock(self, session_lock: SessionLock) -> bool:
        """Whether a session that a receiver has is of this fragment."""
        raise NotImplementedError

    def remove(self, consumer: Consumer) -> None:
        """Remove a receiver; its session is free, and messages of that which it has are available as before."""
        raise NotImplementedError

    def dispatch_to(self, consumer: Consumer) -> None:
        """Give messages to a receiver that has room."""
        raise NotImplementedError

    def drain(self, consumer: Consumer, on_drained: Callable[[], None]) -> None:
        """Give a receiver what there is now; `drained` is called when that was all, or after a tenth of a second."""
        raise NotImplementedError

    def has_reserved_credit(self, consumer: Consumer) -> bool:  # noqa: ARG002
        """Whether the fragment has been asked for messages and holds credit of the receiver."""
        return False

    def close(self, error: ServiceBusError) -> None:
        """End all receivers."""
        raise NotImplementedError

    def dispatch(self) -> None:
        """Hand out what can be handed out."""
        raise NotImplementedError

    def withhold(self, property_name: str = "", values: Sequence[str] = ()) -> None:
        """Skip messages whose property has one of these values, and no others, until the next call."""


class SettlementPort:
    """The ends of locks. Locks are named by numbers (`FragmentPort.lock_numbers`).

    Each method returns the numbers of locks that are known to be lost; `answer` is called for the others. A fragment of
    another process reports lost locks by `answer` (`SomeLocksLost`).
    """

    def complete(self, lock_numbers: Iterable[int], on_done: OnDone) -> list[int]:
        """Delete messages."""
        raise NotImplementedError

    def release(self, lock_numbers: Iterable[int], on_done: OnDone) -> list[int]:
        """Return messages that nobody has seen."""
        raise NotImplementedError

    def reclaim(self, lock_numbers: Iterable[int]) -> None:
        """Return messages at once when their receiver is gone for good; they come with a count of at least 1."""
        raise NotImplementedError

    def abandon(
        self, lock_numbers: Iterable[int], on_done: OnDone, properties: Mapping[str, object] | None = None
    ) -> list[int]:
        """Return messages with one more delivery on their count, and perhaps with changed properties."""
        raise NotImplementedError

    def defer(
        self, lock_numbers: Iterable[int], on_done: OnDone, properties: Mapping[str, object] | None = None
    ) -> list[int]:
        """Defer messages: a receiver has to name their sequence numbers. That is not counted as a delivery."""
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
        """Move messages to the dead-letter queue; those of a dead-letter queue stay there, and count a delivery."""
        raise NotImplementedError

    def settle(
        self, disposition: Disposition, lock_numbers: Iterable[int], on_done: OnDone, properties: Mapping[str, object]
    ) -> list[int]:
        """Settle in any of these ways; `properties` are changed in the messages, or say why they are dead-lettered."""
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
        """Whether a lock is there, has not expired, and may be ended by the caller, as far as that is known here.

        The messages of a session may be settled by the receiver that holds the session and by nobody else: `holder_of`
        returns the caller's receiver that holds a session, or None.
        """
        raise NotImplementedError

    def renew_lock(self, lock_number: int, on_result: Callable[[int | ServiceBusError], None]) -> None:
        """Let a lock last its duration from now; `done` gets the time on the wall clock until when, or an error."""
        raise NotImplementedError

    def find_locked_message(
        self, lock_number: int, on_result: Callable[[tuple[int, str | None] | ServiceBusError], None]
    ) -> None:
        """Find the sequence number and the message id of a locked message. MessageLockLost."""
        raise NotImplementedError


class BrowseCursorPort:
    """One reader's way through the log of a fragment."""

    def advance(self) -> None:
        """Show more: there is room, or there are messages."""
        raise NotImplementedError

    def drain(self, on_drained: Callable[[], None]) -> None:
        """Show what there is now; `drained` is called when that was all."""
        raise NotImplementedError

    def close(self) -> None:
        """Show nothing more."""
        raise NotImplementedError

    @property
    def has_reserved_credit(self) -> bool:
        """Whether the fragment has been asked for messages and holds room of the reader."""
        return False


class MessageBrowserPort:
    """Looking at messages without receiving them."""

    def peek(
        self,
        from_sequence: int,
        count: int,
        max_bytes: int,
        on_result: Callable[[list[bytes] | ServiceBusError], None],
        *,
        deferred_only: bool = False,
    ) -> None:
        """Read messages from a sequence number on, in any state; `deferred_only`: also those being deferred now."""
        raise NotImplementedError

    def find_by_enqueued_time(self, enqueued_ms: int, on_result: Callable[[int | ServiceBusError], None]) -> None:
        """Find the sequence number of the first message that was not enqueued before a time; else the next number."""
        raise NotImplementedError

    def find_sequence_range(self, on_result: Callable[[tuple[int, int] | ServiceBusError], None]) -> None:
        """Find the lowest sequence number that may be there, and the next one to be given."""
        raise NotImplementedError

    @property
    def last_enqueued_ms(self) -> int:
        """When the last message was enqueued, as far as is known."""
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
        """Show active messages to a reader, from one sequence number to another, both included, and those that come.

        `ends`: the reader is notified when all of that was shown. `reads` are those of all browsers of the process.
        """
        raise NotImplementedError


class OwnerPort:
    """The process that owns a fragment. This class stands for the process itself, which never has to be waited for."""

    @property
    def is_responsive(self) -> bool:
        """Whether it is connected and answers, so that it is worth waiting for its confirmation."""
        return False

    def barrier(self, on_reached: Callable[[object], None]) -> None:
        """Call `told` when the owner has carried out all that it was told before."""
        on_reached(None)

    @property
    def decides_capacity(self) -> bool:
        """Whether only it can say if its fragments have room (`check_room`)."""
        return False

    def check_capacity(self, entity_id: int, sizes: dict[int, int], on_checked: OnCapacityChecked) -> None:
        """Check whether fragments of an entity can store so many bytes each. StoreUnavailable.

        Nothing is reserved. `told` gets the errors of those that cannot, by their numbers.
        """
        raise NotImplementedError

    def mark_suspect(self) -> None:
        """Do not wait for the owner before it says something: it has not confirmed in time."""


LOCAL_OWNER: Final = OwnerPort()


class ManagementRequest:
    """A request to `$management`, in a form that can be carried to the owner of a fragment."""

    def __init__(
        self,
        message_type: type,
        encode_arguments: Callable[[], bytes],
        on_reply: Callable[[bytes | ServiceBusError], None],
        *,
        client_id: int = 0,
        transaction_id: int = 0,
    ) -> None:
        """`kind` is the message of the peer protocol that asks for the operation, `arguments` encodes its arguments.

        `client` is the number of the client that asks, `transaction` that of its transaction at the owner, or 0.
        """
        self.message_type = message_type
        self.encode_arguments = encode_arguments
        self.on_reply = on_reply
        self.client_id = client_id
        self.transaction_id = transaction_id


class FragmentPort:
    """One area (messages, dead letters, ...) of one fragment of an entity."""

    def __init__(self, number: int, time_services: TimeServices, *, has_sessions: bool) -> None:
        """`number` is that of the fragment."""
        self.number = number
        self.clock = time_services.clock
        self.timers = time_services.timers
        self.has_sessions = has_sessions
        self.is_suspended = False
        """An outage is rehearsed: nobody gets anything."""
        self.attach_count = 0
        """Receivers that have come to an entity of which this is the first fragment."""

    # --- the groups of operations -------------------------------------------------------------------------------------

    @property
    def dispatcher(self) -> DispatcherPort:
        """Who receives from it."""
        raise NotImplementedError

    @property
    def settlement(self) -> SettlementPort:
        """The ends of its locks."""
        raise NotImplementedError

    @property
    def browser(self) -> MessageBrowserPort:
        """Looking at its messages."""
        raise NotImplementedError

    def manage(self, request: ManagementRequest, run_locally: Callable[[], None]) -> None:  # noqa: ARG002
        """Carry out a request to `$management`: by `act` in the process that owns the fragment, else by the owner."""
        run_locally()

    @property
    def local(self) -> Fragment:
        """The fragment itself, for operations that run where it is (`manage`)."""
        raise NotImplementedError

    # --- its state ----------------------------------------------------------------------------------------------------

    @property
    def is_available(self) -> bool:
        """Whether its store works, and what it holds is known."""
        raise NotImplementedError

    @property
    def accepts_sends(self) -> bool:
        """Whether a message that is sent now can be stored, as far as is known."""
        raise NotImplementedError

    @property
    def can_deliver(self) -> bool:
        """Whether a message that is handed out now can be settled."""
        return self.is_available and not self.is_suspended

    @property
    def is_in_use(self) -> bool:
        """Whether a receiver or browser is attached."""
        return bool(self.dispatcher.consumers)

    def check_available(self) -> None:
        """Raise StoreUnavailable if its store does not work now."""
        raise NotImplementedError

    def check_accepts_sends(self) -> None:
        """Raise StoreUnavailable or ServerBusy if its store takes no messages now."""
        raise NotImplementedError

    def check_loaded(self) -> None:
        """Raise StoreUnavailable while it is being loaded, or the error of its deleted entity."""

    # --- receivers ----------------------------------------------------------------------------------------------------

    def lock_numbers(self, tags: Iterable[bytes]) -> list[int]:
        """Return the numbers that name locks, by their tags or tokens; 0 for a tag of an earlier life."""
        raise NotImplementedError

    @property
    def admits_asynchronously(self) -> bool:
        """Whether a receiver is admitted by another process, which is connected: the receiver's `let_in` is called."""
        return False

    @property
    def reserves_credit(self) -> bool:
        """Whether credit is reserved while the fragment is asked for messages, and cannot be offered to others."""
        return False

    @property
    def owner(self) -> OwnerPort:
        """The process that owns it."""
        return LOCAL_OWNER

    def track_exclusive_locks(self) -> ExclusiveLocks | None:
        """Note the locks of an exclusive receiver from now on; None if the owner does that."""
        return None

    def detach_receivers(self, error: ServiceBusError) -> None:
        """End all receivers and browsers."""
        self.dispatcher.close(error)

    def resume(self) -> None:
        """Hand out messages again: a commit was applied, or an outage has ended."""
        self.dispatcher.dispatch()

    def close(self, error: ServiceBusError) -> None:
        """The entity was deleted: end all receivers and browsers."""
        self.detach_receivers(error)


class TransactionPort:
    """What the owner of a part carries out of a transaction."""

    number = 0
    """By which the owner knows the transaction, if it is another process."""

    def settle(
        self,
        fragment: FragmentPort,
        lock_numbers: list[int],
        disposition: Disposition,
        properties: Mapping[str, object] | None,
        on_settled: Callable[[bool], None],
    ) -> list[int]:
        """Settle locked messages at the commit; `told` gets whether that was done. Return the locks that are lost."""
        raise NotImplementedError

    def schedule(self, records: list[bytes]) -> list[int]:
        """Store scheduled messages at the commit. Return the sequence numbers that they will have."""
        raise NotImplementedError

    def roll_back(self) -> None:
        """Do nothing of it: messages that were to be settled are locked as before."""
        raise NotImplementedError

    def commit(self, sends: list[tuple[bytes, int, str | None]], on_done: OnDone = ignore) -> None:
        """Do all of it; `sent` are payloads, their message formats, and where they go on to."""
        raise NotImplementedError
