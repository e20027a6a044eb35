"""Actions that attach and detach receivers, and that accept and use sessions."""

from __future__ import annotations

from tests.simulation.queue.base_actions import SESSIONS, BaseActions
from tests.simulation.queue.links import Receiver
from tests.simulation.queue.model_state import ACTIVE, MAIN, Violation
from twinbus.broker.fragment.dispatcher import Dispatcher
from twinbus.model.errors import ServiceBusError, SessionCannotBeLocked, SessionLockLost


class ReceiveActions(BaseActions):
    def _receiver(self, area: str) -> Receiver:
        receiver = Receiver(self._simulation, area, self._next_receiver, deletes=self._random.random() < 0.3)
        self._next_receiver += 1
        return receiver

    def attach(self) -> None:
        area = self._choose_area()
        if self._simulation.has_sessions(area):
            return
        receiver = self._receiver(area)
        self._trace(repr(receiver))
        dispatcher = receiver.fragment.dispatcher
        assert isinstance(dispatcher, Dispatcher)
        dispatcher.add(receiver)
        if self._random.random() < 0.7:
            receiver.grant(self._random.choice((1, 3, 10, 100)))

    def _pick_receiver(self) -> Receiver | None:
        return self._choose([receiver for receiver in self._model.receivers if not receiver.is_waiting])

    def grant(self) -> None:
        receiver = self._pick_receiver()
        if receiver is not None:
            self._trace(repr(receiver))
            receiver.grant(self._random.choice((1, 3, 10)))

    def drain(self) -> None:
        receiver = self._pick_receiver()
        if receiver is not None:
            self._trace(repr(receiver))
            receiver.credit += self._random.choice((0, 1, 3, 10))
            receiver.drain()

    def detach(self) -> None:
        receiver = self._choose(self._model.receivers)
        if receiver is not None:
            self._trace(repr(receiver))
            receiver.leave()

    # --- sessions ----------------------------------------------------------------------------------------------------

    def accept_named(self) -> None:
        self._accept(self._random.choice(SESSIONS).encode())

    def accept_any(self) -> None:
        self._accept(None)

    def _accept(self, session: bytes | None) -> None:
        sessions = self._fragment(MAIN).sessions
        if sessions is None:
            return
        is_free, is_contested = (
            session not in self._model.session_holds,
            any(other.is_waiting for other in self._model.receivers),
        )
        receiver = self._receiver(MAIN)
        receiver.requested_session, receiver.is_waiting = session, session is None
        self._trace(f"{receiver!r} wants {session!r}")
        operation = self._model.begin_operation("accept")
        try:
            if session is None:
                is_asked = self._call(
                    operation, lambda: sessions.accept_any_session(receiver, receiver.session_granted)
                )
            else:
                is_asked = self._call(
                    operation, lambda: sessions.accept_session(receiver, session, receiver.session_granted)
                )
        except SessionCannotBeLocked:
            if is_free and not is_contested:
                raise Violation(f"session {session!r} is free, and cannot be accepted") from None
            is_asked = False
        else:
            if is_asked and session is not None and (not is_free or receiver.session != session):
                raise Violation(f"session {session!r} was accepted: {receiver!r}")
        self._model.end_operation(operation)
        if not is_asked:
            receiver.mark_gone()
        elif self._random.random() < 0.7:
            receiver.credit += self._random.choice((1, 3, 10))
            if receiver.session is not None:
                receiver.grant(0)

    def cancel_accept(self) -> None:
        receiver = self._choose([other for other in self._model.receivers if other.is_waiting])
        sessions = self._fragment(MAIN).sessions
        if receiver is None or sessions is None:
            return
        self._trace(repr(receiver))
        receiver.mark_gone()
        if not sessions.cancel_accept(receiver):
            raise Violation(f"{receiver!r} waits for a session, and cannot give that up")

    def renew_session(self) -> None:
        sessions, receiver = self._fragment(MAIN).sessions, self._choose_session_holder()
        if sessions is None or receiver is None or receiver.session is None:
            return
        session = receiver.session if self._random.random() < 0.8 else self._random.choice(SESSIONS).encode()
        hold = self._model.session_holds.get(session)
        try:
            lock = sessions.find_lock(session, receiver)
        except SessionLockLost:
            if hold is not None and hold.receiver is receiver:
                raise Violation(f"{receiver!r} has {session!r}, and cannot renew it") from None
            return
        if hold is None or hold.receiver is not receiver:
            raise Violation(f"{receiver!r} has not {session!r}, and renews it")
        until_ms, duration_ms = sessions.renew(lock), self._model.description.lock_duration_ms
        if until_ms != self._simulation.clock.wall_ms() + duration_ms:
            raise Violation(f"{session!r} is renewed until {until_ms}")
        hold.until_ms, hold.deadline_s = until_ms, self._simulation.clock.monotonic_s() + duration_ms / 1000

    def set_state(self) -> None:
        model, receiver = self._model, self._choose_session_holder()
        if receiver is None or receiver.session is None:
            return
        session, state = receiver.session, self._random.choice((None, b"", b"%d" % model.step))
        operation, possible = model.begin_operation("set state"), model.states.setdefault(session, [None])
        self._trace(f"{session!r}: {state!r}")

        def answered(error: ServiceBusError | None) -> None:
            if self._is_unavailable(operation, error):
                return
            states = model.states[session]
            if mark in states:
                del states[: states.index(mark)]
            model.end_operation(operation)

        mark = _MarkedState(state) if state is not None else None
        if self._call(operation, lambda: self._fragment(MAIN).session_states.set(session, state, answered)):
            model.states[session] = [*possible, mark]

    def get_state(self) -> None:
        model, session = self._model, self._random.choice(SESSIONS).encode()
        if self._fragment(MAIN).sessions is None:
            return
        operation, possible = model.begin_operation("get state"), list(model.states.get(session, [None]))

        def got(state: bytes | ServiceBusError | None) -> None:
            if isinstance(state, ServiceBusError):
                self._is_unavailable(operation, state)
                return
            expected = [*possible, *model.states.get(session, [None])]
            if state not in expected:
                raise Violation(f"session {session!r} remembers {state!r}, not {expected}")
            model.end_operation(operation)

        self._call(operation, lambda: self._fragment(MAIN).session_states.get(session, got))

    def list_sessions(self) -> None:
        model, random = self._model, self._random
        if self._fragment(MAIN).sessions is None:
            return
        skip, top = random.choice((0, 0, 1, 2)), random.choice((1, 2, 100))
        existing = {message.session for message in model.messages_at(MAIN, ACTIVE) if message.session is not None}
        existing |= {session for session, possible in model.states.items() if possible[-1] is not None}
        everything = sorted(existing, key=lambda session: (len(session), session))
        operation = model.begin_operation("list sessions")

        def listed(sessions: list[bytes] | ServiceBusError) -> None:
            if isinstance(sessions, ServiceBusError):
                self._is_unavailable(operation, sessions)
                return
            if sessions != sorted(set(sessions), key=lambda session: (len(session), session)) or len(sessions) > top:
                raise Violation(f"sessions are listed as {sessions}")
            if model.is_undisturbed(operation) and skip == 0 and sessions != everything[:top]:
                raise Violation(f"sessions are listed as {sessions}, and there are {everything}")
            model.end_operation(operation)

        self._call(operation, lambda: self._fragment(MAIN).session_states.list_all(skip, top, listed))


class _MarkedState(bytes):
    """A state that is distinct from an equal state that was set earlier."""

    __slots__ = ()
