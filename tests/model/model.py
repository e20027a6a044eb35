"""What a queue should do, in lists and dicts.

Owns: every message that was ever sent, where it is, who has it, and what was asked to be done with it. The model does
not say in advance what the broker will do when: it is shown every batch that reaches the disk, message by message, and
says whether there was a reason for that; and when nothing is going on any more it says what should have happened.

A message is in one place at most: active, deferred or scheduled in the queue, or active or deferred among the dead
letters. `place` is where the disk has it, `shown` where the broker knows it to be: it is told a little later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.model.letter import Letter, identity_of, properties_in
from tests.model.things import (
    ACTIVE,
    DEAD,
    DEFERRED,
    MAIN,
    SCHEDULED,
    Deed,
    Hold,
    Lock,
    Message,
    Place,
    Remembered,
)
from tests.model.violation import Violation
from twinbus.amqp.message import Message as WireMessage
from twinbus.broker.record import take_apart
from twinbus.model.description import FOREVER_MS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tests.model.people import Receiver
    from twinbus.model.queue import QueueDescription
    from twinbus.testing.clock import FakeClock
EXPIRED = "TTLExpiredException"


class Model:
    def __init__(self, clock: FakeClock, description: QueueDescription) -> None:
        self.clock = clock
        self.description = description
        self.messages: dict[int, Message] = {}
        self.by_place: dict[Place, Message] = {}
        self.holds: dict[bytes, Hold] = {}
        self.states: dict[bytes, list[bytes | None]] = {}
        """What a session may remember: the last that was confirmed, and what was set since."""
        self.remembered: dict[str, list[Remembered]] = {}
        self.deeds: list[Deed] = []
        self.receivers: list[Receiver] = []
        self.highest = {MAIN: 0, DEAD: 0}
        self.latest_ms = 0
        self.moment = 0
        self.is_quiet: Callable[[], bool] = lambda: False
        """Nothing is going on; told by the world."""
        self.say: Callable[[str], None] = lambda _: None
        self.mosts = {description.max_delivery_count}
        """Delivery counts at which messages may be dead-lettered: more than one while a change is under way."""
        self.buries = {description.dead_lettering_on_expiration}
        self.defaults_ms = {description.default_time_to_live_ms}
        self.windows = {description.duplicate_window_ms}
        self.walls = {clock.wall_ms()}
        self.latest_wall_ms = clock.wall_ms()
        self.recent_wall_ms = clock.wall_ms()
        """The latest time that the wall clock has shown since something began that is not over."""
        self.leaving: list[Receiver] = []
        """Who is gone, and has messages deleted for it."""
        self._batches = 0
        self._moves: dict[int, list[tuple[Message, Place | None]]] = {}

    # --- what is asked ------------------------------------------------------------------------------------------------

    def begin(
        self,
        kind: str,
        identities: Iterable[int] = (),
        *,
        covers: Callable[[Message], bool] | None = None,
        properties: dict[str, object] | None = None,
    ) -> Deed:
        """Something is asked for."""
        now_ms = self.clock.wall_ms()
        deed = Deed(kind, now_ms, now_ms, list(identities), properties=properties or {}, moment=self.moment)
        if covers is not None:
            deed.covers = covers
        deed.is_exact = self.is_quiet() and not self.deeds
        self.deeds.append(deed)
        return deed

    def end(self, deed: Deed) -> None:
        """It was answered that it is done; or it never began."""
        deed.is_answered = True
        if deed in self.deeds:
            self.deeds.remove(deed)

    def is_exact(self, deed: Deed) -> bool:
        """Nothing else was done meanwhile: what should be there is known."""
        return deed.is_exact and deed.moment == self.moment

    def pending(self, *kinds: str) -> Iterator[Deed]:
        for deed in self.deeds:
            if deed.kind in kinds:
                yield deed

    def add(self, letter: Letter) -> Message:
        """A message is being sent."""
        default_ms = self.description.default_time_to_live_ms
        ttl_ms = min(letter.ttl_ms if letter.ttl_ms is not None else FOREVER_MS, default_ms)
        message = Message(letter, ttl_ms if ttl_ms < FOREVER_MS else None)
        self.messages[letter.identity] = message
        return message

    def at(self, shelf: str, kind: str) -> list[Message]:
        """What is there, in order."""
        found = [message for place, message in self.by_place.items() if place.shelf == shelf and place.kind == kind]
        return sorted(found, key=lambda message: message.place or ())

    def is_expired(self, message: Message) -> bool:
        return bool(message.alarm_ms) and message.alarm_ms <= self.clock.wall_ms()

    def holds_lock(self, lock: Lock) -> bool:
        return lock.message.lock is lock and lock.deadline_s > self.clock.monotonic_s()

    # --- time ---------------------------------------------------------------------------------------------------------

    def clock_changed(self) -> list[Hold]:
        """Time has passed, or the wall clock was set. Returns who has lost a session."""
        now_s, now_ms = self.clock.monotonic_s(), self.clock.wall_ms()
        self.walls.add(now_ms)
        self.latest_wall_ms = max(self.latest_wall_ms, now_ms)
        self.recent_wall_ms = max(self.recent_wall_ms, now_ms)
        for deed in self.deeds:
            deed.wall_lo_ms, deed.wall_hi_ms = min(deed.wall_lo_ms, now_ms), max(deed.wall_hi_ms, now_ms)
        for ids in self.remembered.values():
            for one in ids:
                one.latest_ms = max(one.latest_ms, now_ms)
        lost = [hold for hold in self.holds.values() if hold.deadline_s <= now_s]
        for hold in lost:
            del self.holds[hold.session]
        gone = {hold.session for hold in lost}
        for message in self.by_place.values():
            self._note_alarm(message)
            lock = message.lock
            if lock is not None and (lock.deadline_s <= now_s or (lock.session is not None and lock.session in gone)):
                message.lock = None
                message.busy = Deed("expire", now_ms, now_ms)
        return lost

    def _note_alarm(self, message: Message) -> None:
        is_over = self.is_expired(message) and message.place is not None and message.place.kind != DEFERRED
        message.was_alarmed = message.was_alarmed or is_over
        if not is_over:
            message.alarmed_s = None
        elif message.alarmed_s is None:
            message.alarmed_s = self.clock.monotonic_s()

    def describe(self, description: QueueDescription) -> None:
        self.description = description
        self.mosts.add(description.max_delivery_count)
        self.buries.add(description.dead_lettering_on_expiration)
        self.defaults_ms.add(description.default_time_to_live_ms)
        self.windows.add(description.duplicate_window_ms)
        for ids in self.remembered.values():
            for one in ids:
                one.shortest_ms = min(one.shortest_ms, description.duplicate_window_ms)

    def come_to_rest(self) -> None:
        """Nothing is going on any more: what was not done will not be done."""
        self.deeds.clear()
        self.mosts = {self.description.max_delivery_count}
        self.buries = {self.description.dead_lettering_on_expiration}
        self.defaults_ms = {self.description.default_time_to_live_ms}
        self.windows = {self.description.duplicate_window_ms}
        self.recent_wall_ms = self.clock.wall_ms()
        self.leaving.clear()
        self._moves.clear()

    # --- losses -------------------------------------------------------------------------------------------------------

    def lose(self, *, is_restart: bool) -> None:
        """The store failed, or the whole process: what the disk holds is what there is."""
        now_s = self.clock.monotonic_s()
        self.deeds.clear()
        self.leaving.clear()
        self._moves.clear()
        for message in self.messages.values():
            if message.lock is not None or message.busy is not None or message.is_handed or message.shown is None:
                message.idle_s = now_s
            message.lock = message.busy = None
            message.is_handed = message.is_perhaps_gone = False
            message.shown = message.place
        if is_restart:
            self.holds.clear()
            self.receivers.clear()

    # --- what reaches the disk ----------------------------------------------------------------------------------------

    def sync(self, batch: int, rows: dict[Place, tuple[bytes | None, bytes | None]]) -> None:
        """A batch is on disk: what was at these places before, and what is there now."""
        self._batches += 1
        before: dict[int, Place] = {}
        after: dict[int, tuple[Place, bytes]] = {}
        for place, (old, new) in rows.items():
            if old is not None:
                before[identity_of(old)] = place
            if new is not None:
                identity = identity_of(new)
                if identity in after:
                    raise Violation(f"{identity} is at {after[identity][0]} and at {place}")
                after[identity] = (place, new)
        moves = self._moves[batch] = []
        for identity in sorted({*before, *after}, key=lambda one: after[one][0].number if one in after else 0):
            message = self.messages.get(identity)
            if message is None:
                raise Violation(f"nobody has sent {identity}")
            if message.place != before.get(identity) and message.place not in rows:
                raise Violation(f"{message} is now also at {after.get(identity)}")
            self._move(message, *after.get(identity, (None, None)))
            moves.append((message, message.place))

    def told(self, batch: int) -> None:
        """The broker is about to hear that it is."""
        for message, place in self._moves.pop(batch, ()):
            message.shown = place
            message.busy = None
            message.idle_s = self.clock.monotonic_s()

    def _move(self, message: Message, place: Place | None, record: bytes | None) -> None:
        was = message.place
        message.note_release()
        self.say(f"    on disk: {message.identity} from {was and tuple(was)} to {place and tuple(place)}")
        if place is None or record is None:
            self._check_may_go(message)
            message.place = None
        else:
            self._check_may_be(message, was, place, record)
            message.place = place
        if was is not None and self.by_place.get(was) is message:
            del self.by_place[was]
        if place is not None:
            self.by_place[place] = message
            if was != place:
                message.was_alarmed = 0 < message.alarm_ms <= self.recent_wall_ms and place.kind != DEFERRED
                message.alarmed_s = None
            self._note_alarm(message)

    def _check_may_go(self, message: Message) -> None:
        """It is deleted."""
        place, busy = message.place, message.busy
        assert place is not None
        if busy is not None:
            if busy.kind not in ("complete", "take deferred"):
                raise Violation(f"{message} is deleted")
            busy.taken.append(message.identity)
            return
        if message.lock is not None:
            raise Violation(f"{message} is deleted, and someone has it")
        reasons = self._share(message, "remove", "cancel", "take deferred")
        is_expired = place == (MAIN, ACTIVE, place.number) and message.was_alarmed and False in self.buries
        is_received = place.kind == ACTIVE and self._is_reserved(place.shelf, message)
        if is_received:
            message.is_handed = True
            message.is_perhaps_gone = bool(reasons) or is_expired
        elif not reasons and not is_expired:
            raise Violation(f"{message} is deleted, and nobody asked for that")

    def _learn_ttl(self, message: Message, place: Place, alarm_ms: int) -> None:
        """It lives no longer than the queue says: than it said when this was decided, if that has changed."""
        own_ms = message.ttl_ms if message.ttl_ms is not None else FOREVER_MS
        for default_ms in sorted(self.defaults_ms):
            ttl_ms = min(own_ms, default_ms)
            message.ttl_ms = ttl_ms if ttl_ms < FOREVER_MS else None
            if place.kind == SCHEDULED or (alarm_ms - ttl_ms in self.walls if ttl_ms < FOREVER_MS else not alarm_ms):
                return

    def _share(self, message: Message, *kinds: str) -> list[Deed]:
        """Those who may have done it."""
        found = [deed for deed in self.pending(*kinds) if deed.covers(message)]
        for deed in found:
            deed.taken.append(message.identity)
            deed.is_shared = deed.is_shared or len(found) > 1
        return found

    def _is_reserved(self, shelf: str, message: Message) -> bool:
        return any(
            receiver.reserved > 0
            and receiver.shelf == shelf
            and (receiver.session is None or receiver.session == message.session)
            for receiver in self.receivers + self.leaving
        )

    def coming(self, shelf: str) -> int:
        """How many messages may be on their way to someone who deletes."""
        return sum(receiver.reserved for receiver in self.receivers + self.leaving if receiver.shelf == shelf)

    def _check_may_be(self, message: Message, was: Place | None, place: Place, record: bytes) -> None:
        if was is None:
            self._check_arrival(message, place, record)
        elif was == place:
            self._check_change(message, record)
        elif (was.shelf, place.shelf) == (MAIN, DEAD):
            self._check_burial(message, was, place, record)
        elif (was.shelf, place.shelf) == (DEAD, MAIN):
            self._check_resubmission(message, was, place, record)
        elif was.kind == SCHEDULED and place.kind == ACTIVE:
            self._check_activation(message, place, record)
        elif (was.kind, place.kind) == (ACTIVE, DEFERRED) and was.number == place.number:
            self._check_deferral(message, record)
        else:
            raise Violation(f"{message} goes to {place}")
        parts = take_apart(record)
        message.size, message.enqueued_ms, message.alarm_ms = len(record), parts.enqueued_ms, parts.alarm_ms
        expected = message.session if place.shelf == MAIN and self.description.requires_session else None
        if parts.session != expected:
            raise Violation(f"{message} is stored as of session {parts.session!r}")
        if parts.delivery_count != message.count:
            raise Violation(f"{message} is stored with a count of {parts.delivery_count}")
        if properties_in(record) != message.properties:
            raise Violation(f"{message} is stored with {properties_in(record)}, not {message.properties}")

    def _number(self, message: Message, place: Place) -> None:
        """It gets a number that none had before."""
        if place.number <= self.highest[place.shelf]:
            raise Violation(f"{message} gets the number {place.number}, and there was {self.highest[place.shelf]}")
        self.highest[place.shelf] = place.number

    def _check_enqueued(self, message: Message, place: Place, record: bytes) -> None:
        """It is new in the queue: when it was enqueued, and when it expires or is due."""
        parts = take_apart(record)
        if parts.enqueued_ms < self.latest_ms or parts.enqueued_ms not in self.walls:
            raise Violation(f"{message} seems enqueued at {parts.enqueued_ms}, and {self.latest_ms} was before")
        self.latest_ms = parts.enqueued_ms
        if place.kind == SCHEDULED:
            if parts.alarm_ms != message.letter.due_ms:
                raise Violation(f"{message} is due at {parts.alarm_ms}, not {message.letter.due_ms}")
        elif message.ttl_ms is None:
            if parts.alarm_ms:
                raise Violation(f"{message} expires at {parts.alarm_ms}, and should not")
        elif parts.alarm_ms - message.ttl_ms not in self.walls:
            raise Violation(f"{message} expires at {parts.alarm_ms}, and lives {message.ttl_ms} ms")

    def _check_arrival(self, message: Message, place: Place, record: bytes) -> None:
        """It was not there before."""
        if message.is_handed:  # a receiver did not take it
            message.is_handed = message.is_perhaps_gone = False
            message.was_away = True
            return
        deed = next((deed for deed in self.pending("send") if message.identity in deed.identities), None)
        if deed is None or message.identity in deed.taken or place.shelf != MAIN or place.kind == DEFERRED:
            raise Violation(f"{message} appears at {place}")
        due_ms = message.letter.due_ms
        if place.kind != (SCHEDULED if due_ms is not None and due_ms > deed.wall_lo_ms else ACTIVE) and (
            deed.wall_lo_ms == deed.wall_hi_ms
        ):
            raise Violation(f"{message} is {place.kind}, and is due at {due_ms}")
        if deed.taken and deed.batch != self._batches:
            raise Violation(f"{message} was sent with others, and is stored apart from them")
        deed.taken.append(message.identity)
        deed.batch = self._batches
        self._number(message, place)
        self._check_enqueued(message, place, record)
        if self.description.requires_duplicate_detection:
            self._remember(message, deed)

    def _remember(self, message: Message, deed: Deed) -> None:
        ids = self.remembered.setdefault(message.letter.message_id, [])
        for one in ids:
            if max(one.latest_ms, deed.wall_hi_ms) - one.lo_ms < one.shortest_ms:
                raise Violation(f"{message} is stored, and its id was sent at {one.lo_ms}")
        ids.append(Remembered(deed.wall_lo_ms, deed.wall_hi_ms, deed.wall_hi_ms, min(self.windows)))

    def is_duplicate(self, message: Message, deed: Deed) -> bool:
        """It may be dropped."""
        ids = self.remembered.get(message.letter.message_id, ())
        return any(deed.wall_lo_ms - one.hi_ms < max(self.windows) for one in ids)

    def _check_activation(self, message: Message, place: Place, record: bytes) -> None:
        if not message.was_alarmed:
            raise Violation(f"{message} becomes active at {self.clock.wall_ms()}, and is due at {message.alarm_ms}")
        self._number(message, place)
        self._check_enqueued(message, place, record)

    def _check_change(self, message: Message, record: bytes) -> None:
        """It is written again where it is."""
        busy = message.busy
        kinds = (
            ("abandon", "expire", "defer")
            if message.place and message.place.kind == DEFERRED
            else (
                "abandon",
                "expire",
            )
        )
        if busy is None or busy.kind not in kinds:
            raise Violation(f"{message} is written again")
        if busy.kind != "defer":
            message.count += 1
            if message.place and message.place.shelf == MAIN and message.count >= max(self.mosts):
                raise Violation(f"{message} is not dead-lettered, at {max(self.mosts)} deliveries")
        message.properties |= busy.properties
        if take_apart(record).alarm_ms != message.alarm_ms:
            raise Violation(f"{message} has another time to live now")
        busy.taken.append(message.identity)

    def _check_deferral(self, message: Message, record: bytes) -> None:
        if message.busy is None or message.busy.kind != "defer":
            raise Violation(f"{message} is deferred")
        message.properties |= message.busy.properties
        message.busy.taken.append(message.identity)
        if take_apart(record).alarm_ms != message.alarm_ms:
            raise Violation(f"{message} has another time to live now")

    def _check_burial(self, message: Message, was: Place, place: Place, record: bytes) -> None:
        """It becomes a dead letter."""
        busy, reason = message.busy, properties_in(record).get("DeadLetterReason")
        if place.kind != ACTIVE or was.kind == SCHEDULED:
            raise Violation(f"{message} becomes a dead letter at {place}")
        self._check_reason(message, was, reason)
        if busy is not None:
            busy.taken.append(message.identity)
            message.properties |= busy.properties
        message.properties["DeadLetterReason"] = reason
        description = properties_in(record).get("DeadLetterErrorDescription")
        if description is not None:
            message.properties["DeadLetterErrorDescription"] = description
        if take_apart(record).alarm_ms:
            raise Violation(f"{message} expires among the dead letters")
        self._number(message, place)

    def _check_reason(self, message: Message, was: Place, reason: object) -> None:
        kind = message.busy.kind if message.busy is not None else None
        if kind in ("abandon", "expire"):
            message.count += 1
            if message.count < min(self.mosts) or reason != "MaxDeliveryCountExceeded":
                raise Violation(f"{message} is dead-lettered for {reason}, after {message.count} of {self.mosts}")
        elif kind == "dead letter":
            if reason != "Unwanted":
                raise Violation(f"{message} is dead-lettered for {reason}, not as it was asked")
        elif kind is not None or message.lock is not None or message.is_handed:
            raise Violation(f"{message} is dead-lettered for {reason}")
        elif (
            was.kind != ACTIVE or not message.was_alarmed or reason != "TTLExpiredException" or True not in self.buries
        ):
            raise Violation(f"{message} is dead-lettered for {reason}, alarm {message.alarm_ms}")

    def _check_resubmission(self, message: Message, was: Place, place: Place, record: bytes) -> None:
        """It comes back from the dead letters."""
        found = [deed for deed in self._share(message, "resubmit") if _is_as_asked(deed, record)]
        if not found or was.kind != ACTIVE or message.lock is not None or message.busy is not None:
            raise Violation(f"{message} comes back from the dead letters")
        deed = max(found, key=lambda one: "edited" in one.properties)
        due_ms = message.letter.due_ms
        if place.kind == SCHEDULED and (due_ms is None or due_ms <= deed.wall_lo_ms):
            raise Violation(f"{message} is scheduled when it comes back")
        if deed.batch not in (0, self._batches) and not deed.is_shared:
            raise Violation(f"{message} was resubmitted with others, and is stored apart from them")
        deed.batch = self._batches
        message.count = 0
        for name in ("DeadLetterReason", "DeadLetterErrorDescription"):
            message.properties.pop(name, None)
        if "edited" in deed.properties:
            edited = deed.properties["edited"]
            assert isinstance(edited, Letter)
            message.letter, message.ttl_ms, message.properties = edited, edited.ttl_ms, {}
        self._learn_ttl(message, place, take_apart(record).alarm_ms)
        self._number(message, place)
        self._check_enqueued(message, place, record)


def _is_as_asked(deed: Deed, record: bytes) -> bool:
    edited = deed.properties.get("edited")
    return not isinstance(edited, Letter) or take_apart(record).bare == WireMessage(edited.payload()).bare()
