"""The protocols that each port of a namespace serves, and texts that direct a client to the right port.

    directory = PortDirectory(plaintext=("amqp", "http"), has_tls=True)
    directory.ports["amqps"] = 5671
    directory.refusal("amqps", HTTP)    # "port 5671 serves AMQP over TLS, but the client sent HTTP without TLS: ..."

The AMQP port serves every protocol: AMQP and HTTP, each with and without TLS. The other ports serve one protocol each.
If other machines can reach the server, a protocol without TLS is served only if `--plaintext` names it.

Owns: these rules and texts. Knows nothing of sockets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from twinbus.server.port.detection import WireProtocol

if TYPE_CHECKING:
    from collections.abc import Collection


class Spoken(NamedTuple):
    """A protocol that a client speaks, with or without TLS."""

    protocol: WireProtocol
    is_tls: bool
    """Whether the protocol was found inside TLS."""

    def __str__(self) -> str:
        if self.protocol is WireProtocol.TLS:
            return "TLS"
        return f"{self.protocol.value} {'over' if self.is_tls else 'without'} TLS"


AMQP: Final = Spoken(WireProtocol.AMQP, is_tls=False)
AMQPS: Final = Spoken(WireProtocol.AMQP, is_tls=True)
HTTP: Final = Spoken(WireProtocol.HTTP, is_tls=False)
HTTPS: Final = Spoken(WireProtocol.HTTP, is_tls=True)
TLS: Final = Spoken(WireProtocol.TLS, is_tls=False)
MAIN_PROTOCOLS: Final = {"amqps": AMQPS, "https": HTTPS, "http": HTTP, "amqp": AMQP}
"""The main protocol of each port. If several ports serve a protocol, texts name the first of these ports."""
ONE_PORT: Final = "amqp"
"""The port that serves every protocol."""
_OPTIONS: Final = {AMQP: "amqp", HTTP: "http"}
"""The values of `--plaintext`."""


class PortDirectory:
    """The open ports of a namespace, and the protocols that each port serves."""

    def __init__(self, *, plaintext: Collection[str], has_tls: bool) -> None:
        """Create a directory without open ports; `plaintext` names the protocols that are allowed without TLS."""
        self.ports: dict[str, int] = {}
        """The numbers of the open ports, by name; the listeners add them."""
        self._forbidden = {spoken for spoken, option in _OPTIONS.items() if option not in plaintext}
        self._has_tls = has_tls

    def protocols(self, name: str) -> tuple[Spoken, ...]:
        """Return the protocols that a port serves, with its main protocol first."""
        main = MAIN_PROTOCOLS[name]
        if name != ONE_PORT:
            return (main,)
        others = (HTTP, AMQPS, HTTPS) if self._has_tls else (HTTP,)
        return tuple(spoken for spoken in (main, *others) if spoken not in self._forbidden)

    def refusal(self, name: str, spoken: Spoken) -> str:
        """Return the text that says why a port does not serve a protocol, and which ports serve it."""
        port = self.ports[name]
        if spoken.protocol is WireProtocol.UNKNOWN:
            return f"port {port} serves {MAIN_PROTOCOLS[name]}, but the client sent {spoken}"
        advice = self._advice(spoken)
        if name == ONE_PORT and spoken in self._forbidden:
            return (
                f"port {port} serves {spoken.protocol.value} only over TLS, because other machines can reach the "
                f"server: {advice}, or start the server with --plaintext {_OPTIONS[spoken]}"
            )
        return f"port {port} serves {MAIN_PROTOCOLS[name]}, but the client sent {spoken}: {advice}"

    def _advice(self, spoken: Spoken) -> str:
        """Return which ports serve the protocol that a client needs.

        Ports that serve the protocol as the client speaks it (with or without TLS) come first.
        """
        wanted = [AMQPS, HTTPS] if spoken == TLS else [spoken, spoken._replace(is_tls=not spoken.is_tls)]
        found = [f"{way} on port {self.ports[name]}" for way in wanted if (name := self._find(way)) is not None]
        return f"use {' or '.join(found)}" if found else f"no port of the server serves {spoken}"

    def _find(self, spoken: Spoken) -> str | None:
        names = (name for name in MAIN_PROTOCOLS if name in self.ports and spoken in self.protocols(name))
        return next(names, None)
