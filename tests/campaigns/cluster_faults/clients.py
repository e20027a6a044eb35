"""Clients of a campaign: senders of a stream, receivers of a destination, receivers of sessions.

Owns: the messages, and recording which process holds the connection. `workload` decides when to send and receive.
"""

from __future__ import annotations

import collections
import time
from typing import TYPE_CHECKING, Final

from tests.campaigns.clients import SEQUENCE_NUMBER, ReceiverClient, SenderClient
from tests.campaigns.cluster_faults.scenario import has_sessions
from twinbus.amqp.events import DeliveriesReceived
from twinbus.amqp.message import Header, Properties, build, data
from twinbus.amqp.outcomes import ACCEPTED, Accepted, Rejected
from twinbus.amqp.terminus import Source
from twinbus.amqp.types import Symbol, UInt

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from tests.campaigns.cluster_faults.checker import ClusterChecker
    from tests.campaigns.cluster_faults.scenario import Stream
    from twinbus.amqp.codec.composite import Composite
    from twinbus.amqp.events import Event
    from twinbus.amqp.message import Message

PARTITION_KEY: Final = "x-opt-partition-key"
LOCKED_UNTIL: Final = "x-opt-locked-until"
SESSION_FILTER: Final = Symbol("com.microsoft:session-filter")
SESSION_WAIT_MS: Final = 500
FRAGMENT_RUN_LENGTH: Final = 3
"""Pending sends of a client to one fragment: a fragment that hangs must not delay the others."""
BODY_BYTES: Final = (0, 600)


class StreamSenderClient(SenderClient):
    """Sends the messages of a stream."""

    def __init__(self, checker: ClusterChecker, stream: Stream, rng: Random) -> None:
        super().__init__(checker, stream.path)
        self.cluster_checker = checker
        self.stream = stream
        self.process = 0
        """Server process of the connection; set when it is known."""
        self._rng = rng

    def send_next(self) -> None:
        """Send a message of any key whose fragment has room for it; send nothing if there is none."""
        key = self._choose_key()
        if self.stream.has_keys and key is None:
            return
        number, body = self.cluster_checker.send_started(self.stream, key, self.process, self._rng.randint(*BODY_BYTES))
        is_of_session = has_sessions(self.stream.path)
        payload = build(
            header=Header(durable=True),
            message_annotations={PARTITION_KEY: key} if key is not None and not is_of_session else None,
            properties=Properties(message_id=f"m-{number}", group_id=key if is_of_session else None),
            body=data(body),
        )
        self.send_payload(number, payload)

    def _choose_key(self) -> str | None:
        """Choose a key; half of the time of the fragment without response for longest, to detect recovery soon."""
        pending = collections.Counter(self.cluster_checker.sends[number].fragment for number in self.unsettled.values())
        available = [fragment for fragment in self.stream.by_fragment if pending[fragment] < FRAGMENT_RUN_LENGTH]
        if not available:
            return None
        last_accepted_s, name = self.cluster_checker.last_accepted_s, self.stream.name
        longest_ago = min(available, key=lambda fragment: last_accepted_s.get((name, fragment), 0.0))
        fragment = longest_ago if self._rng.random() < 0.5 else self._rng.choice(available)
        return self._rng.choice(self.stream.by_fragment[fragment])

    def record_disconnect(self) -> None:
        """Record that pending sends get no response."""
        for number in self.unsettled.values():
            self.cluster_checker.send_disconnected(number)
        self.unsettled.clear()


class StreamReceiverClient(ReceiverClient):
    """Receives from a destination with peek-lock; its delivery numbers are indexes in the checker."""

    def __init__(
        self,
        checker: ClusterChecker,
        destination: str,
        choose_outcome: Callable[[], Composite | None] = lambda: ACCEPTED,
    ) -> None:
        super().__init__(checker, destination, choose_outcome)
        self.cluster_checker = checker
        self.process = 0
        self._credit = 0

    def keep_credit(self, credit: int) -> None:
        """Keep the credit constant, so that messages that hang do not delay others."""
        self._credit = credit
        self.link.grant(credit)

    def handle_event(self, event: Event) -> None:
        super().handle_event(event)
        if self._credit and isinstance(event, DeliveriesReceived):
            self.link.grant(self._credit)

    def record_receipt(self, message: Message) -> int | None:
        annotations = message.message_annotations
        assert isinstance(annotations, dict)
        return self.cluster_checker.message_delivered(
            self.queue,
            annotations[SEQUENCE_NUMBER],
            b"".join(message.data),
            link=self.number,
            process=self.process,
            until_s=time.monotonic() + int(annotations[LOCKED_UNTIL]) / 1000 - time.time(),
        )

    def request_settlement(self, number: int, outcome: Composite) -> bool:
        self.cluster_checker.settlement_requested(number, completes=outcome is ACCEPTED)
        return outcome is ACCEPTED

    def settlement_confirmed(self, number: int, state: object) -> None:
        error = state.error if isinstance(state, Rejected) else None
        self.cluster_checker.settlement_ended(number, is_done=isinstance(state, Accepted), reason=str(error))
        self.completed += isinstance(state, Accepted)

    def record_disconnect(self) -> None:
        """Record that the link ended and released its locks."""
        self.cluster_checker.link_ended(self.number)


class SessionReceiverClient(StreamReceiverClient):
    """Receives the messages of the next available session."""

    def attach(self) -> None:
        source = Source(address=self.queue, filter={SESSION_FILTER: None})
        session = self.peer.connection.begin_session()
        self.attach_receiver(session, source, {"com.microsoft:timeout": UInt(SESSION_WAIT_MS)})
