"""What receivers do with what they were given, and what they ask for by number."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from tests.model.asking import Asking, is_one_of
from tests.model.letter import read_delivery
from tests.model.things import DEAD, DEFERRED, FAR_S, MAIN, Deed, Lock, Place
from tests.model.violation import Violation
from twinbus.broker.ports.numbers import tag_of
from twinbus.model.errors import MessageLockLost, MessageNotFound, ServerBusy, ServiceBusError, SessionLockLost

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.broker.deferral import Found
    from twinbus.broker.ports.callbacks import Answered

    Settle: TypeAlias = Callable[[list[int], Answered], list[int]]


class Settling(Asking):
    def complete(self) -> None:
        self._settle("complete")

    def abandon(self) -> None:
        self._settle("abandon")

    def release(self) -> None:
        self._settle("release")

    def defer(self) -> None:
        self._settle("defer")

    def dead_letter(self) -> None:
        self._settle("dead letter")

    def _pick_locks(self) -> tuple[str, list[Lock]]:
        """Some of what the receivers of one shelf were given: also what was settled, or is void."""
        locks = self._world.locks
        if len(locks) > 60:
            del locks[: len(locks) - 60]
        one = self._pick(locks)
        if one is None:
            return MAIN, []
        shelf = one.place.shelf
        mine = [lock for lock in locks if lock.place.shelf == shelf]
        some = [lock for lock in mine if self._model.holds_lock(lock) and self._random.random() < 0.6]
        stale = [lock for lock in mine if not self._model.holds_lock(lock)]
        if stale and self._random.random() < 0.2:
            some.append(self._random.choice(stale))
        return shelf, some

    def _settle(self, kind: str) -> None:
        model = self._model
        shelf, chosen = self._pick_locks()
        if not chosen:
            return
        numbers = self._fragment(shelf).lock_numbers([lock.tag for lock in chosen])
        valid = [lock for lock in chosen if model.holds_lock(lock)]
        expected = [number for lock, number in zip(chosen, numbers, strict=True) if lock not in valid]
        is_changing = kind in ("abandon", "defer", "dead letter") and self._random.random() < 0.3
        changes: dict[str, object] = {"note": model.moment} if is_changing else {}
        deed_kind = "abandon" if kind == "dead letter" and shelf == DEAD else kind
        deed = model.begin(deed_kind, [lock.message.identity for lock in valid], properties=changes)
        self._say(f"{[lock.message for lock in chosen]}")
        lost: list[int] = []
        for lock in valid:
            lock.message.lock, lock.message.busy = None, deed
        call = self._settling(kind, shelf, changes)
        if not self._ask(deed, lambda: lost.extend(call(numbers, lambda error: self._settled(deed, error)))):
            for lock in valid:
                lock.message.lock, lock.message.busy = lock, None
            return
        if sorted(lost) != sorted(expected):
            raise Violation(f"{kind}: the locks {lost} are lost, not {expected} of {numbers}")
        if not valid:
            model.end(deed)

    def _settling(self, kind: str, shelf: str, changes: dict[str, object]) -> Settle:
        settlement = self._fragment(shelf).settlement
        reason = "Unwanted" if shelf == MAIN else None
        calls: dict[str, Settle] = {
            "complete": settlement.complete,
            "release": settlement.release,
            "abandon": lambda numbers, answer: settlement.abandon(numbers, answer, changes),
            "defer": lambda numbers, answer: settlement.defer(numbers, answer, changes),
            "dead letter": lambda numbers, answer: settlement.dead_letter(
                numbers, answer, reason=reason, properties=changes
            ),
        }
        return calls[kind]

    def _settled(self, deed: Deed, error: ServiceBusError | None) -> None:
        self._say(f"{deed.kind}: {error or 'done'}: {deed.identities}")
        if self._unavailable(deed, error):
            return
        for identity in deed.identities:
            message = self._model.messages[identity]
            if deed.kind != "release":
                if identity not in deed.taken:
                    raise Violation(f"{message}: {deed.kind} is done, and is not on disk")
            elif message.busy is deed:
                message.busy, message.idle_s = None, self._world.clock.monotonic_s()
        self._model.end(deed)

    def renew(self) -> None:
        shelf, chosen = self._pick_locks()
        if not chosen or chosen[0].session is not None:
            return  # of a session, that is renewed
        lock, settlement = chosen[0], self._fragment(shelf).settlement
        (number,) = self._fragment(shelf).lock_numbers([lock.tag])
        is_held, duration_ms = self._model.holds_lock(lock), self._model.description.lock_duration_ms
        deed = self._model.begin("renew")
        untils: list[int] = []
        try:
            is_asked = self._ask(deed, lambda: untils.append(settlement.renew(number)))
        except MessageLockLost:
            if is_held:
                raise Violation(f"{lock.message}: its lock is lost") from None
            is_asked = False
        self._model.end(deed)
        if is_asked:
            if not is_held or untils != [self._world.clock.wall_ms() + duration_ms]:
                raise Violation(f"{lock.message}: its lock was renewed until {untils}")
            lock.deadline_s = self._world.clock.monotonic_s() + duration_ms / 1000

    def receive_deferred(self) -> None:  # noqa: C901  # most of it is what may be answered
        model, shelf = self._model, self._shelf()
        holder = self._pick_holder() if self._world.has_sessions(shelf) else None
        session = holder.session if holder is not None else None
        if self._world.has_sessions(shelf) and session is None:
            return
        there = {one.place.number: one for one in model.at(shelf, DEFERRED) if one.place}
        numbers = self._some_numbers(there, model.highest[shelf])
        if not numbers:
            return
        deletes = self._random.random() < 0.4
        deed = model.begin("take deferred", covers=lambda one: deletes and is_one_of(one, shelf, DEFERRED, numbers))
        hold = model.holds.get(session) if session is not None else None
        wanted = [there[number] for number in numbers if number in there and there[number].is_idle]
        is_all = len([one for one in wanted if session is None or one.session == session]) == len(numbers)
        self._say(f"{numbers}{' to delete' if deletes else ''} of {shelf} {session!r}")

        def done(found: Found | ServiceBusError) -> None:
            self._say(f"deferred {numbers}: {found if isinstance(found, ServiceBusError) else 'received'}")
            if isinstance(found, SessionLockLost):
                deed.is_answered = True
                if session is None or model.holds.get(session) is hold:
                    raise Violation(f"deferred {numbers}: {found!r}")
                return
            error = found if isinstance(found, ServiceBusError) else None
            if self._unavailable(deed, error):
                return
            if model.is_exact(deed) and is_all != (error is None):
                raise Violation(f"deferred {numbers}: {error!r}, and there are {there}")
            model.end(deed)
            if not isinstance(found, ServiceBusError):
                self._receive_each(deed, shelf, numbers, found, session, deletes=deletes)
            elif deed.taken and not deed.is_shared:
                raise Violation(f"deferred {numbers}: {error!r}, and {deed.taken} are deleted")

        until_ms = hold.until_ms if hold is not None else None
        receive = self._fragment(shelf).deferral.receive
        try:
            self._ask(deed, lambda: receive(numbers, done, deletes=deletes, session=session, session_until_ms=until_ms))
        except MessageNotFound as error:
            done(error)
        except ServerBusy as error:
            self._say(f"refused: {error}")
            out, most = len(self._fragment(shelf).deferred_out), self._world.settings.limits.max_locks
            if deletes or out + len(numbers) <= most:
                raise Violation(f"deferred {numbers}: {error!r}, and {out} of {most} are out") from None
            model.end(deed)

    def _receive_each(
        self, deed: Deed, shelf: str, numbers: list[int], found: Found, session: bytes | None, *, deletes: bool
    ) -> None:
        if [read_delivery(payload).number for payload, _ in found] != numbers:
            raise Violation(f"deferred {numbers}: others were received")
        for payload, token in found:
            self._receive_deferred(deed, shelf, payload, token, session, deletes=deletes)

    def _receive_deferred(
        self, deed: Deed, shelf: str, payload: bytes, token: bytes, session: bytes | None, *, deletes: bool
    ) -> None:
        model, reading = self._model, read_delivery(payload)
        message = model.messages[reading.identity]
        if reading.delivered != message.count or (session is not None and message.session != session):
            raise Violation(f"{reading} was received, for {message}")
        if deletes:
            if message.identity not in deed.taken:
                raise Violation(f"{message} was received and deleted, and is there")
            return
        if message.place != Place(shelf, DEFERRED, reading.number) or message.lock or message.busy:
            raise Violation(f"{message} was received")
        deadline_s = self._world.clock.monotonic_s() + model.description.lock_duration_ms / 1000
        if session is not None:
            if session not in model.holds:
                raise Violation(f"{message} was received, of a session that was lost meanwhile")
            deadline_s = FAR_S
        message.lock = Lock(message, message.place, tag_of(token), deadline_s, session)
        self._world.locks.append(message.lock)
