"""SASL: who the peer is, before AMQP itself starts (part 5.3).

Mechanisms are names and bytes here: ANONYMOUS and MSSBCBS (the .NET client's name for it: the real proof comes later,
by CBS), PLAIN, and EXTERNAL (the TLS certificate tells). Whether a name and password are right is for the program to
say; it may also hold an exchange of several challenges.

Owns: the frames of the exchange and what the initial responses mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from twinbus.amqp.composite import BINARY, STRING, SYMBOL, SYMBOLS, UBYTE, Composite, composite, typed_field
from twinbus.amqp.errors import ILLEGAL_STATE, DecodeError, LocalError, Violation
from twinbus.amqp.events import SaslChallengeReceived, SaslFailed, SaslInitReceived, SaslResponseReceived
from twinbus.amqp.frames import SASL_FRAME, frame
from twinbus.amqp.states import SASL_FROM_SERVER, SASL_TRANSITIONS, SaslState, SaslStep

if TYPE_CHECKING:
    from twinbus.amqp.events import Event

ANONYMOUS: Final = "ANONYMOUS"
PLAIN: Final = "PLAIN"
EXTERNAL: Final = "EXTERNAL"
MSSBCBS: Final = "MSSBCBS"

USUAL_MECHANISMS: Final = (MSSBCBS, PLAIN, ANONYMOUS)
"""What a server offers unless told. EXTERNAL is for one that asks for certificates: a proton client without one gives
up when it sees EXTERNAL offered, whatever else is."""


class SaslCode(IntEnum):
    """How an exchange ended."""

    OK = 0
    AUTH = 1
    SYS = 2
    SYS_PERM = 3
    SYS_TEMP = 4


@composite(0x40, "amqp:sasl-mechanisms:list")
class SaslMechanisms(Composite):
    """What the server offers."""

    sasl_server_mechanisms: tuple[str, ...] = typed_field(SYMBOLS)


@composite(0x41, "amqp:sasl-init:list")
class SaslInit(Composite):
    """What the client chose, with its first words."""

    mechanism: str = typed_field(SYMBOL)
    initial_response: bytes | None = typed_field(BINARY, default=None)
    hostname: str | None = typed_field(STRING, default=None)


@composite(0x42, "amqp:sasl-challenge:list")
class SaslChallenge(Composite):
    """A question of the server's."""

    challenge: bytes = typed_field(BINARY)


@composite(0x43, "amqp:sasl-response:list")
class SaslResponse(Composite):
    """The client's answer."""

    response: bytes = typed_field(BINARY)


@composite(0x44, "amqp:sasl-outcome:list")
class SaslOutcome(Composite):
    """The server's word on it."""

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
    """What a client shows: a mechanism and its initial response. The response is never printed."""

    mechanism: str
    initial_response: bytes

    def __repr__(self) -> str:
        return f"Credentials({self.mechanism})"

    @classmethod
    def anonymous(cls, trace: str = "") -> Credentials:
        """Nobody in particular; `trace` is shown to the server."""
        return cls(ANONYMOUS, trace.encode())

    @classmethod
    def plain(cls, username: str, password: str) -> Credentials:
        """A name and a password, as RFC 4616 writes them."""
        if "\0" in username or "\0" in password:
            raise ValueError("a name or password with a null character in it")
        return cls(PLAIN, f"\0{username}\0{password}".encode())

    @classmethod
    def external(cls, identity: str = "") -> Credentials:
        """Whoever the TLS certificate says, acting as `identity`."""
        return cls(EXTERNAL, identity.encode())


def read_plain(response: bytes | None) -> tuple[str, str]:
    """Name and password of a PLAIN initial response."""
    parts = (response or b"").split(b"\0")
    try:
        _identity, username, password = (part.decode("utf-8") for part in parts)
    except ValueError:
        raise DecodeError("a PLAIN response is identity, name and password with null characters between") from None
    return username, password


class SaslLayer:
    """One exchange, seen from our end: whose turn it is and what comes next."""

    def __init__(
        self,
        *,
        is_client: bool,
        is_required: bool,
        mechanisms: tuple[str, ...] = (),
        credentials: Credentials | None = None,
        hostname: str | None = None,
    ) -> None:
        """Use `SaslLayer.client` or `SaslLayer.server`."""
        self.is_client = is_client
        self.is_required = is_required
        self.mechanisms = mechanisms
        self.credentials = credentials
        self.hostname = hostname
        self.state = SaslState.AWAITING_MECHANISMS

    @classmethod
    def client(cls, credentials: Credentials, hostname: str | None) -> SaslLayer:
        """For the end that shows credentials."""
        return cls(is_client=True, is_required=True, credentials=credentials, hostname=hostname)

    @classmethod
    def server(cls, mechanisms: tuple[str, ...], *, is_required: bool) -> SaslLayer:
        """For the end that offers mechanisms."""
        return cls(is_client=False, is_required=is_required, mechanisms=mechanisms)

    @property
    def awaits_program(self) -> bool:
        """Our program has to answer before anything more is read from the peer."""
        ours = SaslState.AWAITING_RESPONSE if self.is_client else SaslState.AWAITING_ANSWER
        return self.state is ours

    def send(self, performative: Composite) -> bytes:
        """Take our step; the frame that tells the peer."""
        step = STEPS[type(performative)]
        following = SASL_TRANSITIONS.get((self.state, step))
        if following is None or (step in SASL_FROM_SERVER) == self.is_client:
            raise LocalError(f"sasl {step.name.lower()} while {self.state.name.lower()}")
        self.state = following
        return frame(0, performative.encode(), SASL_FRAME)

    def receive(self, performative: Composite) -> tuple[bytes, Event | None]:
        """Take the peer's step: what to answer at once, and what to tell the program."""
        step = STEPS.get(type(performative))
        following = SASL_TRANSITIONS.get((self.state, step)) if step is not None else None
        if following is None or (step in SASL_FROM_SERVER) != self.is_client:
            raise Violation(ILLEGAL_STATE, f"{performative.symbol} while {self.state.name.lower().replace('_', ' ')}")
        self.state = following
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
            wanted = credentials.mechanism if credentials is not None else "none"
            reason = f"the server offers {', '.join(offered)[:200] or 'nothing'}, not {wanted}"
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
