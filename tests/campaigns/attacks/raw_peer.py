"""AMQP peer that follows no rules: it writes frames as given, and reads only on request.

    peer = await RawPeer.connect(target.host, target.amqp_port, credentials=(name, key))
    peer.attach_sender("$cbs")
    await peer.drain()
    performative, payload = await peer.read()

Owns: the socket, and the encoding of frames. The AMQP engine is not used, because it refuses invalid operations.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Self, TypeVar

from twinbus.amqp.codec.frames import (
    AMQP_HEADER,
    FRAME_HEADER,
    HEADER_SIZE,
    SASL_FRAME,
    SASL_HEADER,
    frame,
    read_performative,
)
from twinbus.amqp.codec.performatives import Attach, Begin, Close, Detach, Flow, Open, Transfer
from twinbus.amqp.message import Message, Properties, build, value
from twinbus.amqp.sasl import SaslInit, SaslMechanisms, SaslOutcome
from twinbus.amqp.settings import Limits
from twinbus.amqp.states import Role
from twinbus.amqp.terminus import Source, Target

if TYPE_CHECKING:
    from collections.abc import Mapping

    from twinbus.amqp.codec.composite import Composite

PerformativeT = TypeVar("PerformativeT", bound="Composite")

TIMEOUT_S: Final = 20.0
_BUFFER_BYTES: Final = 4_096
_LIMITS: Final = Limits(max_frame_size=2**20)


class PeerRefused(Exception):
    """The server closed the connection, or refused the credentials."""


class RawPeer:
    """Connection of an attacker."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._handles = 0
        self._delivery = 0

    @classmethod
    async def open_socket(cls, host: str, port: int) -> Self:
        """Open a socket without sending anything."""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                return cls(*await asyncio.open_connection(host, port, limit=_BUFFER_BYTES))
        except OSError as error:
            raise PeerRefused(str(error)) from None

    @classmethod
    async def connect(
        cls, host: str, port: int, *, credentials: tuple[str, str] | None = None, product: str = "attacker"
    ) -> Self:
        """Open a connection with one session, anonymous or with the name of a key and the key."""
        peer = await cls.open_socket(host, port)
        try:
            await peer.log_in(credentials)
            peer.send(Open(container_id="attacker", hostname=host, properties={"product": product}))
            peer.send(Begin(next_outgoing_id=0, incoming_window=2**31 - 1, outgoing_window=2**31 - 1))
            await peer.drain()
            await peer.expect(Open)
            await peer.expect(Begin)
        except BaseException:
            peer.abort()
            raise
        return peer

    async def log_in(self, credentials: tuple[str, str] | None) -> None:
        """Exchange headers and credentials; raise PeerRefused if the credentials are wrong."""
        response = b"" if credentials is None else b"\0" + credentials[0].encode() + b"\0" + credentials[1].encode()
        self.writer.write(SASL_HEADER)
        mechanism = "ANONYMOUS" if credentials is None else "PLAIN"
        self.send(SaslInit(mechanism=mechanism, initial_response=response), frame_type=SASL_FRAME)
        await self.drain()
        await self._read_exactly(len(SASL_HEADER))
        await self.expect(SaslMechanisms)
        outcome = await self.expect(SaslOutcome)
        if outcome.outcome != 0:
            raise PeerRefused(f"SASL outcome {int(outcome.outcome)}")
        self.writer.write(AMQP_HEADER)
        await self.drain()
        await self._read_exactly(len(AMQP_HEADER))

    async def open_without_sasl(self, opening: Open) -> None:
        """Exchange headers and send Open; the response is not read."""
        self.writer.write(AMQP_HEADER)
        self.send(opening)
        await self.drain()
        await self._read_exactly(len(AMQP_HEADER))

    # --- writing ------------------------------------------------------------------------------------------------------

    def send(self, performative: Composite, payload: bytes = b"", *, frame_type: int = 0) -> None:
        """Write one frame."""
        self.writer.write(frame(0, performative.encode() + payload, frame_type))

    def attach_sender(self, address: str) -> int:
        """Send the attach of a sender, and return its handle."""
        return self._attach(Source(address="attacker"), Target(address=address), sends=True)

    async def attached_sender(self, address: str) -> int:
        """Attach a sender, wait for credit, and return its handle; raise PeerRefused if the link is refused."""
        handle = self.attach_sender(address)
        await self.drain()
        while True:
            performative, _ = await self.read()
            if isinstance(performative, Flow) and performative.link_credit:
                return handle
            if isinstance(performative, Detach | Close):
                raise PeerRefused(f"no link to {address}: {performative.error}")

    def attach_receiver(self, address: str, target: str = "attacker", *, source: Source | None = None) -> int:
        """Send the attach of a receiver, and return its handle."""
        return self._attach(source or Source(address=address), Target(address=target), sends=False)

    def _attach(self, source: Source, target: Target, *, sends: bool) -> int:
        handle, self._handles = self._handles, self._handles + 1
        self.send(
            Attach(
                name=f"link-{handle}",
                handle=handle,
                role=Role.SENDER if sends else Role.RECEIVER,
                source=source,
                target=target,
                initial_delivery_count=0 if sends else None,
            )
        )
        return handle

    def detach(self, handle: int) -> None:
        """Close a link."""
        self.send(Detach(handle=handle, closed=True))

    def grant(self, handle: int, credit: int) -> None:
        """Grant credit to the server."""
        self.send(
            Flow(
                next_incoming_id=0,
                incoming_window=2**31 - 1,
                next_outgoing_id=self._delivery,
                outgoing_window=2**31 - 1,
                handle=handle,
                delivery_count=0,
                link_credit=credit,
            )
        )

    def transfer(self, handle: int, message: bytes, *, more: bool = False) -> None:
        """Send a message, or its first part."""
        number, self._delivery = self._delivery, self._delivery + 1
        self.send(
            Transfer(
                handle=handle,
                delivery_id=number,
                delivery_tag=number.to_bytes(4, "big"),
                message_format=0,
                settled=False,
                more=more,
            ),
            message,
        )

    def request(self, handle: int, reply_to: str, operation: str, body: Mapping[str, object]) -> None:
        """Send a request to a `$management` node."""
        properties = Properties(message_id=f"request-{self._delivery}", reply_to=reply_to)
        message = build(properties=properties, application_properties={"operation": operation}, body=value(dict(body)))
        self.transfer(handle, message)

    async def drain(self) -> None:
        """Wait until the socket has accepted the data; raise PeerRefused if the connection is lost."""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await self.writer.drain()
        except (OSError, TimeoutError) as error:
            raise PeerRefused(f"not taken: {error}") from None

    # --- reading ------------------------------------------------------------------------------------------------------

    async def read(self) -> tuple[Composite, bytes]:
        """Return performative and payload of the next frame that is not a heartbeat."""
        while True:
            size, offset, _, _ = FRAME_HEADER.unpack(await self._read_exactly(HEADER_SIZE))
            body = (await self._read_exactly(size - HEADER_SIZE))[offset * 4 - HEADER_SIZE :]
            if body:
                performative, stopped = read_performative(body, 0, len(body), _LIMITS)
                return performative, body[stopped:]

    async def expect(self, kind: type[PerformativeT]) -> PerformativeT:
        """Return the next performative of a kind, skipping others."""
        while True:
            performative, _ = await self.read()
            if isinstance(performative, kind):
                return performative

    async def response(self) -> Message:
        """Return the next complete message on any link."""
        payload = b""
        while True:
            performative, piece = await self.read()
            if isinstance(performative, Transfer):
                payload += piece
                if not performative.more:
                    return Message(payload)

    async def _read_exactly(self, count: int) -> bytes:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                return await self.reader.readexactly(count)
        except (OSError, EOFError, TimeoutError) as error:
            raise PeerRefused(f"nothing more is received: {error!r}") from None

    async def is_refused(self, within_s: float) -> bool:
        """Return whether the server closes the connection within that time."""
        try:
            async with asyncio.timeout(within_s):
                await self.expect(Close)
        except PeerRefused:
            return True
        except TimeoutError:
            return False
        return True

    def abort(self) -> None:
        """Drop the socket."""
        self.writer.transport.abort()
