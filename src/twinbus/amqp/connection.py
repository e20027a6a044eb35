"""AMQP connection, sans-IO: bytes in, events out; method calls in, bytes out. The caller passes in the time.

    connection = Connection.server(Settings(container_id="contoso"), now=clock())
    for event in connection.receive_data(data, now=clock()): ...   # respond with methods of connection, session, link
    socket.send(connection.data_to_send())

`receive_data` never raises, whatever the peer sends: a protocol violation is answered with a detach, an end or a close,
and reported as an event. When `is_finished` is True, send the remaining output and close the socket.

With a `work` limit, `receive_data` reads only some of the received frames and holds the remaining frames. The caller
handles the events, checks its clock, and calls `receive_data(b"")` for more while `has_held_input`. So a peer whose
frames are expensive (an attach costs as much as a hundred transfers) cannot keep a server from serving its other peers.

Owns open and close, channels, timeouts, and the loop that splits input into frames. `handshake` owns protocol headers
and SASL, `heartbeat` the timeouts for a silent peer.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from twinbus.amqp.codec.delivery_frames import DISPOSITION_DESCRIPTOR, TRANSFER_DESCRIPTOR
from twinbus.amqp.codec.frames import (
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
from twinbus.amqp.codec.performatives import Attach, Begin, Close, Detach, Disposition, End, Error, Flow, Open, Transfer
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
from twinbus.amqp.handshake import Handshake
from twinbus.amqp.heartbeat import Heartbeat, SilenceLimit
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
from twinbus.amqp.states import (
    CONNECTION_TRANSITIONS,
    SESSION_TRANSITIONS,
    ConnectionState,
    SessionState,
    Step,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.amqp.codec.composite import Composite
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
"""Cost of a transfer, a disposition or a heartbeat, in units of the `work` of `receive_data`."""
OTHER_FRAME_WORK: Final = 32
"""Cost of any other frame, or of a frame that violates the protocol."""
_MAX_DESCRIPTION: Final = 200
_MAX_CONTAINER_ID: Final = 200
_UNLIMITED_WORK: Final = 2**60
_MIN_TICK_S: Final = 0.05


class Connection:
    """Local end of a connection."""

    def __init__(self, settings: Settings, sasl: SaslLayer | None, *, is_client: bool, now: float) -> None:
        """Create a connection; use `Connection.client` or `Connection.server`."""
        self.settings = settings
        self.limits = settings.unauthenticated_limits or settings.limits
        """Limits in force; `apply_authenticated_limits` replaces them with `settings.limits`."""
        self.is_client = is_client
        self.local_state = self.remote_state = ConnectionState.START
        self.remote_open: Open | None = None
        """The peer's open. A server keeps only the part that `_without_properties` returns; the event ConnectionOpened
        has the whole open."""
        self.remote_max_frame_size = MIN_MAX_FRAME_SIZE
        self.sessions: dict[int, Session] = {}
        """Sessions by local channel."""
        self.link_count = 0
        self.attach_count = 0
        """Number of links that the peer has attached so far, including links that are detached again."""
        self.unanswered_bytes = 0
        """Size of the messages that the program has not answered; a server uses this size for back-pressure."""
        self.is_finished = False
        """True if no more input or output follows: close the socket once `data_to_send` is empty."""
        self.on_output: Callable[[], None] | None = None
        """Called when the output queue becomes non-empty, so that the caller can schedule `data_to_send`."""
        self.live_sessions: dict[int, Session] = {}
        """Active sessions by remote channel. A session that we have ended is only in `_by_remote_channel`."""
        self._by_remote_channel: dict[int, Session] = {}
        self._ended_channels: set[int] = set()
        self._assembling_bytes = 0
        self.sessions_to_refresh: set[Session] = set()
        """Sessions whose incoming window is reopened by the next `data_to_send`."""
        self.reopened_sessions: dict[int, Session] = {}
        """Sessions whose outgoing window the peer has reopened. The program is notified of them once per read, because
        a peer may reopen a window with every other frame."""
        self._handshake = Handshake(self, sasl)
        self._open = Open(
            container_id=settings.container_id,
            hostname=settings.hostname,
            max_frame_size=settings.limits.max_frame_size,
            channel_max=settings.limits.max_sessions - 1,
            idle_time_out=settings.idle_timeout_ms or None,
            properties=settings.properties,
        )
        self._open.encode()  # raise EncodeError now if the settings cannot be encoded, not during the handshake
        self._held_input: list[bytes] = []
        self._held_offset = self._held_size = 0
        """Offset of the unread input in the first held chunk; `_held_size` is the size of all unread input."""
        self._unauthenticated_input = (
            settings.unauthenticated_input.join() if settings.unauthenticated_input is not None else None
        )
        self._is_work_limit_reached = False
        """True if reading stopped because of the work limit, not because a frame is incomplete."""
        self._needed = 0
        """Number of held bytes needed before reading can continue."""
        self._output: list[bytes] = []
        self._output_bytes = 0
        self._is_dropped = self._has_sent = False
        self.last_received = now
        """Time of the last input from the peer."""
        self.silence_limit = SilenceLimit(is_client=is_client, now=now)
        """Silence limit that the two ends agreed on, if any (see `set_silence_limit`)."""
        self._heartbeat = Heartbeat(settings.idle_timeout_ms, now)
        self._started = now
        self._closing_since: float | None = None

    @property
    def is_closing(self) -> bool:
        """True if we have sent close."""
        return self.local_state is ConnectionState.CLOSED

    @classmethod
    def client(cls, settings: Settings, credentials: Credentials | None, *, now: float) -> Connection:
        """Create the connecting end, which sends the first header. If `credentials` is None, there is no SASL layer."""
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
        """Create the accepting end. If `require_sasl` is False, a peer may omit the SASL layer."""
        return cls(settings, SaslLayer.server(mechanisms, is_required=require_sasl), is_client=False, now=now)

    def __repr__(self) -> str:
        return f"<Connection {self.settings.container_id} {self.local_state.name}/{self.remote_state.name}>"

    # --- input --------------------------------------------------------------------------------------------------------

    def receive_data(
        self, received: bytes | bytearray | memoryview, *, now: float, work: int | None = None
    ) -> list[Event]:
        """Process bytes from the peer and return the resulting events. Never raises.

        With `work`, stop after about that many units (see `DELIVERY_FRAME_WORK`, `OTHER_FRAME_WORK`); if
        `has_held_input` is True afterwards, call this method again with b"".
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
            self._fail(DecodeError("the content of a frame runs past its end"), events)
        except FrameTooLarge as error:  # raised by one of our own responses
            self._fail(Violation(FRAME_SIZE_TOO_SMALL, str(error)), events)
        else:
            if not self._is_work_limit_reached:  # only once per read, because this call visits all links of a session
                self._announce_reopened(events)
            self._hold_rest(data, at, events)
        if self._unauthenticated_input is not None:
            self._check_unauthenticated_input(self._unauthenticated_input, events)
        return events

    def _check_unauthenticated_input(self, share: ConnectionInput, events: list[Event]) -> None:
        """Close the connection if the input of all unauthenticated peers together exceeds its limit."""
        if not share.update(self._input_bytes):
            message = (
                f"connections without a valid key or token hold more than {share.total.max_bytes} bytes of input "
                f"together, {share.held_bytes} of them this one: authenticate first, or try again later"
            )
            self._fail(Violation(RESOURCE_LIMIT_EXCEEDED, message), events)

    @property
    def _input_bytes(self) -> int:
        """Size of all input held for the peer."""
        return self._held_size + self._assembling_bytes + self.unanswered_bytes

    def _leave_unauthenticated_input(self) -> None:
        if self._unauthenticated_input is not None:
            self._unauthenticated_input.update(0)
            self._unauthenticated_input = None

    def _take_held(self) -> tuple[bytes, int]:
        """Remove and return all held input, and the offset of its unread part."""
        chunks, at = self._held_input, self._held_offset
        if len(chunks) == 1:
            data = chunks[0]
        else:
            chunks[0] = chunks[0][at:]
            data, at = b"".join(chunks), 0
        chunks.clear()
        self._held_offset = self._held_size = 0
        return data, at

    def _announce_reopened(self, events: list[Event]) -> None:
        for session in self.reopened_sessions.values():
            session.announce_reopened(events)
        self.reopened_sessions.clear()

    @property
    def has_held_input(self) -> bool:
        """True if held input can be read now by `receive_data(b"")`.

        Input is held because reading stopped at the work limit, or because the program had to respond first. While the
        program's response is missing, the result is False.
        """
        return (
            bool(self._held_input) and not self._needed and not self._handshake.awaits_program and not self.is_finished
        )

    def _hold_rest(self, data: bytes, at: int, events: list[Event]) -> None:
        size = len(data) - at
        if size <= 0 or self.is_finished:
            self._needed = 0
            return
        if self._is_work_limit_reached:
            # Keep the whole buffer: it may be read in a hundred slices, and copying the remaining input for each slice
            # is expensive.
            self._held_input.append(data)
            self._held_offset = at
        else:
            self._held_input.append(data[at:])
            self._held_offset = 0
        self._held_size = size
        if self._handshake.awaits_program:
            self._needed = 0
            if size > self.limits.max_pipelined_bytes:
                message = f"more than {self.limits.max_pipelined_bytes} bytes were sent before the answer to SASL"
                self._fail(Violation(RESOURCE_LIMIT_EXCEEDED, message), events)

    def _consume(self, data: bytes, at: int, events: list[Event], work: int) -> int:
        """Read complete frames and return the offset of the unread input.

        Set `_needed` to the number of unread bytes that are needed to continue.
        """
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
        live_sessions = self.live_sessions
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
                session = live_sessions.get(channel)
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
        """Process any frame except transfers and dispositions with the usual descriptor."""
        performative, performative_end = read_performative(data, at, end, self.limits)
        step = STEPS.get(type(performative))
        if step is None:
            raise DecodeError(f"a frame contains {performative.symbol}, which is not a performative")
        if step is not Step.TRANSFER and performative_end != end:
            raise DecodeError(f"{performative.symbol} is followed by {end - performative_end} unexpected bytes")
        next_state = CONNECTION_TRANSITIONS.get((self.remote_state, step))
        if next_state is None:
            raise Violation(
                ILLEGAL_STATE,
                f"{performative.symbol} is not allowed in state {self.remote_state.name.lower().replace('_', ' ')}",
            )
        if self.is_closing and step is not Step.CLOSE:
            return  # after our close, only the peer's close matters
        self.remote_state = next_state
        if isinstance(performative, Open):
            self._receive_open(performative, events)
        elif isinstance(performative, Close):
            self._receive_close(performative, events)
        elif isinstance(performative, Begin):
            self._receive_begin(channel, performative, events)
        else:
            session = self._session_at(channel, step)
            if session is not None:
                self._receive_in_session(session, performative, data[performative_end:end], events)

    def _session_at(self, channel: int, step: Step) -> Session | None:
        """Return the session for a frame, or None if the session has ended and the frame is late."""
        session = self._by_remote_channel.get(channel)
        if session is None:
            if channel in self._ended_channels:
                return None  # the Azure SDK for Python detaches links after ending the session
            raise Violation(ILLEGAL_STATE, f"{step.name.lower()} on channel {channel}, where no session has begun")
        next_state = SESSION_TRANSITIONS.get((session.remote_state, step))
        if next_state is None:
            raise Violation(ILLEGAL_STATE, f"{step.name.lower()} is not allowed on {session!r}")
        session.remote_state = next_state
        is_over = session.is_dropped or session.local_state is SessionState.ENDED
        return None if is_over and step is not Step.END else session

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
        else:  # a transfer with an unusual descriptor: encode it again in the usual form
            body = performative.encode() + payload
            session.receive_transfer(body, 0, len(body), None, events)

    def receive_header(self) -> None:
        """Process the peer's protocol header. A server responds with its own header; a client has sent one already."""
        self.remote_state = ConnectionState.HEADER_EXCHANGED
        if not self.is_client:
            self.send_header()

    def _receive_open(self, performative: Open, events: list[Event]) -> None:
        if performative.max_frame_size < MIN_MAX_FRAME_SIZE:
            raise Violation(
                INVALID_FIELD, f"max-frame-size is {performative.max_frame_size}; the minimum is {MIN_MAX_FRAME_SIZE}"
            )
        shortest_ms = self.settings.min_idle_timeout_ms
        if performative.idle_time_out and performative.idle_time_out < shortest_ms:
            requested_ms = int(performative.idle_time_out)
            raise Violation(  # required by section 2.4.5
                NOT_ALLOWED,
                f"an idle-time-out of {requested_ms} ms is too short: ask for {shortest_ms} ms or more, or for none",
            )
        self.remote_open = performative if self.is_client else _without_properties(performative)
        self.remote_max_frame_size = performative.max_frame_size
        if performative.idle_time_out:
            self._heartbeat.set_peer_timeout(performative.idle_time_out)
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
                raise Violation(FRAMING_ERROR, f"begin on channel {channel}; the highest channel is {highest}")
            session = self._answering_session()
        else:
            local_session = self.sessions.get(begin.remote_channel)
            if local_session is None or local_session.remote_state is not SessionState.UNMAPPED:
                raise Violation(
                    ILLEGAL_STATE, f"begin answers channel {begin.remote_channel}, on which we began no session"
                )
            session = local_session
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
            raise Violation(RESOURCE_LIMIT_EXCEEDED, f"no free channel to answer a begin: {error}") from None

    def _unmap(self, session: Session) -> None:
        """Remove a session that the peer has ended; late frames on its channel are not an error."""
        if session.remote_channel is not None:
            self._by_remote_channel.pop(session.remote_channel, None)
            self._ended_channels.add(session.remote_channel)
        self.sessions.pop(session.channel, None)
        self.sessions_to_refresh.discard(session)

    def receive_eof(self) -> list[Event]:
        """Finish the connection after its socket was closed, and return the final events."""
        events: list[Event] = []
        self.finish(Error(condition=CONNECTION_FORCED, description="the socket was closed"), events)
        return events

    # --- output -------------------------------------------------------------------------------------------------------

    def write(self, *chunks: bytes) -> None:
        """Queue chunks of output."""
        if not self._output and self.on_output is not None:
            self.on_output()
        self._output += chunks
        for chunk in chunks:
            self._output_bytes += len(chunk)

    @property
    def output_bytes(self) -> int:
        """Number of bytes that the next `data_to_send` returns."""
        return self._output_bytes

    @property
    def queued_bytes(self) -> int:
        """Number of unsent bytes: queued output, and messages that wait for a session window."""
        waiting = sum(session.send_queue.waiting_bytes for session in self.sessions.values())
        return self._output_bytes + waiting

    def send(self, step: Step, channel: int, performative: Composite) -> None:
        """Queue a frame."""
        next_state = CONNECTION_TRANSITIONS.get((self.local_state, step))
        if next_state is None:
            raise LocalError(f"{step.name.lower()} is not allowed on {self!r}")
        body = performative.encode()
        if len(body) + HEADER_SIZE > self.remote_max_frame_size and self.remote_open is not None:
            raise FrameTooLarge(
                f"{performative.symbol} has {len(body)} bytes; the peer accepts frames of {self.remote_max_frame_size}"
            )
        self.local_state = next_state
        self.write(frame(channel, body))

    def data_to_send(self) -> bytes:
        """Return and clear all queued output, for one write."""
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
        """Offer these SASL mechanisms instead of those passed to `server`. The choice may depend on the socket."""
        self._handshake.offer_mechanisms(mechanisms)

    def send_sasl_outcome(self, code: int = SaslCode.OK) -> None:
        """Accept or reject the client's credentials; rejecting them finishes the connection."""
        self._handshake.send(SaslOutcome(outcome=code))

    def send_sasl_challenge(self, challenge: bytes) -> None:
        """Send a SASL challenge to the client."""
        self._handshake.send(SaslChallenge(challenge=challenge))

    def send_sasl_response(self, response: bytes) -> None:
        """Respond to the server's SASL challenge."""
        self._handshake.send(SaslResponse(response=response))

    def begin_session(self) -> Session:
        """Begin a session. SessionBegun follows when the peer has responded; links may be attached earlier."""
        session = self._make_session()
        try:
            session.begin()
        except LocalError:
            del self.sessions[session.channel]
            raise
        return session

    def _make_session(self) -> Session:
        max_sessions = self.limits.max_sessions
        highest_channel = self.remote_open.channel_max if self.remote_open is not None else max_sessions - 1
        for channel in range(min(highest_channel + 1, max_sessions)):
            if channel not in self.sessions:
                session = self.sessions[channel] = Session(self, channel)
                return session
        raise LocalError(f"the connection has reached its limit of {len(self.sessions)} sessions")

    def close(self, error: Error | None = None) -> None:
        """Send close. The connection has ended when the peer responds, or after a timeout (ConnectionClosed)."""
        self.send(Step.CLOSE, 0, Close(error=error))
        for session in self.sessions.values():
            session.stop()

    # --- closing and limits -------------------------------------------------------------------------------------------

    def _fail(self, violation: Violation, events: list[Event]) -> None:
        """Close the connection because of a violation by the peer."""
        error = Error(condition=violation.condition, description=violation.description[:_MAX_DESCRIPTION])
        try:
            if self.local_state is ConnectionState.HEADER_EXCHANGED:
                self.send_open()
            self.close(error)
        except LocalError:  # closed already, no header yet, or our open is too large for the peer
            self.finish(error, events)
        else:
            self._drop(error, events, by_peer=False)

    def finish(self, error: Error, events: list[Event]) -> None:
        """Finish the connection without sending anything more to the peer."""
        self.is_finished = True
        self._drop(error, events, by_peer=False)
        self._held_input.clear()
        self._held_offset = self._held_size = 0
        self._leave_unauthenticated_input()

    def _drop(self, error: Error | None, events: list[Event], *, by_peer: bool) -> None:
        """Drop all sessions and report ConnectionClosed, once, whichever end closed the connection."""
        if self._is_dropped:
            return
        self._is_dropped = True
        self._held_input.clear()
        self._held_offset = self._held_size = 0
        for session in list(self.sessions.values()):
            session.drop(error, events)
        events.append(ConnectionClosed(error=error, by_peer=by_peer))

    def apply_authenticated_limits(self) -> None:
        """Apply `settings.limits` from now on: the peer has authenticated."""
        self.limits = self.settings.limits
        self._leave_unauthenticated_input()

    def count_assembling(self, change: int) -> None:
        """Add `change` to the size of all incomplete messages, and enforce the limit on this size."""
        if change > 0 and self._assembling_bytes + change > self.limits.max_assembling_bytes:
            raise Violation(
                RESOURCE_LIMIT_EXCEEDED, f"more than {self.limits.max_assembling_bytes} bytes of incomplete messages"
            )
        self._assembling_bytes += change

    # --- timeouts and heartbeats --------------------------------------------------------------------------------------

    def set_silence_limit(self, limit_s: float) -> None:
        """Apply the silence limit that the programs at both ends agreed on; 0 ends the agreement."""
        self.silence_limit.set_limit(limit_s)

    def _receive_heartbeat(self) -> None:
        if self.is_client:
            self.silence_limit.on_heartbeat_answered()
        elif self.silence_limit.limit_s > 0:
            self.write(HEARTBEAT)

    def tick_in_s(self, now: float) -> float:
        """Return the number of seconds until the next call to `tick` is due."""
        interval_s = self.tick_interval_s
        if self.silence_limit.limit_s > 0:
            interval_s = min(interval_s, self.silence_limit.next_check_in_s(now, self.last_received))
        return max(_MIN_TICK_S, interval_s)

    @property
    def tick_interval_s(self) -> float:
        """Interval between calls to `tick` if no silence limit is agreed."""
        if self.remote_state is not ConnectionState.OPEN or self.local_state is not ConnectionState.OPEN:
            return 1.0
        return max(_MIN_TICK_S, self._heartbeat.check_interval_s())

    def mark_received(self, *, now: float) -> None:
        """Count the peer as alive at `now`. The owner of the socket calls this method while it has paused reading."""
        self.last_received = now

    def tick(self, now: float) -> list[Event]:
        """Send a heartbeat if one is due, or give up on a peer that is silent or has timed out."""
        events: list[Event] = []
        if self.is_finished:
            return events
        timeout_s = self.settings.handshake_timeout_ms / 1000
        if self.local_state is ConnectionState.CLOSED:
            if self._closing_since is None:
                self._closing_since = now
            elif now - self._closing_since >= timeout_s:
                self.finish(Error(condition=CONNECTION_FORCED, description="the peer did not answer our close"), events)
        elif self.remote_state is not ConnectionState.OPEN:
            if now - self._started >= timeout_s:
                message = f"no open within {timeout_s:g} s"
                self._fail(Violation(RESOURCE_LIMIT_EXCEEDED, message), events)
        elif self._heartbeat.is_peer_silent(now, self.last_received):
            message = f"nothing received for {now - self.last_received:.0f} s"
            self._fail(Violation(RESOURCE_LIMIT_EXCEEDED, message), events)
            self.is_finished = True  # a peer that was silent for so long will not respond to a close
        elif self.silence_limit.limit_s > 0:
            self._check_silence(now, events)
        elif self._heartbeat.take_due(now):
            if not self._has_sent:
                self.write(HEARTBEAT)
            self._has_sent = False
        return events

    def _check_silence(self, now: float, events: list[Event]) -> None:
        silence_limit = self.silence_limit
        if silence_limit.is_exceeded(now, self.last_received):
            silent_s = now - self.last_received
            message = f"nothing was received for {silent_s:.1f} s (agreed limit: {silence_limit.limit_s:g} s)"
            self._fail(Violation(CONNECTION_FORCED, message), events)
            self.is_finished = True
        elif silence_limit.take_heartbeat_due(now):
            self.write(HEARTBEAT)


def _without_properties(performative: Open) -> Open:
    """Return the part of an open that a server keeps while the connection exists: numbers and a short container id."""
    return Open(
        container_id=performative.container_id[:_MAX_CONTAINER_ID],
        max_frame_size=performative.max_frame_size,
        channel_max=performative.channel_max,
        idle_time_out=performative.idle_time_out,
    )
