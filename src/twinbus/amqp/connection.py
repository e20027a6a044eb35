"""The connection: bytes in, events out; methods in, bytes out. No sockets, no clock: time is handed in.

    connection = Connection.server(Settings(container_id="contoso"), now=clock())
    for event in connection.receive_data(data, now=clock()): ...   # answer by methods of connection, session and link
    socket.send(connection.data_to_send())

Whatever the peer sends, `receive_data` raises nothing: a broken rule is answered with the right error by a detach, an
end or a close, and told as an event. When `is_finished`, send what is left and close the socket.

With a limit on its `work`, `receive_data` reads only some of the frames that came, and holds the rest: the caller
handles those events, looks at its clock, and calls `receive_data(b"")` for more while `has_held_input`. So a peer whose
frames are dear (an attach costs as much as a hundred transfers) cannot keep a server from its other peers.

Owns: open and close, channels, time-outs, and the loop that takes frames apart. Headers and SASL are the `prelude`'s,
and a time-out that the two ends agree on is the `agreement`'s.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from twinbus.amqp.delivery_frames import DISPOSITION_DESCRIPTOR, TRANSFER_DESCRIPTOR
from twinbus.amqp.errors import (
    CONNECTION_FORCED,
    FRAME_SIZE_TOO_SMALL,
    FRAMING_ERROR,
    ILLEGAL_STATE,
    INVALID_FIELD,
    NOT_ALLOWED,
    RESOURCE_LIMIT_EXCEEDED,
    DecodeError,
    FrameTooLarge,
    LocalError,
    SessionViolation,
    Violation,
)
from twinbus.amqp.events import ConnectionClosed, ConnectionOpened, SessionBegun
from twinbus.amqp.frames import (
    AMQP_FRAME,
    AMQP_HEADER,
    DATA_OFFSET,
    FRAME_HEADER,
    HEADER_SIZE,
    HEARTBEAT,
    bad_frame,
    frame,
    read_performative,
)
from twinbus.amqp.handshake import Handshake
from twinbus.amqp.performatives import Attach, Begin, Close, Detach, Disposition, End, Error, Flow, Open, Transfer
from twinbus.amqp.sasl import (
    USUAL_MECHANISMS,
    SaslChallenge,
    SaslCode,
    SaslLayer,
    SaslOutcome,
    SaslResponse,
)
from twinbus.amqp.session import Session
from twinbus.amqp.settings import MIN_MAX_FRAME_SIZE
from twinbus.amqp.silence_limit import SilenceLimit
from twinbus.amqp.states import (
    CONNECTION_TRANSITIONS,
    SESSION_TRANSITIONS,
    ConnectionState,
    SessionState,
    Step,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.amqp.composite import Composite
    from twinbus.amqp.events import DeliveriesReceived, Event
    from twinbus.amqp.sasl import Credentials
    from twinbus.amqp.settings import ConnectionInput, Settings

STEPS: Final[dict[type[Composite], Step]] = {
    Open: Step.OPEN,
    Begin: Step.BEGIN,
    Attach: Step.ATTACH,
    Flow: Step.FLOW,
    Transfer: Step.TRANSFER,
    Disposition: Step.DISPOSITION,
    Detach: Step.DETACH,
    End: Step.END,
    Close: Step.CLOSE,
}

DELIVERY_FRAME_WORK: Final = 1
"""What a transfer, a disposition or a heartbeat counts for in the `work` of `receive_data`."""
OTHER_FRAME_WORK: Final = 32
"""... and any other frame, or one that breaks a rule."""
_MAX_DESCRIPTION: Final = 200
_MAX_CONTAINER_ID: Final = 200
_UNLIMITED_WORK: Final = 2**60
_TIMER_TOLERANCE: Final = 0.9
"""A timer that fires a little early must not cost a whole interval."""
_MIN_TICK_S: Final = 0.05


class Connection:
    """Our end of a connection."""

    def __init__(self, settings: Settings, sasl: SaslLayer | None, *, is_client: bool, now: float) -> None:
        """Use `Connection.client` or `Connection.server`."""
        self.settings = settings
        self.limits = settings.unauthenticated_limits or settings.limits
        """What holds now; `raise_limits` makes them those of the settings."""
        self.is_client = is_client
        self.local_state = self.remote_state = ConnectionState.START
        self.remote_open: Open | None = None
        """What the peer said of itself. A server keeps none of its properties: ConnectionOpened has them, once."""
        self.remote_max_frame_size = MIN_MAX_FRAME_SIZE
        self.sessions: dict[int, Session] = {}
        """By our channel."""
        self.link_count = 0
        self.attach_count = 0
        """Links that the peer has attached so far, those that are gone included."""
        self.unanswered_bytes = 0
        """Of messages that the program has not said anything of; what a server watches to slow its peers down."""
        self.is_finished = False
        """Nothing more will come or go: close the socket once `data_to_send` is empty."""
        self.on_output: Callable[[], None] | None = None
        """Called when there is output where there was none: a hint that `data_to_send` has something."""
        self.live_sessions: dict[int, Session] = {}
        """By the peer's channel: those whose frames matter. A session that we ended is in `_by_remote_channel` only."""
        self._by_remote_channel: dict[int, Session] = {}
        self._ended_channels: set[int] = set()
        self._assembling_bytes = 0
        self.sessions_to_refresh: set[Session] = set()
        """Sessions whose incoming window is to be reopened with the next bytes."""
        self.reopened_sessions: dict[int, Session] = {}
        """Those whose peer has reopened its own. Told once for a read: a peer may do it with every other frame."""
        self._handshake = Handshake(self, sasl)
        self._open = Open(
            container_id=settings.container_id,
            hostname=settings.hostname,
            max_frame_size=settings.limits.max_frame_size,
            channel_max=settings.limits.max_sessions - 1,
            idle_time_out=settings.idle_timeout_ms or None,
            properties=settings.properties,
        )
        self._open.encode()  # settings that have no encoding are refused here, not in the middle of a conversation
        self._held_input: list[bytes] = []
        self._held_offset = self._held_size = 0
        """Where what was not read begins in the first of them, and how much it is."""
        self._unauthenticated_input = (
            settings.unauthenticated_input.join() if settings.unauthenticated_input is not None else None
        )
        self._is_work_limit_reached = False
        """Reading stopped because its work was done, not because a frame is not whole."""
        self._needed = 0
        """Bytes held must become so many before reading on makes sense."""
        self._output: list[bytes] = []
        self._output_bytes = 0
        self._is_dropped = self._has_sent = False
        self.last_received = now
        """When the peer was last heard of."""
        self.silence_limit = SilenceLimit(is_client=is_client, now=now)
        """On the silence after which either end gives up on the other, if that is agreed (`limit_silence`)."""
        self._last_tick = self._started = now
        self._heartbeat_interval = 0.0
        self._closing_since: float | None = None

    @property
    def is_closing(self) -> bool:
        """We have sent close."""
        return self.local_state is ConnectionState.CLOSED

    @classmethod
    def client(cls, settings: Settings, credentials: Credentials | None, *, now: float) -> Connection:
        """The end that connects: it speaks first. Without credentials there is no SASL layer at all."""
        sasl = SaslLayer.client(credentials, settings.hostname) if credentials is not None else None
        connection = cls(settings, sasl, is_client=True, now=now)
        connection._handshake.start()
        return connection

    @classmethod
    def server(
        cls,
        settings: Settings,
        *,
        now: float,
        mechanisms: tuple[str, ...] = USUAL_MECHANISMS,
        require_sasl: bool = True,
    ) -> Connection:
        """The end that was connected to. Without `require_sasl` a peer may leave the SASL layer out."""
        return cls(settings, SaslLayer.server(mechanisms, is_required=require_sasl), is_client=False, now=now)

    def __repr__(self) -> str:
        return f"<Connection {self.settings.container_id} {self.local_state.name}/{self.remote_state.name}>"

    # --- bytes in -----------------------------------------------------------------------------------------------------

    def receive_data(
        self, received: bytes | bytearray | memoryview, *, now: float, work: int | None = None
    ) -> list[Event]:
        """What the peer's bytes mean. Raises nothing, whatever they are.

        With `work`, about so much is done (`HOT_WORK`, `COLD_WORK`): if `has_held_input` then, call it again with b"".
        """
        events: list[Event] = []
        if self.is_finished:
            return events
        self.last_received = now
        data = received if isinstance(received, bytes) else bytes(received)
        at = 0
        if self._held_input:
            if data:
                self._held_input.append(data)
                self._held_size += len(data)
            if self._held_size < self._needed:
                if self._unauthenticated_input is not None:
                    self._check_unauthenticated_input(self._unauthenticated_input, events)
                return events
            data, at = self._take_held()
        self._is_work_limit_reached = False
        try:
            at = self._consume(data, at, events, _UNLIMITED_WORK if work is None else work)
        except Violation as violation:
            self._fail(violation, events)
        except (IndexError, struct.error):
            self._fail(DecodeError("a frame whose contents run past its end"), events)
        except FrameTooLarge as error:  # an answer of ours
            self._fail(Violation(FRAME_SIZE_TOO_SMALL, str(error)), events)
        else:
            if not self._is_work_limit_reached:  # else once all is read: it concerns every link of a session
                self._announce_reopened(events)
            self._hold_rest(data, at, events)
        if self._unauthenticated_input is not None:
            self._check_unauthenticated_input(self._unauthenticated_input, events)
        return events

    def _check_unauthenticated_input(self, share: ConnectionInput, events: list[Event]) -> None:
        """Keep the sum of what all peers without credentials make us hold within its limit."""
        if not share.update(self._input_bytes):
            message = (
                f"connections without a valid key or token hold more than {share.total.max_bytes} bytes of input "
                f"together, {share.held_bytes} of them this one: authenticate first, or try again later"
            )
            self._fail(Violation(RESOURCE_LIMIT_EXCEEDED, message), events)

    @property
    def _input_bytes(self) -> int:
        """What we hold of the peer's input."""
        return self._held_size + self._assembling_bytes + self.unanswered_bytes

    def _leave_unauthenticated_input(self) -> None:
        if self._unauthenticated_input is not None:
            self._unauthenticated_input.update(0)
            self._unauthenticated_input = None

    def _take_held(self) -> tuple[bytes, int]:
        """All held input, and where what was not read of it begins."""
        held, at = self._held_input, self._held_offset
        if len(held) == 1:
            data = held[0]
        else:
            held[0] = held[0][at:]
            data, at = b"".join(held), 0
        held.clear()
        self._held_offset = self._held_size = 0
        return data, at

    def _announce_reopened(self, events: list[Event]) -> None:
        for session in self.reopened_sessions.values():
            session.announce_reopened(events)
        self.reopened_sessions.clear()

    @property
    def has_held_input(self) -> bool:
        """There is input to be read on now: call `receive_data(b"")`.

        Its work was done before all was read, or the program had to answer first, and now it has.
        """
        return (
            bool(self._held_input) and not self._needed and not self._handshake.awaits_program and not self.is_finished
        )

    def _hold_rest(self, data: bytes, at: int, events: list[Event]) -> None:
        size = len(data) - at
        if size <= 0 or self.is_finished:
            self._needed = 0
            return
        if (
            self._is_work_limit_reached
        ):  # to be read on soon, perhaps in a hundred pieces: not to be copied for each of them
            self._held_input.append(data)
            self._held_offset = at
        else:
            self._held_input.append(data[at:])
            self._held_offset = 0
        self._held_size = size
        if self._handshake.awaits_program:
            self._needed = 0
            if size > self.limits.max_pipelined_bytes:
                message = f"more than {self.limits.max_pipelined_bytes} bytes ahead of the answer to SASL"
                self._fail(Violation(RESOURCE_LIMIT_EXCEEDED, message), events)

    def _consume(self, data: bytes, at: int, events: list[Event], work: int) -> int:
        """Read whole frames of `data`; where the rest starts. `_needed` is how long the rest must become."""
        end = len(data)
        while not self._handshake.is_done:
            start, at = at, self._handshake.consume(data, at, events)
            if at == start:
                self._needed = self._handshake.needed_bytes
                return at
            if self.is_finished:
                return end
        batch: DeliveriesReceived | None = None
        max_frame_size = self.limits.max_frame_size
        live = self.live_sessions
        unpack = FRAME_HEADER.unpack_from
        while end - at >= HEADER_SIZE:
            if work <= 0:
                self._is_work_limit_reached = True
                self._needed = 0
                return at
            size, offset, frame_type, channel = unpack(data, at)
            stop = at + size
            if stop > end and size <= max_frame_size:
                self._needed = size
                return at
            body = at + offset * 4
            if size > max_frame_size or offset < DATA_OFFSET or body > stop or frame_type != AMQP_FRAME:
                raise bad_frame(size, offset, frame_type, self.limits)
            if body < stop:
                session = live.get(channel)
                descriptor = data[body : body + 3]
                try:
                    if descriptor == TRANSFER_DESCRIPTOR and session is not None:
                        work -= DELIVERY_FRAME_WORK
                        batch = session.receive_transfer(data, body, stop, batch, events)
                    else:
                        batch = None
                        if descriptor == DISPOSITION_DESCRIPTOR and session is not None:
                            work -= DELIVERY_FRAME_WORK
                            session.unsettled_deliveries.receive_disposition(data, body, stop, events)
                        else:
                            work -= OTHER_FRAME_WORK
                            self._receive_frame(data, body, stop, channel, events)
                except SessionViolation as violation:
                    work -= OTHER_FRAME_WORK
                    self._by_remote_channel[channel].fail(violation, events)
                    batch = None
                if self.is_finished:
                    return end
            else:
                work -= DELIVERY_FRAME_WORK
                self._receive_heartbeat()
            at = stop
        self._needed = HEADER_SIZE
        return at

    def _receive_frame(self, data: bytes, at: int, end: int, channel: int, events: list[Event]) -> None:
        """Any frame but a transfer or a disposition of the usual form."""
        performative, stopped = read_performative(data, at, end, self.limits)
        step = STEPS.get(type(performative))
        if step is None:
            raise DecodeError(f"a frame that holds {performative.symbol}")
        if step is not Step.TRANSFER and stopped != end:
            raise DecodeError(f"{performative.symbol} with {end - stopped} bytes behind it")
        following = CONNECTION_TRANSITIONS.get((self.remote_state, step))
        if following is None:
            raise Violation(
                ILLEGAL_STATE, f"{performative.symbol} while {self.remote_state.name.lower().replace('_', ' ')}"
            )
        if self.is_closing and step is not Step.CLOSE:
            return  # we have closed: nothing else matters any more
        self.remote_state = following
        if isinstance(performative, Open):
            self._receive_open(performative, events)
        elif isinstance(performative, Close):
            self._receive_close(performative, events)
        elif isinstance(performative, Begin):
            self._receive_begin(channel, performative, events)
        else:
            session = self._session_at(channel, step)
            if session is not None:
                self._receive_in_session(session, performative, data[stopped:end], events)

    def _session_at(self, channel: int, step: Step) -> Session | None:
        """The session a frame is for; None where it is over and the frame came late."""
        session = self._by_remote_channel.get(channel)
        if session is None:
            if channel in self._ended_channels:
                return None  # the Azure SDK for Python detaches links on a channel it has ended
            raise Violation(ILLEGAL_STATE, f"{step.name.lower()} on channel {channel}, where no session has begun")
        following = SESSION_TRANSITIONS.get((session.remote_state, step))
        if following is None:
            raise Violation(ILLEGAL_STATE, f"{step.name.lower()} on {session!r}")
        session.remote_state = following
        over = session.is_dropped or session.local_state is SessionState.ENDED
        return None if over and step is not Step.END else session

    def _receive_in_session(
        self, session: Session, performative: Composite, payload: bytes, events: list[Event]
    ) -> None:
        if isinstance(performative, Disposition):
            body = performative.encode()
            session.unsettled_deliveries.receive_disposition(body, 0, len(body), events)
        elif isinstance(performative, Flow):
            session.receive_flow(performative, events)
        elif isinstance(performative, Attach):
            session.receive_attach(performative, events)
        elif isinstance(performative, Detach):
            session.receive_detach(performative, events)
        elif isinstance(performative, End):
            self._unmap(session)
            session.receive_end(performative, events)
        else:  # a transfer with an unusual descriptor: in its usual form it takes the usual way
            body = performative.encode() + payload
            session.receive_transfer(body, 0, len(body), None, events)

    def receive_header(self) -> None:
        """The peer's protocol header has come; a client has sent its own already."""
        self.remote_state = ConnectionState.HEADER_EXCHANGED
        if not self.is_client:
            self.send_header()

    def _receive_open(self, performative: Open, events: list[Event]) -> None:
        if performative.max_frame_size < MIN_MAX_FRAME_SIZE:
            raise Violation(
                INVALID_FIELD, f"a max-frame-size of {performative.max_frame_size}, below {MIN_MAX_FRAME_SIZE}"
            )
        shortest = self.settings.min_idle_timeout_ms
        if performative.idle_time_out and performative.idle_time_out < shortest:
            asked = int(performative.idle_time_out)
            raise Violation(  # as the specification wants it (2.4.5)
                NOT_ALLOWED, f"an idle-time-out of {asked} ms is too short: ask for {shortest} ms or more, or for none"
            )
        self.remote_open = performative if self.is_client else _without_properties(performative)
        self.remote_max_frame_size = performative.max_frame_size
        if performative.idle_time_out:
            self._heartbeat_interval = performative.idle_time_out / 3000
        if self.local_state is ConnectionState.HEADER_EXCHANGED:
            self.send_open()
        events.append(ConnectionOpened(open=performative))

    def _receive_close(self, performative: Close, events: list[Event]) -> None:
        if self.local_state is ConnectionState.OPEN:
            self.send(Step.CLOSE, 0, Close())
        self.is_finished = True
        self._drop(performative.error, events, by_peer=True)

    def _receive_begin(self, channel: int, begin: Begin, events: list[Event]) -> None:
        if channel in self._by_remote_channel:
            raise Violation(ILLEGAL_STATE, f"begin on channel {channel}, which is in use")
        if begin.remote_channel is None:
            highest = self.settings.limits.max_sessions - 1
            if channel > highest:
                raise Violation(FRAMING_ERROR, f"begin on channel {channel}; the highest is {highest}")
            session = self._answering_session()
        else:
            known = self.sessions.get(begin.remote_channel)
            if known is None or known.remote_state is not SessionState.UNMAPPED:
                raise Violation(
                    ILLEGAL_STATE, f"begin answers channel {begin.remote_channel}, where we have begun nothing"
                )
            session = known
        self._ended_channels.discard(channel)
        self._by_remote_channel[channel] = session
        if session.local_state is not SessionState.ENDED:
            self.live_sessions[channel] = session
        session.remote_channel = channel
        session.receive_begin(begin)
        if session.local_state is SessionState.UNMAPPED:
            session.begin()
        if not session.is_dropped:
            events.append(SessionBegun(session=session))

    def _answering_session(self) -> Session:
        try:
            return self._make_session()
        except LocalError as error:
            raise Violation(RESOURCE_LIMIT_EXCEEDED, f"no channel to answer a begin: {error}") from None

    def _unmap(self, session: Session) -> None:
        """Forget a session that the peer has ended; late frames on its channel are not an error."""
        if session.remote_channel is not None:
            self._by_remote_channel.pop(session.remote_channel, None)
            self._ended_channels.add(session.remote_channel)
        self.sessions.pop(session.channel, None)
        self.sessions_to_refresh.discard(session)

    def receive_eof(self) -> list[Event]:
        """The socket is gone."""
        events: list[Event] = []
        self.finish(Error(condition=CONNECTION_FORCED, description="the socket was closed"), events)
        return events

    # --- bytes out ----------------------------------------------------------------------------------------------------

    def write(self, *chunks: bytes) -> None:
        """Queue bytes."""
        if not self._output and self.on_output is not None:
            self.on_output()
        self._output += chunks
        for chunk in chunks:
            self._output_bytes += len(chunk)

    @property
    def output_bytes(self) -> int:
        """What the next `data_to_send` takes."""
        return self._output_bytes

    @property
    def queued_bytes(self) -> int:
        """What waits to be sent: output not yet taken, and messages that wait for a window."""
        waiting = sum(session.send_queue.waiting_bytes for session in self.sessions.values())
        return self._output_bytes + waiting

    def send(self, step: Step, channel: int, performative: Composite) -> None:
        """Queue a frame."""
        following = CONNECTION_TRANSITIONS.get((self.local_state, step))
        if following is None:
            raise LocalError(f"{step.name.lower()} on {self!r}")
        body = performative.encode()
        if len(body) + HEADER_SIZE > self.remote_max_frame_size and self.remote_open is not None:
            raise FrameTooLarge(
                f"{performative.symbol} of {len(body)} bytes; the peer takes {self.remote_max_frame_size}"
            )
        self.local_state = following
        self.write(frame(channel, body))

    def data_to_send(self) -> bytes:
        """Everything queued since the last call, for one write."""
        if self._unauthenticated_input is not None:  # the program may have answered requests since they were received
            self._unauthenticated_input.update(self._input_bytes)
        for session in self.sessions_to_refresh:
            session.refresh_window()
        self.sessions_to_refresh.clear()
        if not self._output:
            return b""
        data = b"".join(self._output)
        self._output.clear()
        self._output_bytes = 0
        self._has_sent = True
        return data

    def send_header(self) -> None:
        """Send our protocol header."""
        self.local_state = ConnectionState.HEADER_EXCHANGED
        self.write(AMQP_HEADER)

    def send_open(self) -> None:
        """Send our open."""
        self.send(Step.OPEN, 0, self._open)

    def offer_mechanisms(self, mechanisms: tuple[str, ...]) -> None:
        """Offer other SASL mechanisms than `server` was given: what is right may depend on the socket."""
        self._handshake.offer_mechanisms(mechanisms)

    def send_sasl_outcome(self, code: int = SaslCode.OK) -> None:
        """Say whether the client's credentials are good; if not, the connection is finished."""
        self._handshake.send(SaslOutcome(outcome=code))

    def send_sasl_challenge(self, challenge: bytes) -> None:
        """Ask the client for more."""
        self._handshake.send(SaslChallenge(challenge=challenge))

    def send_sasl_response(self, response: bytes) -> None:
        """Answer the server's challenge."""
        self._handshake.send(SaslResponse(response=response))

    def begin_session(self) -> Session:
        """Begin a session. SessionBegun tells when the peer has, too; links may be attached before."""
        session = self._make_session()
        try:
            session.begin()
        except LocalError:
            del self.sessions[session.channel]
            raise
        return session

    def _make_session(self) -> Session:
        most = self.limits.max_sessions
        highest = self.remote_open.channel_max if self.remote_open is not None else most - 1
        for channel in range(min(highest + 1, most)):
            if channel not in self.sessions:
                session = self.sessions[channel] = Session(self, channel)
                return session
        raise LocalError(f"the connection has {len(self.sessions)} sessions, its limit")

    def close(self, error: Error | None = None) -> None:
        """Close our end. The connection has ended when the peer answers, or does not in time (ConnectionClosed)."""
        self.send(Step.CLOSE, 0, Close(error=error))
        for session in self.sessions.values():
            session.stop()

    # --- the end ------------------------------------------------------------------------------------------------------

    def _fail(self, violation: Violation, events: list[Event]) -> None:
        """Close because of what the peer did."""
        error = Error(condition=violation.condition, description=violation.description[:_MAX_DESCRIPTION])
        try:
            if self.local_state is ConnectionState.HEADER_EXCHANGED:
                self.send_open()
            self.close(error)
        except LocalError:  # closed already, no header yet, or an open too large for the peer: there is no telling it
            self.finish(error, events)
        else:
            self._drop(error, events, by_peer=False)

    def finish(self, error: Error, events: list[Event]) -> None:
        """Nothing can be said to the peer any more, or need be."""
        self.is_finished = True
        self._drop(error, events, by_peer=False)
        self._held_input.clear()
        self._held_offset = self._held_size = 0
        self._leave_unauthenticated_input()

    def _drop(self, error: Error | None, events: list[Event], *, by_peer: bool) -> None:
        """Everything on the connection is over, whoever ended it. Told once."""
        if self._is_dropped:
            return
        self._is_dropped = True
        self._held_input.clear()
        self._held_offset = self._held_size = 0
        for session in list(self.sessions.values()):
            session.drop(error, events)
        events.append(ConnectionClosed(error=error, by_peer=by_peer))

    def apply_authenticated_limits(self) -> None:
        """The peer has shown that it may be trusted: `settings.limits` hold from now on."""
        self.limits = self.settings.limits
        self._leave_unauthenticated_input()

    def count_assembling(self, change: int) -> None:
        """Keep the sum of what has arrived of unfinished messages within its limit."""
        if change > 0 and self._assembling_bytes + change > self.limits.max_assembling_bytes:
            raise Violation(
                RESOURCE_LIMIT_EXCEEDED, f"more than {self.limits.max_assembling_bytes} bytes of unfinished messages"
            )
        self._assembling_bytes += change

    # --- time ---------------------------------------------------------------------------------------------------------

    def set_silence_limit(self, limit_s: float) -> None:
        """Keep to a limit of silence that the programs have agreed on, to another one, or (0) to none any more."""
        self.silence_limit.set_limit(limit_s)

    def _receive_heartbeat(self) -> None:
        if self.is_client:
            self.silence_limit.on_heartbeat_answered()
        elif self.silence_limit.limit_s > 0:
            self.write(HEARTBEAT)

    def tick_in_s(self, now: float) -> float:
        """When `tick` wants to be called next, from now on."""
        interval_s = self.tick_interval_s
        if self.silence_limit.limit_s > 0:
            interval_s = min(interval_s, self.silence_limit.next_check_in_s(now, self.last_received))
        return max(_MIN_TICK_S, interval_s)

    @property
    def tick_interval_s(self) -> float:
        """How often `tick` wants to be called, if no limit of silence is agreed."""
        if self.remote_state is not ConnectionState.OPEN or self.local_state is not ConnectionState.OPEN:
            return 1.0
        intervals = [self._heartbeat_interval, self.settings.idle_timeout_ms / 2000, 60.0]
        return max(_MIN_TICK_S, min(interval for interval in intervals if interval))

    def mark_received(self, *, now: float) -> None:
        """Count the peer as heard of: whoever owns the socket does not read from it."""
        self.last_received = now

    def tick(self, now: float) -> list[Event]:
        """Do what is due: a heartbeat, or giving up on a peer that is silent or never comes to an end."""
        events: list[Event] = []
        if self.is_finished:
            return events
        patience = self.settings.handshake_timeout_ms / 1000
        if self.local_state is ConnectionState.CLOSED:
            if self._closing_since is None:
                self._closing_since = now
            elif now - self._closing_since >= patience:
                self.finish(Error(condition=CONNECTION_FORCED, description="no answer to our close"), events)
        elif self.remote_state is not ConnectionState.OPEN:
            if now - self._started >= patience:
                message = f"no open within {patience:g} s"
                self._fail(Violation(RESOURCE_LIMIT_EXCEEDED, message), events)
        elif self.settings.idle_timeout_ms and now - self.last_received >= self.settings.idle_timeout_ms / 500:
            message = f"nothing received for {now - self.last_received:.0f} s"
            self._fail(Violation(RESOURCE_LIMIT_EXCEEDED, message), events)
            self.is_finished = True  # who has been silent for so long will not answer a close either
        elif self.silence_limit.limit_s > 0:
            self._check_silence(now, events)
        elif self._heartbeat_interval and now - self._last_tick >= self._heartbeat_interval * _TIMER_TOLERANCE:
            if not self._has_sent:
                self.write(HEARTBEAT)
            self._has_sent = False
            self._last_tick = now
        return events

    def _check_silence(self, now: float, events: list[Event]) -> None:
        agreement = self.silence_limit
        if agreement.is_exceeded(now, self.last_received):
            silent_s = now - self.last_received
            message = f"nothing was received for {silent_s:.1f} s (agreed limit: {agreement.limit_s:g} s)"
            self._fail(Violation(CONNECTION_FORCED, message), events)
            self.is_finished = True
        elif agreement.take_heartbeat_due(now):
            self.write(HEARTBEAT)


def _without_properties(performative: Open) -> Open:
    """What a server needs to know of its peer for as long as that is there: no text of any length."""
    return Open(
        container_id=performative.container_id[:_MAX_CONTAINER_ID],
        max_frame_size=performative.max_frame_size,
        channel_max=performative.channel_max,
        idle_time_out=performative.idle_time_out,
    )
