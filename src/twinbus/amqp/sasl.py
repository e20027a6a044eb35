"""SASL: authentication of the peer before AMQP starts (part 5.3 of the specification).

Mechanisms are names and byte strings here: PLAIN, EXTERNAL (the identity comes from the TLS certificate), ANONYMOUS,
and MSSBCBS, which the .NET client uses in place of ANONYMOUS before it authenticates by CBS. The program checks names
and passwords, and may send any number of challenges.

Owns the frames of the exchange and the format of initial responses.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from twinbus.amqp.codec.composite import BINARY, STRING, SYMBOL, SYMBOLS, UBYTE, Composite, composite, typed_field
from twinbus.amqp.codec.frames import SASL_FRAME, frame
from twinbus.amqp.errors import ILLEGAL_STATE, DecodeError, LocalError, Violation
from twinbus.amqp.events import SaslChallengeReceived, SaslFailed, SaslInitReceived, SaslResponseReceived
from twinbus.amqp.states import SASL_FROM_SERVER, SASL_TRANSITIONS, SaslState, SaslStep

if TYPE_CHECKING:
    from twinbus.amqp.events import Event

ANONYMOUS: Final = "ANONYMOUS"
PLAIN: Final = "PLAIN"
EXTERNAL: Final = "EXTERNAL"
MSSBCBS: Final = "MSSBCBS"

USUAL_MECHANISMS: Final = (MSSBCBS, PLAIN, ANONYMOUS)
"""Mechanisms that a server offers by default. EXTERNAL is only for servers that ask for certificates: a proton client
without a certificate gives up when EXTERNAL is offered, even if other mechanisms are offered too."""


class SaslCode(IntEnum):
    """Outcome codes of a SASL exchange."""

    OK = 0
    AUTH = 1
    SYS = 2
    SYS_PERM = 3
    SYS_TEMP = 4


@composite(0x40, "amqp:sasl-mechanisms:list")
class SaslMechanisms(Composite):
    """Mechanisms that the server offers."""

    sasl_server_mechanisms: tuple[str, ...] = typed_field(SYMBOLS)


@composite(0x41, "amqp:sasl-init:list")
class SaslInit(Composite):
    """Mechanism that the client chose, and its initial response."""

    mechanism: str = typed_field(SYMBOL)
    initial_response: bytes | None = typed_field(BINARY, default=None)
    hostname: str | None = typed_field(STRING, default=None)


@composite(0x42, "amqp:sasl-challenge:list")
class SaslChallenge(Composite):
    """Challenge from the server."""

    challenge: bytes = typed_field(BINARY)


@composite(0x43, "amqp:sasl-response:list")
class SaslResponse(Composite):
    """Response from the client to a challenge."""

    response: bytes = typed_field(BINARY)


@composite(0x44, "amqp:sasl-outcome:list")
class SaslOutcome(Composite):
    """Result of the exchange, sent by the server."""

    outcome: int = typed_field(UBYTE)
    additional_data: bytes | None = typed_field(BINARY, default=None)


STEPS: Final[dict[type[Composite], SaslStep]] = {
    SaslMechanisms: SaslStep.MECHANISMS,
    SaslInit: SaslStep.INIT,
    SaslChallenge: SaslStep.CHALLENGE,
    SaslResponse: SaslStep.RESPONSE,
    SaslOutcome: SaslStep.OUTCOME,
}


@dataclass(frozen=True, slots=True)
class Credentials:
    """Credentials of a client: a mechanism and its initial response. The repr omits the response."""

    mechanism: str
    initial_response: bytes

    def __repr__(self) -> str:
        return f"Credentials({self.mechanism})"

    @classmethod
    def anonymous(cls, trace: str = "") -> Credentials:
        """Return credentials without an identity; the server sees `trace`."""
        return cls(ANONYMOUS, trace.encode())

    @classmethod
    def plain(cls, username: str, password: str) -> Credentials:
        """Return credentials with a user name and password, encoded according to RFC 4616."""
        if "\0" in username or "\0" in password:
            raise ValueError("the user name or password contains a null character")
        return cls(PLAIN, f"\0{username}\0{password}".encode())

    @classmethod
    def external(cls, identity: str = "") -> Credentials:
        """Return credentials for the identity in the TLS certificate, acting as `identity`."""
        return cls(EXTERNAL, identity.encode())


def read_plain(response: bytes | None) -> tuple[str, str]:
    """Return the user name and password in a PLAIN initial response."""
    parts = (response or b"").split(b"\0")
    try:
        _identity, username, password = (part.decode("utf-8") for part in parts)
    except ValueError:
        raise DecodeError("a PLAIN response must be identity, user name and password, separated by nulls") from None
    return username, password


class SaslLayer:
    """Local end of one SASL exchange. It holds the state of the exchange and checks each step of both ends."""

    def __init__(
        self,
        *,
        is_client: bool,
        is_required: bool,
        mechanisms: tuple[str, ...] = (),
        credentials: Credentials | None = None,
        hostname: str | None = None,
    ) -> None:
        """Create an exchange; use `SaslLayer.client` or `SaslLayer.server`."""
        self.is_client = is_client
        self.is_required = is_required
        self.mechanisms = mechanisms
        self.credentials = credentials
        self.hostname = hostname
        self.state = SaslState.AWAITING_MECHANISMS

    @classmethod
    def client(cls, credentials: Credentials, hostname: str | None) -> SaslLayer:
        """Create the exchange for a client, which presents credentials."""
        return cls(is_client=True, is_required=True, credentials=credentials, hostname=hostname)

    @classmethod
    def server(cls, mechanisms: tuple[str, ...], *, is_required: bool) -> SaslLayer:
        """Create the exchange for a server, which offers mechanisms."""
        return cls(is_client=False, is_required=is_required, mechanisms=mechanisms)

    @property
    def awaits_program(self) -> bool:
        """True while our program has to respond before more input is read from the peer."""
        program_state = SaslState.AWAITING_RESPONSE if self.is_client else SaslState.AWAITING_ANSWER
        return self.state is program_state

    def send(self, performative: Composite) -> bytes:
        """Take a local step and return its frame."""
        step = STEPS[type(performative)]
        next_state = SASL_TRANSITIONS.get((self.state, step))
        if next_state is None or (step in SASL_FROM_SERVER) == self.is_client:
            raise LocalError(f"SASL {step.name.lower()} is not allowed in state {self.state.name.lower()}")
        self.state = next_state
        return frame(0, performative.encode(), SASL_FRAME)

    def receive(self, performative: Composite) -> tuple[bytes, Event | None]:
        """Process the peer's step; return the bytes to send at once and the event for the program."""
        step = STEPS.get(type(performative))
        next_state = SASL_TRANSITIONS.get((self.state, step)) if step is not None else None
        if next_state is None or (step in SASL_FROM_SERVER) != self.is_client:
            raise Violation(ILLEGAL_STATE, f"{performative.symbol} while {self.state.name.lower().replace('_', ' ')}")
        self.state = next_state
        if isinstance(performative, SaslMechanisms):
            return self._choose(performative.sasl_server_mechanisms)
        if isinstance(performative, SaslInit):
            return self._check_choice(performative)
        if isinstance(performative, SaslChallenge):
            return b"", SaslChallengeReceived(challenge=performative.challenge)
        if isinstance(performative, SaslResponse):
            return b"", SaslResponseReceived(response=performative.response)
        return b"", self._failure(performative)

    def _choose(self, offered: tuple[str, ...]) -> tuple[bytes, Event | None]:
        credentials = self.credentials
        if credentials is None or credentials.mechanism not in offered:
            own_mechanism = credentials.mechanism if credentials is not None else "none"
            reason = f"the server offers {', '.join(offered)[:200] or 'nothing'}, not {own_mechanism}"
            return b"", SaslFailed(code=SaslCode.AUTH, reason=reason)
        init = SaslInit(
            mechanism=credentials.mechanism, initial_response=credentials.initial_response, hostname=self.hostname
        )
        return self.send(init), None

    def _check_choice(self, init: SaslInit) -> tuple[bytes, Event]:
        if init.mechanism not in self.mechanisms:
            reason = f"the client chose {init.mechanism[:60]}, which is not offered"
            return self.send(SaslOutcome(outcome=SaslCode.AUTH)), SaslFailed(code=SaslCode.AUTH, reason=reason)
        return b"", SaslInitReceived(
            mechanism=init.mechanism, initial_response=init.initial_response, hostname=init.hostname
        )

    def _failure(self, outcome: Composite) -> SaslFailed | None:
        code = outcome.outcome if isinstance(outcome, SaslOutcome) else SaslCode.SYS
        if code == SaslCode.OK:
            return None
        return SaslFailed(code=code, reason="the server did not accept the credentials")
