"""Clients that use message terms, sessions, dead-letter queues and `$management`.

    async with connect_client(ManagementClient(checker, "orders"), endpoint) as client:
        response = await client.management.request("com.microsoft:peek-message", {...})

Owns: the messages on the wire. `workload` decides when to send them, the checker what they mean.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

from tests.campaigns.clients import CampaignClient, ClientDisconnected, ReceiverClient, SenderClient
from tests.campaigns.crashes.features.messages import ReceivedMessage
from twinbus.amqp.events import DeliveriesReceived
from twinbus.amqp.message import Message, Properties, build, value
from twinbus.amqp.outcomes import ACCEPTED, Modified
from twinbus.amqp.terminus import Source, Target
from twinbus.amqp.types import Symbol, UInt

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.campaigns.crashes.features.checker import FeatureChecker
    from twinbus.amqp.codec.composite import Composite
    from twinbus.amqp.events import Event
    from twinbus.amqp.receiver import Receiver
    from twinbus.amqp.sender import Sender
    from twinbus.amqp.session import Session

RESPONSE_TIMEOUT_S: Final = 20.0
SESSION_WAIT_MS: Final = 500
SESSION_FILTER: Final = Symbol("com.microsoft:session-filter")
DEFERRED: Final = Modified(delivery_failed=True, undeliverable_here=True)
DEAD_LETTERS: Final = "/$DeadLetterQueue"
_requests: Final = itertools.count(1)


@dataclass(frozen=True, slots=True)
class ManagementResponse:
    """Response of `$management`."""

    status: int
    description: str
    body: dict[str, Any]


class ManagementLinks:
    """The two links to the `$management` node of an entity, on a client's connection."""

    LINK_COUNT: ClassVar = 2

    def __init__(self, client: CampaignClient, entity: str) -> None:
        self.timeout_s = RESPONSE_TIMEOUT_S
        """Time limit for a response; then the client disconnects."""
        self._client = client
        self._node = f"{entity}/$management"
        self._reply_to = f"answers-{client.number}"
        self._responses: dict[str, ManagementResponse] = {}
        self._request_link: Sender
        self._response_link: Receiver

    def attach(self, session: Session) -> None:
        node = Target(address=self._node)
        self._request_link = session.attach_sender(f"questions-{self._client.number}", target=node)
        self._response_link = session.attach_receiver(
            self._reply_to, source=Source(address=self._node), target=Target(address=self._reply_to)
        )

    def grant_credit(self) -> None:
        """Grant credit for responses, after both links are attached."""
        self._response_link.keep_credit(100)

    def handle_event(self, event: Event) -> bool:
        """Return True if the event belongs to these links."""
        if getattr(event, "link", None) not in {self._request_link, self._response_link}:
            return False
        if isinstance(event, DeliveriesReceived):
            for delivery in event.deliveries:
                self._handle_response(Message(delivery.payload))
            self._response_link.settle(event.deliveries)
        return True

    def _handle_response(self, message: Message) -> None:
        properties, application_properties = message.properties, message.application_properties
        assert properties is not None
        assert isinstance(application_properties, dict)
        body = message.value
        assert isinstance(body, dict)
        self._responses[str(properties.correlation_id)] = ManagementResponse(
            application_properties["statusCode"], application_properties["statusDescription"], body
        )

    async def request(self, operation: str, arguments: dict[str, object]) -> ManagementResponse:
        """Send a request and wait for the response; raise ClientDisconnected if there is none."""
        message_id = f"request-{next(_requests)}"
        if not await self._client.wait_until(lambda: self._request_link.sendable > 0, timeout_s=RESPONSE_TIMEOUT_S):
            raise ClientDisconnected(f"no credit to ask {self._node} in {RESPONSE_TIMEOUT_S:.0f} s")
        self._request_link.send(
            build(
                properties=Properties(message_id=message_id, reply_to=self._reply_to),
                application_properties={"operation": operation},
                body=value(arguments),
            )
        )
        if not await self._client.wait_until(lambda: message_id in self._responses, timeout_s=self.timeout_s):
            raise ClientDisconnected(f"no answer from {self._node} in time")
        return self._responses.pop(message_id)


class ManagementClient(CampaignClient):
    """Sends management requests only."""

    link_count: ClassVar = ManagementLinks.LINK_COUNT

    def __init__(self, checker: FeatureChecker, queue: str, sub_queue: str = "") -> None:
        super().__init__(checker, queue)
        self.feature_checker = checker
        self.management = ManagementLinks(self, queue + sub_queue)

    def attach(self) -> None:
        self.management.attach(self.peer.connection.begin_session())

    def handle_event(self, event: Event) -> None:
        self.management.handle_event(event)


class TermsSenderClient(SenderClient):
    """Sends messages of `compose_message`: new ones, or repeated ones."""

    def __init__(
        self,
        checker: FeatureChecker,
        queue: str,
        compose_message: Callable[[TermsSenderClient, int], tuple[int, bytes]],
    ) -> None:
        super().__init__(checker, queue)
        self._compose_message = compose_message

    def send(self, filler_bytes: int) -> int:
        number, payload = self._compose_message(self, filler_bytes)
        self.send_payload(number, payload)
        return number


class FeatureReceiverClient(ReceiverClient):
    """Receives messages, and defers some."""

    def __init__(
        self, checker: FeatureChecker, queue: str, choose_outcome: Callable[[], Composite | None] = lambda: ACCEPTED
    ) -> None:
        super().__init__(checker, queue, choose_outcome)
        self.feature_checker = checker

    def record_receipt(self, message: Message) -> int | None:
        return self.feature_checker.message_received_from(self.queue, ReceivedMessage.read(message))

    def request_settlement(self, number: int, outcome: Composite) -> bool:
        if outcome is DEFERRED:
            self.feature_checker.deferral_requested(number)
            return True
        return super().request_settlement(number, outcome)

    def settlement_confirmed(self, number: int, state: object) -> None:
        if isinstance(state, Modified):
            self.feature_checker.deferral_confirmed(number)
        else:
            super().settlement_confirmed(number, state)


class DeadLetterReceiverClient(FeatureReceiverClient):
    """Receives the dead letters of a queue."""

    def __init__(
        self, checker: FeatureChecker, queue: str, choose_outcome: Callable[[], Composite | None] = lambda: ACCEPTED
    ) -> None:
        super().__init__(checker, queue, choose_outcome)
        self.address = queue + DEAD_LETTERS

    def record_receipt(self, message: Message) -> int | None:
        return self.feature_checker.dead_letter_received(self.queue, ReceivedMessage.read(message))


class SessionReceiverClient(FeatureReceiverClient):
    """Receives the messages of one session, and sends management requests for it."""

    link_count: ClassVar = 1 + ManagementLinks.LINK_COUNT

    def __init__(
        self,
        checker: FeatureChecker,
        queue: str,
        choose_outcome: Callable[[], Composite | None] = lambda: ACCEPTED,
        session: str | None = None,
    ) -> None:
        """`session` is the id of the session; None for the next available one."""
        super().__init__(checker, queue, choose_outcome)
        self.management = ManagementLinks(self, queue)
        self._requested_session = session

    def attach(self) -> None:
        session = self.peer.connection.begin_session()
        source = Source(address=self.queue, filter={SESSION_FILTER: self._requested_session})
        self.attach_receiver(session, source, {"com.microsoft:timeout": UInt(SESSION_WAIT_MS)})
        self.management.attach(session)

    @property
    def session(self) -> str:
        """Id of the accepted session."""
        attach = self.link.remote_attach
        assert attach is not None
        assert isinstance(attach.source, Source)
        assert attach.source.filter is not None
        session_id = attach.source.filter[SESSION_FILTER]
        assert isinstance(session_id, str)
        return session_id

    def handle_event(self, event: Event) -> None:
        if not self.management.handle_event(event):
            super().handle_event(event)

    # --- session state ------------------------------------------------------------------------------------------------

    async def read_state(self) -> None:
        response = await self.management.request("com.microsoft:get-session-state", {"session-id": self.session})
        if response.status == 200:
            self.feature_checker.state_read(self.queue, self.session, response.body["session-state"])

    async def set_state(self, state: bytes | None) -> None:
        index = self.feature_checker.state_requested(self.queue, self.session, state)
        arguments: dict[str, object] = {"session-id": self.session, "session-state": state}
        response = await self.management.request("com.microsoft:set-session-state", arguments)
        if response.status == 200:
            self.feature_checker.state_confirmed(self.queue, self.session, index)
