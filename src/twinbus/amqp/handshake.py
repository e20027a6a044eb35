"""Start of a connection before the first AMQP frame: protocol headers and the SASL exchange.

Decides which header comes next and when the handshake is done. Must not know the meaning of SASL frames, which `sasl`
owns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.amqp.codec.frames import (
    AMQP_HEADER,
    DATA_OFFSET,
    FRAME_HEADER,
    HEADER_SIZE,
    SASL_FRAME,
    SASL_HEADER,
    bad_frame,
    read_performative,
)
from twinbus.amqp.codec.performatives import Error
from twinbus.amqp.errors import FRAMING_ERROR, UNAUTHORIZED_ACCESS, LocalError
from twinbus.amqp.events import SaslFailed
from twinbus.amqp.sasl import SaslCode, SaslMechanisms, SaslOutcome
from twinbus.amqp.states import SaslState

if TYPE_CHECKING:
    from twinbus.amqp.codec.composite import Composite
    from twinbus.amqp.connection import Connection
    from twinbus.amqp.events import Event
    from twinbus.amqp.sasl import SaslLayer


class Handshake:
    """Local end of the handshake on one connection."""

    def __init__(self, connection: Connection, sasl: SaslLayer | None) -> None:
        """Create a handshake; if `sasl` is None, each end sends only the AMQP header."""
        self.is_done = False
        self.needed_bytes = HEADER_SIZE
        """Number of bytes needed to continue reading; 0 while the program has to respond first."""
        self._connection = connection
        self._sasl = sasl
        self._in_sasl = False

    def start(self) -> None:
        """Send a client's first header (and open, if there is no SASL exchange)."""
        if self._sasl is not None:
            self._connection.write(SASL_HEADER)
        else:
            self._connection.send_header()
            self._connection.send_open()

    def offer_mechanisms(self, mechanisms: tuple[str, ...]) -> None:
        """Offer these SASL mechanisms instead of those that the SASL layer was created with."""
        layer = self._layer()
        if layer.state is not SaslState.AWAITING_MECHANISMS:
            raise LocalError("the SASL mechanisms were already offered")
        layer.mechanisms = mechanisms

    @property
    def awaits_program(self) -> bool:
        """True while the program has to respond before more input is read."""
        return self._in_sasl and self._sasl is not None and self._sasl.awaits_program

    def consume(self, data: bytes, at: int, events: list[Event]) -> int:
        """Read a protocol header or a SASL frame; return its end offset, or `at` if it is incomplete."""
        if self.awaits_program:
            self.needed_bytes = 0
            return at
        self.needed_bytes = HEADER_SIZE
        return self._consume_frame(data, at, events) if self._in_sasl else self._consume_header(data, at, events)

    def _consume_header(self, data: bytes, at: int, events: list[Event]) -> int:
        header = data[at : at + HEADER_SIZE]
        if len(header) < HEADER_SIZE and header[:4] == AMQP_HEADER[: min(4, len(header))]:
            return at
        self._receive_header(header, events)
        return at + len(header)

    def _consume_frame(self, data: bytes, at: int, events: list[Event]) -> int:
        if len(data) - at < HEADER_SIZE:
            return at
        size, offset, frame_type, _ = FRAME_HEADER.unpack_from(data, at)
        body, stop = at + offset * 4, at + size
        limits = self._connection.limits
        if size > limits.max_frame_size or offset < DATA_OFFSET or body > stop or frame_type != SASL_FRAME:
            raise bad_frame(size, offset, frame_type, limits)
        if stop > len(data):
            self.needed_bytes = size
            return at
        performative, _ = read_performative(data, body, stop, limits)
        self._receive_sasl(performative, events)
        return int(stop)

    def _receive_header(self, header: bytes, events: list[Event]) -> None:
        sasl, connection = self._sasl, self._connection
        if header == SASL_HEADER and sasl is not None and sasl.state is SaslState.AWAITING_MECHANISMS:
            self._in_sasl = True
            if not connection.is_client:
                connection.write(SASL_HEADER, sasl.send(SaslMechanisms(sasl_server_mechanisms=sasl.mechanisms)))
            return
        sasl_is_missing = sasl is not None and sasl.is_required and sasl.state is not SaslState.DONE
        if header == AMQP_HEADER and not sasl_is_missing:
            self.is_done = True
            connection.receive_header()
            return
        if not connection.is_client:  # part 2.2: respond to an unsupported header with a supported header
            connection.write(SASL_HEADER if sasl_is_missing else AMQP_HEADER)
        expected = "SASL" if sasl_is_missing else "AMQP 1.0"
        error = Error(condition=FRAMING_ERROR, description=f"the peer sent {header!r}, not {expected}")
        connection.finish(error, events)

    def _receive_sasl(self, performative: Composite, events: list[Event]) -> None:
        layer = self._layer()
        answer, event = layer.receive(performative)
        if answer:
            self._connection.write(answer)
        if event is not None:
            events.append(event)
        if isinstance(event, SaslFailed):
            self._connection.finish(Error(condition=UNAUTHORIZED_ACCESS, description=event.reason), events)
        elif layer.state is SaslState.DONE:
            self._leave_sasl()

    def send(self, performative: Composite) -> None:
        """Send our next frame in the SASL exchange."""
        self._connection.write(self._layer().send(performative))
        if isinstance(performative, SaslOutcome):
            if performative.outcome == SaslCode.OK:
                self._leave_sasl()
            else:
                self._connection.is_finished = True

    def _leave_sasl(self) -> None:
        self._in_sasl = False
        if self._connection.is_client:
            self._connection.send_header()
            self._connection.send_open()

    def _layer(self) -> SaslLayer:
        if self._sasl is None:
            raise LocalError("the connection has no SASL layer")
        return self._sasl
