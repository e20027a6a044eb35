"""Reference model of a queue, in lists and dicts.

Owns: all messages that were sent, their locations, locks and pending operations. The model does not predict when the
broker does something: it checks every batch that reaches the disk, message by message, for a reason. When the queue is
idle, it checks that everything has happened that should have.

A message has at most one location: active, deferred or scheduled in the queue, or active or deferred in the dead-letter
queue. `location` is the location on disk, `visible_location` the location that the broker knows, slightly later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.queue.messages import SentMessage, identity_of, properties_of_record
from tests.simulation.queue.model_state import (
    ACTIVE,
    DEAD,
    DEFERRED,
    MAIN,
    SCHEDULED,
    Location,
    Lock,
    Message,
    Operation,
    RememberedId,
    SessionHold,
    Violation,
)
from twinbus.amqp.message import Message as WireMessage
from twinbus.broker.message_record import parse_record
from twinbus.model.description import FOREVER_MS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tests.simulation.queue.links import Receiver
    from twinbus.model.queue import QueueDescription
    from twinbus.testing.clock import FakeClock
EXPIRED = "TTLExpiredException"


class ReferenceModel:
    def __init__(self, clock: FakeClock, description: QueueDescription) -> None:
        self.clock = clock
        self.description = description
        self.messages: dict[int, Message] = {}
        self.by_location: dict[Location, Message] = {}
        self.session_holds: dict[bytes, SessionHold] = {}
        self.states: dict[bytes, list[bytes | None]] = {}
        """Possible states of a session: the last confirmed state, and the states set since."""
        self.remembered: dict[str, list[RememberedId]] = {}
        self.operations: list[Operation] = []
        self.receivers: list[Receiver] = []
        self.highest = {MAIN: 0, DEAD: 0}
        self.latest_ms = 0
        self.step = 0
        self.is_idle: Callable[[], bool] = lambda: False
        """Whether the queue is idle; set by the simulation."""
        self.trace: Callable[[str], None] = lambda _: None
        self.max_delivery_counts = {description.max_delivery_count}
        """Possible max delivery counts: more than one while the description changes."""
        self.dead_lettering_options = {description.dead_lettering_on_expiration}
        self.defaults_ms = {description.default_time_to_live_ms}
        self.duplicate_windows_ms = {description.duplicate_window_ms}
        self.wall_times_ms = {clock.wall_ms()}
        self.latest_wall_ms = clock.wall_ms()
        self.recent_wall_ms = clock.wall_ms()
        """Latest wall-clock time since the queue was last idle."""
        self.leaving_receivers: list[Receiver] = []
        """Closed receivers for which messages are still being deleted."""
        self._batches = 0
        self._moves: dict[int, list[tuple[Message, Location | None]]] = {}

    # --- operations --------------------------------------------------------------------------------------------------

    def begin_operation(
        self,
        kind: str,
        identities: Iterable[int] = (),
        *,
        covers: Callable[[Message], bool] | None = None,
        properties: dict[str, object] | None = None,
    ) -> Operation:
        """Record a requested operation."""
        now_ms = self.clock.wall_ms()
        operation = Operation(kind, now_ms, now_ms, list(identities), properties=properties or {}, step=self.step)
        if covers is not None:
            operation.applies_to = covers
        operation.is_exact = self.is_idle() and not self.operations
        self.operations.append(operation)
        return operation

    def end_operation(self, operation: Operation) -> None:
        """Record that an operation is done, or never began."""
        operation.is_answered = True
        if operation in self.operations:
            self.operations.remove(operation)

    def is_undisturbed(self, operation: Operation) -> bool:
        """Whether no other action ran since the operation began, so that its exact outcome is known."""
        return operation.is_exact and operation.step == self.step

    def pending(self, *kinds: str) -> Iterator[Operation]:
        for operation in self.operations:
            if operation.kind in kinds:
                yield operation

    def add_message(self, sent: SentMessage) -> Message:
        """Record a message that is being sent."""
        default_ms = self.description.default_time_to_live_ms
        ttl_ms = min(sent.ttl_ms if sent.ttl_ms is not None else FOREVER_MS, default_ms)
        message = Message(sent, ttl_ms if ttl_ms < FOREVER_MS else None)
        self.messages[sent.identity] = message
        return message

    def messages_at(self, area: str, kind: str) -> list[Message]:
        """Return the messages of an area and kind, in order."""
        messages = [
            message for location, message in self.by_location.items() if location.area == area and location.kind == kind
        ]
        return sorted(messages, key=lambda message: message.location or ())

    def is_expired(self, message: Message) -> bool:
        return bool(message.due_ms) and message.due_ms <= self.clock.wall_ms()

    def holds_lock(self, lock: Lock) -> bool:
        return lock.message.lock is lock and lock.deadline_s > self.clock.monotonic_s()

    # --- time --------------------------------------------------------------------------------------------------------

    def clock_changed(self) -> list[SessionHold]:
        """Record that time has passed or the wall clock was set, and return the expired session locks."""
        now_s, now_ms = self.clock.monotonic_s(), self.clock.wall_ms()
        self.wall_times_ms.add(now_ms)
        self.latest_wall_ms = max(self.latest_wall_ms, now_ms)
        self.recent_wall_ms = max(self.recent_wall_ms, now_ms)
        for operation in self.operations:
            operation.wall_lo_ms, operation.wall_hi_ms = (
                min(operation.wall_lo_ms, now_ms),
                max(operation.wall_hi_ms, now_ms),
            )
        for ids in self.remembered.values():
            for remembered_id in ids:
                remembered_id.latest_ms = max(remembered_id.latest_ms, now_ms)
        lost = [hold for hold in self.session_holds.values() if hold.deadline_s <= now_s]
        for hold in lost:
            del self.session_holds[hold.session]
        lost_sessions = {hold.session for hold in lost}
        for message in self.by_location.values():
            self._update_due(message)
            lock = message.lock
            if lock is not None and (
                lock.deadline_s <= now_s or (lock.session is not None and lock.session in lost_sessions)
            ):
                message.lock = None
                message.pending_operation = Operation("expire", now_ms, now_ms)
        return lost

    def _update_due(self, message: Message) -> None:
        is_due = self.is_expired(message) and message.location is not None and message.location.kind != DEFERRED
        message.was_due = message.was_due or is_due
        if not is_due:
            message.due_since_s = None
        elif message.due_since_s is None:
            message.due_since_s = self.clock.monotonic_s()

    def update_description(self, description: QueueDescription) -> None:
        self.description = description
        self.max_delivery_counts.add(description.max_delivery_count)
        self.dead_lettering_options.add(description.dead_lettering_on_expiration)
        self.defaults_ms.add(description.default_time_to_live_ms)
        self.duplicate_windows_ms.add(description.duplicate_window_ms)
        for ids in self.remembered.values():
            for remembered_id in ids:
                remembered_id.shortest_ms = min(remembered_id.shortest_ms, description.duplicate_window_ms)

    def became_idle(self) -> None:
        """Record that the queue is idle: pending operations will not happen any more."""
        self.operations.clear()
        self.max_delivery_counts = {self.description.max_delivery_count}
        self.dead_lettering_options = {self.description.dead_lettering_on_expiration}
        self.defaults_ms = {self.description.default_time_to_live_ms}
        self.duplicate_windows_ms = {self.description.duplicate_window_ms}
        self.recent_wall_ms = self.clock.wall_ms()
        self.leaving_receivers.clear()
        self._moves.clear()

    # --- losses ------------------------------------------------------------------------------------------------------

    def memory_lost(self, *, is_restart: bool) -> None:
        """Record the loss of the store or the process: only the content of the disk remains."""
        now_s = self.clock.monotonic_s()
        self.operations.clear()
        self.leaving_receivers.clear()
        self._moves.clear()
        for message in self.messages.values():
            if (
                message.lock is not None
                or message.pending_operation is not None
                or message.is_deleted_for_receiver
                or message.visible_location is None
            ):
                message.idle_since_s = now_s
            message.lock = message.pending_operation = None
            message.is_deleted_for_receiver = message.may_be_deleted = False
            message.visible_location = message.location
        if is_restart:
            self.session_holds.clear()
            self.receivers.clear()

    # --- batches on disk ---------------------------------------------------------------------------------------------

    def batch_synced(self, batch: int, rows: dict[Location, tuple[bytes | None, bytes | None]]) -> None:
        """Check a batch that was synced; `rows` has the old and the new record of each location."""
        self._batches += 1
        before: dict[int, Location] = {}
        after: dict[int, tuple[Location, bytes]] = {}
        for location, (old, new) in rows.items():
            if old is not None:
                before[identity_of(old)] = location
            if new is not None:
                identity = identity_of(new)
                if identity in after:
                    raise Violation(f"{identity} is at {after[identity][0]} and at {location}")
                after[identity] = (location, new)
        moves = self._moves[batch] = []
        for identity in sorted(
            {*before, *after},
            key=lambda identity_of_row: after[identity_of_row][0].number if identity_of_row in after else 0,
        ):
            message = self.messages.get(identity)
            if message is None:
                raise Violation(f"nobody has sent {identity}")
            if message.location != before.get(identity) and message.location not in rows:
                raise Violation(f"{message} is now also at {after.get(identity)}")
            self._apply_move(message, *after.get(identity, (None, None)))
            moves.append((message, message.location))

    def batch_visible(self, batch: int) -> None:
        """Record that the broker is about to learn that a batch is synced."""
        for message, location in self._moves.pop(batch, ()):
            message.visible_location = location
            message.pending_operation = None
            message.idle_since_s = self.clock.monotonic_s()

    def _apply_move(self, message: Message, location: Location | None, record: bytes | None) -> None:
        previous = message.location
        message.clear_release()
        self.trace(
            f"    on disk: {message.identity} from {previous and tuple(previous)} to {location and tuple(location)}"
        )
        if location is None or record is None:
            self._check_deletion(message)
            message.location = None
        else:
            self._check_location(message, previous, location, record)
            message.location = location
        if previous is not None and self.by_location.get(previous) is message:
            del self.by_location[previous]
        if location is not None:
            self.by_location[location] = message
            if previous != location:
                message.was_due = 0 < message.due_ms <= self.recent_wall_ms and location.kind != DEFERRED
                message.due_since_s = None
            self._update_due(message)

    def _check_deletion(self, message: Message) -> None:
        """Check that a deleted message has a reason to be deleted."""
        location, operation = message.location, message.pending_operation
        assert location is not None
        if operation is not None:
            if operation.kind not in ("complete", "take deferred"):
                raise Violation(f"{message} is deleted")
            operation.affected.append(message.identity)
            return
        if message.lock is not None:
            raise Violation(f"{message} is deleted, and someone has it")
        reasons = self._matching_operations(message, "remove", "cancel", "take deferred")
        is_expired = (
            location == (MAIN, ACTIVE, location.number) and message.was_due and False in self.dead_lettering_options
        )
        is_received = location.kind == ACTIVE and self._is_reserved(location.area, message)
        if is_received:
            message.is_deleted_for_receiver = True
            message.may_be_deleted = bool(reasons) or is_expired
        elif not reasons and not is_expired:
            raise Violation(f"{message} is deleted, and nobody asked for that")

    def _update_ttl(self, message: Message, location: Location, alarm_ms: int) -> None:
        """Limit the time to live of a message by the queue's default, which may have changed since."""
        own_ms = message.ttl_ms if message.ttl_ms is not None else FOREVER_MS
        for default_ms in sorted(self.defaults_ms):
            ttl_ms = min(own_ms, default_ms)
            message.ttl_ms = ttl_ms if ttl_ms < FOREVER_MS else None
            if location.kind == SCHEDULED or (
                alarm_ms - ttl_ms in self.wall_times_ms if ttl_ms < FOREVER_MS else not alarm_ms
            ):
                return

    def _matching_operations(self, message: Message, *kinds: str) -> list[Operation]:
        """Return the pending operations that may have changed a message."""
        matching = [operation for operation in self.pending(*kinds) if operation.applies_to(message)]
        for operation in matching:
            operation.affected.append(message.identity)
            operation.is_shared = operation.is_shared or len(matching) > 1
        return matching

    def _is_reserved(self, area: str, message: Message) -> bool:
        return any(
            receiver.reserved > 0
            and receiver.area == area
            and (receiver.session is None or receiver.session == message.session)
            for receiver in self.receivers + self.leaving_receivers
        )

    def reserved_count(self, area: str) -> int:
        """Return how many messages may be on their way to receivers in receive-and-delete mode."""
        return sum(receiver.reserved for receiver in self.receivers + self.leaving_receivers if receiver.area == area)

    def _check_location(self, message: Message, before: Location | None, location: Location, record: bytes) -> None:
        if before is None:
            self._check_arrival(message, location, record)
        elif before == location:
            self._check_change(message, record)
        elif (before.area, location.area) == (MAIN, DEAD):
            self._check_dead_lettering(message, before, location, record)
        elif (before.area, location.area) == (DEAD, MAIN):
            self._check_resubmission(message, before, location, record)
        elif before.kind == SCHEDULED and location.kind == ACTIVE:
            self._check_activation(message, location, record)
        elif (before.kind, location.kind) == (ACTIVE, DEFERRED) and before.number == location.number:
            self._check_deferral(message, record)
        else:
            raise Violation(f"{message} goes to {location}")
        parts = parse_record(record)
        message.size, message.enqueued_ms, message.due_ms = len(record), parts.enqueued_ms, parts.due_ms
        expected = message.session if location.area == MAIN and self.description.requires_session else None
        if parts.session_id != expected:
            raise Violation(f"{message} is stored as of session {parts.session_id!r}")
        if parts.delivery_count != message.delivery_count:
            raise Violation(f"{message} is stored with a count of {parts.delivery_count}")
        if properties_of_record(record) != message.properties:
            raise Violation(f"{message} is stored with {properties_of_record(record)}, not {message.properties}")

    def _check_new_number(self, message: Message, location: Location) -> None:
        """Check that a sequence number is higher than all before."""
        if location.number <= self.highest[location.area]:
            raise Violation(f"{message} gets the number {location.number}, and there was {self.highest[location.area]}")
        self.highest[location.area] = location.number

    def _check_enqueued(self, message: Message, location: Location, record: bytes) -> None:
        """Check enqueued time, expiry and due time of a message that is new in the queue."""
        parts = parse_record(record)
        if parts.enqueued_ms < self.latest_ms or parts.enqueued_ms not in self.wall_times_ms:
            raise Violation(f"{message} seems enqueued at {parts.enqueued_ms}, and {self.latest_ms} was before")
        self.latest_ms = parts.enqueued_ms
        if location.kind == SCHEDULED:
            if parts.due_ms != message.sent.due_ms:
                raise Violation(f"{message} is due at {parts.due_ms}, not {message.sent.due_ms}")
        elif message.ttl_ms is None:
            if parts.due_ms:
                raise Violation(f"{message} expires at {parts.due_ms}, and should not")
        elif parts.due_ms - message.ttl_ms not in self.wall_times_ms:
            raise Violation(f"{message} expires at {parts.due_ms}, and lives {message.ttl_ms} ms")

    def _check_arrival(self, message: Message, location: Location, record: bytes) -> None:
        """Check a message that was not stored before."""
        if message.is_deleted_for_receiver:  # its receiver refused it
            message.is_deleted_for_receiver = message.may_be_deleted = False
            message.was_restored = True
            return
        operation = next(
            (operation for operation in self.pending("send") if message.identity in operation.identities), None
        )
        if (
            operation is None
            or message.identity in operation.affected
            or location.area != MAIN
            or location.kind == DEFERRED
        ):
            raise Violation(f"{message} appears at {location}")
        due_ms = message.sent.due_ms
        if location.kind != (SCHEDULED if due_ms is not None and due_ms > operation.wall_lo_ms else ACTIVE) and (
            operation.wall_lo_ms == operation.wall_hi_ms
        ):
            raise Violation(f"{message} is {location.kind}, and is due at {due_ms}")
        if operation.affected and operation.batch != self._batches:
            raise Violation(f"{message} was sent with others, and is stored apart from them")
        operation.affected.append(message.identity)
        operation.batch = self._batches
        self._check_new_number(message, location)
        self._check_enqueued(message, location, record)
        if self.description.requires_duplicate_detection:
            self._remember_id(message, operation)

    def _remember_id(self, message: Message, operation: Operation) -> None:
        ids = self.remembered.setdefault(message.sent.message_id, [])
        for remembered_id in ids:
            if (
                max(remembered_id.latest_ms, operation.wall_hi_ms) - remembered_id.earliest_ms
                < remembered_id.shortest_ms
            ):
                raise Violation(f"{message} is stored, and its id was sent at {remembered_id.earliest_ms}")
        ids.append(
            RememberedId(
                operation.wall_lo_ms, operation.wall_hi_ms, operation.wall_hi_ms, min(self.duplicate_windows_ms)
            )
        )

    def is_duplicate(self, message: Message, operation: Operation) -> bool:
        """Whether a message may be dropped as a duplicate."""
        ids = self.remembered.get(message.sent.message_id, ())
        return any(
            operation.wall_lo_ms - remembered_id.sent_by_ms < max(self.duplicate_windows_ms) for remembered_id in ids
        )

    def _check_activation(self, message: Message, location: Location, record: bytes) -> None:
        if not message.was_due:
            raise Violation(f"{message} becomes active at {self.clock.wall_ms()}, and is due at {message.due_ms}")
        self._check_new_number(message, location)
        self._check_enqueued(message, location, record)

    def _check_change(self, message: Message, record: bytes) -> None:
        """Check a message that is rewritten at its location."""
        operation = message.pending_operation
        kinds = (
            ("abandon", "expire", "defer")
            if message.location and message.location.kind == DEFERRED
            else (
                "abandon",
                "expire",
            )
        )
        if operation is None or operation.kind not in kinds:
            raise Violation(f"{message} is written again")
        if operation.kind != "defer":
            message.delivery_count += 1
            if (
                message.location
                and message.location.area == MAIN
                and message.delivery_count >= max(self.max_delivery_counts)
            ):
                raise Violation(f"{message} is not dead-lettered, at {max(self.max_delivery_counts)} deliveries")
        message.properties |= operation.properties
        if parse_record(record).due_ms != message.due_ms:
            raise Violation(f"{message} has another time to live now")
        operation.affected.append(message.identity)

    def _check_deferral(self, message: Message, record: bytes) -> None:
        if message.pending_operation is None or message.pending_operation.kind != "defer":
            raise Violation(f"{message} is deferred")
        message.properties |= message.pending_operation.properties
        message.pending_operation.affected.append(message.identity)
        if parse_record(record).due_ms != message.due_ms:
            raise Violation(f"{message} has another time to live now")

    def _check_dead_lettering(self, message: Message, before: Location, location: Location, record: bytes) -> None:
        """Check a message that is moved to the dead-letter queue."""
        operation, reason = message.pending_operation, properties_of_record(record).get("DeadLetterReason")
        if location.kind != ACTIVE or before.kind == SCHEDULED:
            raise Violation(f"{message} becomes a dead letter at {location}")
        self._check_reason(message, before, reason)
        if operation is not None:
            operation.affected.append(message.identity)
            message.properties |= operation.properties
        message.properties["DeadLetterReason"] = reason
        description = properties_of_record(record).get("DeadLetterErrorDescription")
        if description is not None:
            message.properties["DeadLetterErrorDescription"] = description
        if parse_record(record).due_ms:
            raise Violation(f"{message} expires among the dead letters")
        self._check_new_number(message, location)

    def _check_reason(self, message: Message, before: Location, reason: object) -> None:
        kind = message.pending_operation.kind if message.pending_operation is not None else None
        if kind in ("abandon", "expire"):
            message.delivery_count += 1
            if message.delivery_count < min(self.max_delivery_counts) or reason != "MaxDeliveryCountExceeded":
                raise Violation(
                    f"{message} is dead-lettered for {reason}, after {message.delivery_count} of "
                    f"{self.max_delivery_counts}"
                )
        elif kind == "dead letter":
            if reason != "Unwanted":
                raise Violation(f"{message} is dead-lettered for {reason}, not as it was asked")
        elif kind is not None or message.lock is not None or message.is_deleted_for_receiver:
            raise Violation(f"{message} is dead-lettered for {reason}")
        elif (
            before.kind != ACTIVE
            or not message.was_due
            or reason != "TTLExpiredException"
            or True not in self.dead_lettering_options
        ):
            raise Violation(f"{message} is dead-lettered for {reason}, alarm {message.due_ms}")

    def _check_resubmission(self, message: Message, before: Location, location: Location, record: bytes) -> None:
        """Check a message that is moved from the dead-letter queue back to the queue."""
        matching = [
            operation
            for operation in self._matching_operations(message, "resubmit")
            if _matches_request(operation, record)
        ]
        if not matching or before.kind != ACTIVE or message.lock is not None or message.pending_operation is not None:
            raise Violation(f"{message} comes back from the dead letters")
        operation = max(matching, key=lambda candidate: "edited" in candidate.properties)
        due_ms = message.sent.due_ms
        if location.kind == SCHEDULED and (due_ms is None or due_ms <= operation.wall_lo_ms):
            raise Violation(f"{message} is scheduled when it comes back")
        if operation.batch not in (0, self._batches) and not operation.is_shared:
            raise Violation(f"{message} was resubmitted with others, and is stored apart from them")
        operation.batch = self._batches
        message.delivery_count = 0
        for name in ("DeadLetterReason", "DeadLetterErrorDescription"):
            message.properties.pop(name, None)
        if "edited" in operation.properties:
            edited = operation.properties["edited"]
            assert isinstance(edited, SentMessage)
            message.sent, message.ttl_ms, message.properties = edited, edited.ttl_ms, {}
        self._update_ttl(message, location, parse_record(record).due_ms)
        self._check_new_number(message, location)
        self._check_enqueued(message, location, record)


def _matches_request(operation: Operation, record: bytes) -> bool:
    edited = operation.properties.get("edited")
    return (
        not isinstance(edited, SentMessage) or parse_record(record).bare_message == WireMessage(edited.encode()).bare()
    )
