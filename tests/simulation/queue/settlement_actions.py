"""What receivers do with what they were given, and what they ask for by number."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from tests.simulation.queue.base_actions import BaseActions, is_at
from tests.simulation.queue.messages import read_delivery
from tests.simulation.queue.model_state import DEAD, DEFERRED, MAIN, NEVER_S, Location, Lock, Operation, Violation
from twinbus.broker.ports.fragment import delivery_tag_of
from twinbus.model.errors import MessageLockLost, MessageNotFound, ServerBusy, ServiceBusError, SessionLockLost

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.broker.fragment.deferral import ReceivedMessages
    from twinbus.broker.ports.callbacks import OnDone

    Settle: TypeAlias = Callable[[list[int], OnDone], list[int]]


class SettlementActions(BaseActions):
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

    def _choose_locks(self) -> tuple[str, list[Lock]]:
        """Some of what the receivers of one shelf were given: also what was settled, or is void."""
        locks = self._simulation.locks
        if len(locks) > 60:
            del locks[: len(locks) - 60]
        one = self._choose(locks)
        if one is None:
            return MAIN, []
        shelf = one.location.area
        mine = [lock for lock in locks if lock.location.area == shelf]
        some = [lock for lock in mine if self._model.holds_lock(lock) and self._random.random() < 0.6]
        stale = [lock for lock in mine if not self._model.holds_lock(lock)]
        if stale and self._random.random() < 0.2:
            some.append(self._random.choice(stale))
        return shelf, some

    def _settle(self, kind: str) -> None:
        model = self._model
        shelf, chosen = self._choose_locks()
        if not chosen:
            return
        numbers = self._fragment(shelf).lock_numbers([lock.tag for lock in chosen])
        valid = [lock for lock in chosen if model.holds_lock(lock)]
        expected = [number for lock, number in zip(chosen, numbers, strict=True) if lock not in valid]
        is_changing = kind in ("abandon", "defer", "dead letter") and self._random.random() < 0.3
        changes: dict[str, object] = {"note": model.step} if is_changing else {}
        deed_kind = "abandon" if kind == "dead letter" and shelf == DEAD else kind
        deed = model.begin_operation(deed_kind, [lock.message.identity for lock in valid], properties=changes)
        self._trace(f"{[lock.message for lock in chosen]}")
        lost: list[int] = []
        for lock in valid:
            lock.message.lock, lock.message.pending_operation = None, deed
        call = self._begin_settlement(kind, shelf, changes)
        if not self._call(deed, lambda: lost.extend(call(numbers, lambda error: self._check_settled(deed, error)))):
            for lock in valid:
                lock.message.lock, lock.message.pending_operation = lock, None
            return
        if sorted(lost) != sorted(expected):
            raise Violation(f"{kind}: the locks {lost} are lost, not {expected} of {numbers}")
        if not valid:
            model.end_operation(deed)

    def _begin_settlement(self, kind: str, area: str, changes: dict[str, object]) -> Settle:
        settlement = self._fragment(area).settlement
        reason = "Unwanted" if area == MAIN else None
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

    def _check_settled(self, operation: Operation, error: ServiceBusError | None) -> None:
        self._trace(f"{operation.kind}: {error or 'done'}: {operation.identities}")
        if self._is_unavailable(operation, error):
            return
        for identity in operation.identities:
            message = self._model.messages[identity]
            if operation.kind != "release":
                if identity not in operation.affected:
                    raise Violation(f"{message}: {operation.kind} is done, and is not on disk")
            elif message.pending_operation is operation:
                message.pending_operation, message.idle_since_s = None, self._simulation.clock.monotonic_s()
        self._model.end_operation(operation)

    def renew(self) -> None:
        shelf, chosen = self._choose_locks()
        if not chosen or chosen[0].session is not None:
            return  # of a session, that is renewed
        lock, settlement = chosen[0], self._fragment(shelf).settlement
        (number,) = self._fragment(shelf).lock_numbers([lock.tag])
        is_held, duration_ms = self._model.holds_lock(lock), self._model.description.lock_duration_ms
        deed = self._model.begin_operation("renew")
        untils: list[int] = []
        try:
            is_asked = self._call(deed, lambda: untils.append(settlement.renew(number)))
        except MessageLockLost:
            if is_held:
                raise Violation(f"{lock.message}: its lock is lost") from None
            is_asked = False
        self._model.end_operation(deed)
        if is_asked:
            if not is_held or untils != [self._simulation.clock.wall_ms() + duration_ms]:
                raise Violation(f"{lock.message}: its lock was renewed until {untils}")
            lock.deadline_s = self._simulation.clock.monotonic_s() + duration_ms / 1000

    def receive_deferred(self) -> None:  # noqa: C901  # most of it is what may be answered
        model, shelf = self._model, self._choose_area()
        holder = self._choose_session_holder() if self._simulation.has_sessions(shelf) else None
        session = holder.session if holder is not None else None
        if self._simulation.has_sessions(shelf) and session is None:
            return
        there = {one.location.number: one for one in model.messages_at(shelf, DEFERRED) if one.location}
        numbers = self._sample_numbers(there, model.highest[shelf])
        if not numbers:
            return
        deletes = self._random.random() < 0.4
        deed = model.begin_operation(
            "take deferred", covers=lambda one: deletes and is_at(one, shelf, DEFERRED, numbers)
        )
        hold = model.session_holds.get(session) if session is not None else None
        wanted = [there[number] for number in numbers if number in there and there[number].is_idle]
        is_all = len([one for one in wanted if session is None or one.session == session]) == len(numbers)
        self._trace(f"{numbers}{' to delete' if deletes else ''} of {shelf} {session!r}")

        def done(found: ReceivedMessages | ServiceBusError) -> None:
            self._trace(f"deferred {numbers}: {found if isinstance(found, ServiceBusError) else 'received'}")
            if isinstance(found, SessionLockLost):
                deed.is_answered = True
                if session is None or model.session_holds.get(session) is hold:
                    raise Violation(f"deferred {numbers}: {found!r}")
                return
            error = found if isinstance(found, ServiceBusError) else None
            if self._is_unavailable(deed, error):
                return
            if model.is_undisturbed(deed) and is_all != (error is None):
                raise Violation(f"deferred {numbers}: {error!r}, and there are {there}")
            model.end_operation(deed)
            if not isinstance(found, ServiceBusError):
                self._receive_each(deed, shelf, numbers, found, session, deletes=deletes)
            elif deed.affected and not deed.is_shared:
                raise Violation(f"deferred {numbers}: {error!r}, and {deed.affected} are deleted")

        until_ms = hold.until_ms if hold is not None else None
        receive = self._fragment(shelf).deferral.receive
        try:
            self._call(
                deed,
                lambda: receive(
                    numbers, done, receive_and_delete=deletes, session_id=session, session_locked_until_ms=until_ms
                ),
            )
        except MessageNotFound as error:
            done(error)
        except ServerBusy as error:
            self._trace(f"refused: {error}")
            out, most = len(self._fragment(shelf).deferred_in_flight), self._simulation.settings.limits.max_locks
            if deletes or out + len(numbers) <= most:
                raise Violation(f"deferred {numbers}: {error!r}, and {out} of {most} are out") from None
            model.end_operation(deed)

    def _receive_each(
        self,
        operation: Operation,
        area: str,
        numbers: list[int],
        found: ReceivedMessages,
        session: bytes | None,
        *,
        deletes: bool,
    ) -> None:
        if [read_delivery(payload).number for payload, _ in found] != numbers:
            raise Violation(f"deferred {numbers}: others were received")
        for payload, token in found:
            self._receive_deferred(operation, area, payload, token, session, deletes=deletes)

    def _receive_deferred(
        self, operation: Operation, area: str, payload: bytes, token: bytes, session: bytes | None, *, deletes: bool
    ) -> None:
        model, reading = self._model, read_delivery(payload)
        message = model.messages[reading.identity]
        if reading.delivered != message.delivery_count or (session is not None and message.session != session):
            raise Violation(f"{reading} was received, for {message}")
        if deletes:
            if message.identity not in operation.affected:
                raise Violation(f"{message} was received and deleted, and is there")
            return
        if message.location != Location(area, DEFERRED, reading.number) or message.lock or message.pending_operation:
            raise Violation(f"{message} was received")
        deadline_s = self._simulation.clock.monotonic_s() + model.description.lock_duration_ms / 1000
        if session is not None:
            if session not in model.session_holds:
                raise Violation(f"{message} was received, of a session that was lost meanwhile")
            deadline_s = NEVER_S
        message.lock = Lock(message, message.location, delivery_tag_of(token), deadline_s, session)
        self._simulation.locks.append(message.lock)
