"""Actions that settle and renew locks, and that receive deferred messages by sequence number."""

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
        """Return some locks given to receivers of one area, including settled and void ones."""
        locks = self._simulation.locks
        if len(locks) > 60:
            del locks[: len(locks) - 60]
        any_lock = self._choose(locks)
        if any_lock is None:
            return MAIN, []
        area = any_lock.location.area
        locks_of_area = [lock for lock in locks if lock.location.area == area]
        chosen = [lock for lock in locks_of_area if self._model.holds_lock(lock) and self._random.random() < 0.6]
        stale = [lock for lock in locks_of_area if not self._model.holds_lock(lock)]
        if stale and self._random.random() < 0.2:
            chosen.append(self._random.choice(stale))
        return area, chosen

    def _settle(self, kind: str) -> None:
        model = self._model
        area, chosen = self._choose_locks()
        if not chosen:
            return
        numbers = self._fragment(area).lock_numbers([lock.tag for lock in chosen])
        valid = [lock for lock in chosen if model.holds_lock(lock)]
        expected = [number for lock, number in zip(chosen, numbers, strict=True) if lock not in valid]
        is_changing = kind in ("abandon", "defer", "dead letter") and self._random.random() < 0.3
        changes: dict[str, object] = {"note": model.step} if is_changing else {}
        operation_kind = "abandon" if kind == "dead letter" and area == DEAD else kind
        operation = model.begin_operation(operation_kind, [lock.message.identity for lock in valid], properties=changes)
        self._trace(f"{[lock.message for lock in chosen]}")
        lost: list[int] = []
        for lock in valid:
            lock.message.lock, lock.message.pending_operation = None, operation
        call = self._begin_settlement(kind, area, changes)
        if not self._call(
            operation, lambda: lost.extend(call(numbers, lambda error: self._check_settled(operation, error)))
        ):
            for lock in valid:
                lock.message.lock, lock.message.pending_operation = lock, None
            return
        if sorted(lost) != sorted(expected):
            raise Violation(f"{kind}: the locks {lost} are lost, not {expected} of {numbers}")
        if not valid:
            model.end_operation(operation)

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
        area, chosen = self._choose_locks()
        if not chosen or chosen[0].session is not None:
            return  # the lock of a session is renewed as a whole
        lock, settlement = chosen[0], self._fragment(area).settlement
        (number,) = self._fragment(area).lock_numbers([lock.tag])
        is_held, duration_ms = self._model.holds_lock(lock), self._model.description.lock_duration_ms
        operation = self._model.begin_operation("renew")
        renewed_until: list[int] = []
        try:
            is_asked = self._call(operation, lambda: renewed_until.append(settlement.renew(number)))
        except MessageLockLost:
            if is_held:
                raise Violation(f"{lock.message}: its lock is lost") from None
            is_asked = False
        self._model.end_operation(operation)
        if is_asked:
            if not is_held or renewed_until != [self._simulation.clock.wall_ms() + duration_ms]:
                raise Violation(f"{lock.message}: its lock was renewed until {renewed_until}")
            lock.deadline_s = self._simulation.clock.monotonic_s() + duration_ms / 1000

    def receive_deferred(self) -> None:  # noqa: C901  # the possible outcomes are many
        model, area = self._model, self._choose_area()
        holder = self._choose_session_holder() if self._simulation.has_sessions(area) else None
        session = holder.session if holder is not None else None
        if self._simulation.has_sessions(area) and session is None:
            return
        existing = {
            message.location.number: message for message in model.messages_at(area, DEFERRED) if message.location
        }
        numbers = self._sample_numbers(existing, model.highest[area])
        if not numbers:
            return
        deletes = self._random.random() < 0.4
        operation = model.begin_operation(
            "take deferred", covers=lambda message: deletes and is_at(message, area, DEFERRED, numbers)
        )
        hold = model.session_holds.get(session) if session is not None else None
        available = [existing[number] for number in numbers if number in existing and existing[number].is_idle]
        are_all_available = len(
            [message for message in available if session is None or message.session == session]
        ) == len(numbers)
        self._trace(f"{numbers}{' to delete' if deletes else ''} of {area} {session!r}")

        def done(result: ReceivedMessages | ServiceBusError) -> None:
            self._trace(f"deferred {numbers}: {result if isinstance(result, ServiceBusError) else 'received'}")
            if isinstance(result, SessionLockLost):
                operation.is_answered = True
                if session is None or model.session_holds.get(session) is hold:
                    raise Violation(f"deferred {numbers}: {result!r}")
                return
            error = result if isinstance(result, ServiceBusError) else None
            if self._is_unavailable(operation, error):
                return
            if model.is_undisturbed(operation) and are_all_available != (error is None):
                raise Violation(f"deferred {numbers}: {error!r}, and there are {existing}")
            model.end_operation(operation)
            if not isinstance(result, ServiceBusError):
                self._receive_each(operation, area, numbers, result, session, deletes=deletes)
            elif operation.affected and not operation.is_shared:
                raise Violation(f"deferred {numbers}: {error!r}, and {operation.affected} are deleted")

        until_ms = hold.until_ms if hold is not None else None
        receive = self._fragment(area).deferral.receive
        try:
            self._call(
                operation,
                lambda: receive(
                    numbers, done, receive_and_delete=deletes, session_id=session, session_locked_until_ms=until_ms
                ),
            )
        except MessageNotFound as error:
            done(error)
        except ServerBusy as error:
            self._trace(f"refused: {error}")
            in_flight_count, max_locks = (
                len(self._fragment(area).deferred_in_flight),
                self._simulation.settings.limits.max_locks,
            )
            if deletes or in_flight_count + len(numbers) <= max_locks:
                raise Violation(
                    f"deferred {numbers}: {error!r}, and {in_flight_count} of {max_locks} are out"
                ) from None
            model.end_operation(operation)

    def _receive_each(
        self,
        operation: Operation,
        area: str,
        numbers: list[int],
        received: ReceivedMessages,
        session: bytes | None,
        *,
        deletes: bool,
    ) -> None:
        if [read_delivery(payload).number for payload, _ in received] != numbers:
            raise Violation(f"deferred {numbers}: others were received")
        for payload, token in received:
            self._receive_deferred(operation, area, payload, token, session, deletes=deletes)

    def _receive_deferred(
        self, operation: Operation, area: str, payload: bytes, token: bytes, session: bytes | None, *, deletes: bool
    ) -> None:
        model, delivery = self._model, read_delivery(payload)
        message = model.messages[delivery.identity]
        if delivery.delivered != message.delivery_count or (session is not None and message.session != session):
            raise Violation(f"{delivery} was received, for {message}")
        if deletes:
            if message.identity not in operation.affected:
                raise Violation(f"{message} was received and deleted, and is there")
            return
        if message.location != Location(area, DEFERRED, delivery.number) or message.lock or message.pending_operation:
            raise Violation(f"{message} was received")
        deadline_s = self._simulation.clock.monotonic_s() + model.description.lock_duration_ms / 1000
        if session is not None:
            if session not in model.session_holds:
                raise Violation(f"{message} was received, of a session that was lost meanwhile")
            deadline_s = NEVER_S
        message.lock = Lock(message, message.location, delivery_tag_of(token), deadline_s, session)
        self._simulation.locks.append(message.lock)
