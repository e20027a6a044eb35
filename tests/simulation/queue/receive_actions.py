"""Receivers that come, take and go; and sessions, which belong to one of them at a time."""

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

    def come(self) -> None:
        shelf = self._choose_area()
        if self._simulation.has_sessions(shelf):
            return
        receiver = self._receiver(shelf)
        self._trace(repr(receiver))
        line = receiver.fragment.dispatcher
        assert isinstance(line, Dispatcher)
        line.add(receiver)
        if self._random.random() < 0.7:
            receiver.grant(self._random.choice((1, 3, 10, 100)))

    def _pick_receiver(self) -> Receiver | None:
        return self._choose([one for one in self._model.receivers if not one.is_waiting])

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

    def leave(self) -> None:
        receiver = self._choose(self._model.receivers)
        if receiver is not None:
            self._trace(repr(receiver))
            receiver.leave()

    # --- sessions -----------------------------------------------------------------------------------------------------

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
            any(one.is_waiting for one in self._model.receivers),
        )
        receiver = self._receiver(MAIN)
        receiver.requested_session, receiver.is_waiting = session, session is None
        self._trace(f"{receiver!r} wants {session!r}")
        deed = self._model.begin_operation("accept")
        try:
            if session is None:
                is_asked = self._call(deed, lambda: sessions.accept_any_session(receiver, receiver.session_granted))
            else:
                is_asked = self._call(
                    deed, lambda: sessions.accept_session(receiver, session, receiver.session_granted)
                )
        except SessionCannotBeLocked:
            if is_free and not is_contested:
                raise Violation(f"session {session!r} is free, and cannot be accepted") from None
            is_asked = False
        else:
            if is_asked and session is not None and (not is_free or receiver.session != session):
                raise Violation(f"session {session!r} was accepted: {receiver!r}")
        self._model.end_operation(deed)
        if not is_asked:
            receiver.mark_gone()
        elif self._random.random() < 0.7:
            receiver.credit += self._random.choice((1, 3, 10))
            if receiver.session is not None:
                receiver.grant(0)

    def give_up(self) -> None:
        receiver = self._choose([one for one in self._model.receivers if one.is_waiting])
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
            found = sessions.find_lock(session, receiver)
        except SessionLockLost:
            if hold is not None and hold.receiver is receiver:
                raise Violation(f"{receiver!r} has {session!r}, and cannot renew it") from None
            return
        if hold is None or hold.receiver is not receiver:
            raise Violation(f"{receiver!r} has not {session!r}, and renews it")
        until_ms, duration_ms = sessions.renew(found), self._model.description.lock_duration_ms
        if until_ms != self._simulation.clock.wall_ms() + duration_ms:
            raise Violation(f"{session!r} is renewed until {until_ms}")
        hold.until_ms, hold.deadline_s = until_ms, self._simulation.clock.monotonic_s() + duration_ms / 1000

    def set_state(self) -> None:
        model, receiver = self._model, self._choose_session_holder()
        if receiver is None or receiver.session is None:
            return
        session, state = receiver.session, self._random.choice((None, b"", b"%d" % model.step))
        deed, possible = model.begin_operation("set state"), model.states.setdefault(session, [None])
        self._trace(f"{session!r}: {state!r}")

        def answered(error: ServiceBusError | None) -> None:
            if self._is_unavailable(deed, error):
                return
            now = model.states[session]
            if mark in now:
                del now[: now.index(mark)]
            model.end_operation(deed)

        mark = _MarkedState(state) if state is not None else None
        if self._call(deed, lambda: self._fragment(MAIN).session_states.set(session, state, answered)):
            model.states[session] = [*possible, mark]

    def get_state(self) -> None:
        model, session = self._model, self._random.choice(SESSIONS).encode()
        if self._fragment(MAIN).sessions is None:
            return
        deed, possible = model.begin_operation("get state"), list(model.states.get(session, [None]))

        def got(state: bytes | ServiceBusError | None) -> None:
            if isinstance(state, ServiceBusError):
                self._is_unavailable(deed, state)
                return
            now = [*possible, *model.states.get(session, [None])]
            if state not in now:
                raise Violation(f"session {session!r} remembers {state!r}, not {now}")
            model.end_operation(deed)

        self._call(deed, lambda: self._fragment(MAIN).session_states.get(session, got))

    def list_sessions(self) -> None:
        model, random = self._model, self._random
        if self._fragment(MAIN).sessions is None:
            return
        skip, top = random.choice((0, 0, 1, 2)), random.choice((1, 2, 100))
        there = {one.session for one in model.messages_at(MAIN, ACTIVE) if one.session is not None}
        there |= {session for session, possible in model.states.items() if possible[-1] is not None}
        everything = sorted(there, key=lambda session: (len(session), session))
        deed = model.begin_operation("list sessions")

        def listed(found: list[bytes] | ServiceBusError) -> None:
            if isinstance(found, ServiceBusError):
                self._is_unavailable(deed, found)
                return
            if found != sorted(set(found), key=lambda session: (len(session), session)) or len(found) > top:
                raise Violation(f"sessions are listed as {found}")
            if model.is_undisturbed(deed) and skip == 0 and found != everything[:top]:
                raise Violation(f"sessions are listed as {found}, and there are {everything}")
            model.end_operation(deed)

        self._call(deed, lambda: self._fragment(MAIN).session_states.list_all(skip, top, listed))


class _MarkedState(bytes):
    """A state that is unlike an equal one that was set before."""

    __slots__ = ()
