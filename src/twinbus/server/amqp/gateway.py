"""The AMQP gateway: the state that all client connections of a server share.

Owns: the settings of AMQP connections, with the limits for unauthenticated clients. Each client has a
`ClientConnection`.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Final

from twinbus.amqp.connection import Connection
from twinbus.amqp.sasl import PLAIN, USUAL_MECHANISMS
from twinbus.amqp.settings import Limits, Settings, UnauthenticatedInput
from twinbus.server.amqp.client_connection import ClientConnection
from twinbus.server.amqp.open_connections import OpenConnections
from twinbus.server.amqp.outage_node import OutageSwitch
from twinbus.server.auth.login_log import LoginLog
from twinbus.server.auth.revocation import Revocations
from twinbus.server.paired_clients.report_store import PairingReports, ReportStore
from twinbus.server.runtime.logs import ThrottledLog
from twinbus.server.tls.plaintext import is_confidential
from twinbus.server.usage.meter import UsageMeter

if TYPE_CHECKING:
    from twinbus.amqp.aio import Peer
    from twinbus.broker.namespace import Namespace
    from twinbus.server.amqp.socket_backpressure import CallSoon
    from twinbus.server.auth.key_registry import KeyRegistry
    from twinbus.server.catalogue.administration import Administration

log: Final = logging.getLogger(__name__)

FIRST_DELIVERY_ID: Final = 2**28
"""The first delivery id in a session, higher than any id that a client reaches.

pyamqp confuses the disposition of a received message with that of a request it sent under the same id: it drops a
request that has the same id as a dead-lettered message.
"""
MIN_IDLE_TIMEOUT_MS: Final = 1_000
"""The shortest idle timeout. With shorter timeouts, a thousand clients would keep the server busy with heartbeats."""

UNAUTHENTICATED_INPUT_BYTES: Final = 33_554_432
"""The limit on input buffered by all unauthenticated clients of this process together."""
UNAUTHENTICATED_FREE_BYTES: Final = 4_096
"""The input that each unauthenticated client may buffer beyond the common limit: enough for a token, about 1 KB."""

_MECHANISMS_WITHOUT_PASSWORD: Final = tuple(mechanism for mechanism in USUAL_MECHANISMS if mechanism != PLAIN)


def unauthenticated_limits(limits: Limits) -> Limits:
    """Return the limits for a client that is not authenticated yet.

    To log in, the SDKs need a session or two and both links to `$cbs`; an SDK that logs in for several entities at a
    time attaches a pair of links for each.
    """
    return replace(
        limits,
        max_sessions=16,
        max_links=32,
        max_attaches=500,
        max_assembling_bytes=1_048_576,
        max_unanswered_bytes=1_048_576,
    )


class Gateway:
    """The state that all client connections of a server share."""

    def __init__(
        self,
        namespace: Namespace,
        administration: Administration,
        key_registry: KeyRegistry,
        *,
        name: str,
        call_soon: CallSoon,
        link_idle_s: float,
        token_timeout_s: float,
        meter: UsageMeter | None = None,
    ) -> None:
        """Create a gateway without connections; `call_soon` schedules a call for the next turn of the event loop."""
        self.allow_plaintext_passwords = False
        """Whether clients on other machines may use SASL PLAIN without TLS."""
        self.sasl_refusal_log = ThrottledLog(log)
        self.meter = meter or UsageMeter()
        self.namespace = namespace
        self.administration = administration
        self.key_registry = key_registry
        self.outage_switch = OutageSwitch(namespace.outages)
        self.pairing_reports = PairingReports(ReportStore(namespace.clock, namespace.timers))
        self.call_soon = call_soon
        self.open_connections = OpenConnections()
        self.login_log = LoginLog(namespace.clock, namespace.timers, key_registry.has_key_named)
        self.revocations = Revocations(call_soon)
        key_registry.on_key_reduced = self.revocations.revoke
        self.id_sequence = count(1)
        """Ids of clients and links, unique within this process, for the peer protocol."""
        self.link_idle_s = link_idle_s
        self.token_timeout_s = token_timeout_s
        limits = Limits(enforce_credit=False, max_message_size=namespace.limits.max_message_bytes)
        self._settings = Settings(
            container_id=name,
            properties={"product": "twinbus"},
            first_delivery_id=FIRST_DELIVERY_ID,
            min_idle_timeout_ms=MIN_IDLE_TIMEOUT_MS,
            limits=limits,
            unauthenticated_limits=unauthenticated_limits(limits),
            unauthenticated_input=UnauthenticatedInput(
                max_bytes=UNAUTHENTICATED_INPUT_BYTES, free_bytes=UNAUTHENTICATED_FREE_BYTES
            ),
        )

    def make_connection(self, now: float) -> Connection:
        """Return the AMQP engine for an accepted socket. SASL is optional: clients with only a token do not use it."""
        return Connection.server(self._settings, now=now, require_sasl=False)

    def make_client_connection(self, peer: Peer) -> ClientConnection:
        """Return the connection for an accepted socket. SASL PLAIN is not offered to other machines without TLS."""
        self.restrict_mechanisms(peer)
        return ClientConnection(self, peer)

    def restrict_mechanisms(self, peer: Peer) -> None:
        """Offer SASL PLAIN only to a client whose password nobody else on the network can read."""
        if not self.allows_passwords(peer):
            peer.connection.offer_mechanisms(_MECHANISMS_WITHOUT_PASSWORD)

    def allows_passwords(self, peer: Peer) -> bool:
        """Return whether a client may use SASL PLAIN on its connection."""
        return self.allow_plaintext_passwords or is_confidential(peer.transport)
