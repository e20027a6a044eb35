"""Connections of clients that use more than sends and receives: terms, sessions, dead letters, `$management`.

    async with connected(DeskLine(ledger, "orders"), endpoint) as line:
        answer = await line.desk.ask("com.microsoft:peek-message", {...})

Owns: what such a client puts on the wire. When to do what is decided in `workload`, what it means in `ledger`.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

from tests.faults.features.letter import Received
from tests.faults.line import Line, LineFailed, ReceivingLine, SendingLine
from twinbus.amqp.events import DeliveriesReceived
from twinbus.amqp.message import Message, Properties, build, value
from twinbus.amqp.outcomes import ACCEPTED, Modified
from twinbus.amqp.terminus import Source, Target
from twinbus.amqp.types import Symbol, UInt

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.faults.features.ledger import FeatureLedger
    from twinbus.amqp.composite import Composite
    from twinbus.amqp.events import Event
    from twinbus.amqp.receiver import Receiver
    from twinbus.amqp.sender import Sender
    from twinbus.amqp.session import Session

ANSWER_S: Final = 20.0
SESSION_WAIT_MS: Final = 500
SESSION_FILTER: Final = Symbol("com.microsoft:session-filter")
DEFERRED: Final = Modified(delivery_failed=True, undeliverable_here=True)
DEAD_LETTERS: Final = "/$DeadLetterQueue"
_requests: Final = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Answer:
    """What `$management` said."""

    status: int
    description: str
    body: dict[str, Any]


class Desk:
    """The two links to the `$management` of an entity, on a line's connection."""

    LINKS: ClassVar = 2

    def __init__(self, line: Line, entity: str) -> None:
        self.patience_s = ANSWER_S
        """Who waits for an answer no longer hangs up."""
        self._line = line
        self._node = f"{entity}/$management"
        self._reply_to = f"answers-{line.number}"
        self._answers: dict[str, Answer] = {}
        self._questions: Sender
        self._link: Receiver

    def attach(self, session: Session) -> None:
        node = Target(address=self._node)
        self._questions = session.attach_sender(f"questions-{self._line.number}", target=node)
        self._link = session.attach_receiver(
            self._reply_to, source=Source(address=self._node), target=Target(address=self._reply_to)
        )

    def open(self) -> None:
        """Both links are there: let the answers come."""
        self._link.keep_credit(100)

    def react(self, event: Event) -> bool:
        """True if it was for the desk."""
        if getattr(event, "link", None) not in {self._questions, self._link}:
            return False
        if isinstance(event, DeliveriesReceived):
            for delivery in event.deliveries:
                self._hear(Message(delivery.payload))
            self._link.settle(event.deliveries)
        return True

    def _hear(self, message: Message) -> None:
        properties, said = message.properties, message.application_properties
        assert properties is not None
        assert isinstance(said, dict)
        body = message.value
        assert isinstance(body, dict)
        self._answers[str(properties.correlation_id)] = Answer(said["statusCode"], said["statusDescription"], body)

    async def ask(self, operation: str, arguments: dict[str, object]) -> Answer:
        """Ask, and wait for the answer. LineFailed if none comes."""
        message_id = f"request-{next(_requests)}"
        if not await self._line.until(lambda: self._questions.sendable > 0, patience_s=ANSWER_S):
            raise LineFailed(f"no credit to ask {self._node} in {ANSWER_S:.0f} s")
        self._questions.send(
            build(
                properties=Properties(message_id=message_id, reply_to=self._reply_to),
                application_properties={"operation": operation},
                body=value(arguments),
            )
        )
        if not await self._line.until(lambda: message_id in self._answers, patience_s=self.patience_s):
            raise LineFailed(f"no answer from {self._node} in time")
        return self._answers.pop(message_id)


class DeskLine(Line):
    """Only asks."""

    links: ClassVar = Desk.LINKS

    def __init__(self, ledger: FeatureLedger, queue: str, sub_queue: str = "") -> None:
        super().__init__(ledger, queue)
        self.book = ledger
        self.desk = Desk(self, queue + sub_queue)

    def attach(self) -> None:
        self.desk.attach(self.peer.connection.begin_session())

    def react(self, event: Event) -> None:
        self.desk.react(event)


class TermsLine(SendingLine):
    """Sends what somebody composes: a message of its own each time, or one that was sent before."""

    def __init__(
        self, ledger: FeatureLedger, queue: str, compose: Callable[[TermsLine, int], tuple[int, bytes]]
    ) -> None:
        super().__init__(ledger, queue)
        self._compose = compose

    def send(self, filler_bytes: int) -> int:
        number, payload = self._compose(self, filler_bytes)
        self.post(number, payload)
        return number


class FeatureLine(ReceivingLine):
    """Receives, and sets some aside."""

    def __init__(
        self, ledger: FeatureLedger, queue: str, choose: Callable[[], Composite | None] = lambda: ACCEPTED
    ) -> None:
        super().__init__(ledger, queue, choose)
        self.book = ledger

    def note(self, message: Message) -> int | None:
        return self.book.receive_from(self.queue, Received.read(message))

    def ask(self, number: int, outcome: Composite) -> bool:
        if outcome is DEFERRED:
            self.book.deferral_requested(number)
            return True
        return super().ask(number, outcome)

    def confirmed(self, number: int, state: object) -> None:
        if isinstance(state, Modified):
            self.book.deferral_confirmed(number)
        else:
            super().confirmed(number, state)


class DeadLetterLine(FeatureLine):
    """Receives the dead letters of a queue."""

    def __init__(
        self, ledger: FeatureLedger, queue: str, choose: Callable[[], Composite | None] = lambda: ACCEPTED
    ) -> None:
        super().__init__(ledger, queue, choose)
        self.address = queue + DEAD_LETTERS

    def note(self, message: Message) -> int | None:
        return self.book.receive_dead(self.queue, Received.read(message))


class SessionLine(FeatureLine):
    """Receives the messages of one session, and can ask about it."""

    links: ClassVar = 1 + Desk.LINKS

    def __init__(
        self,
        ledger: FeatureLedger,
        queue: str,
        choose: Callable[[], Composite | None] = lambda: ACCEPTED,
        session: str | None = None,
    ) -> None:
        """`session` is the one it wants; None if any."""
        super().__init__(ledger, queue, choose)
        self.desk = Desk(self, queue)
        self._wanted = session

    def attach(self) -> None:
        session = self.peer.connection.begin_session()
        source = Source(address=self.queue, filter={SESSION_FILTER: self._wanted})
        self.attach_receiver(session, source, {"com.microsoft:timeout": UInt(SESSION_WAIT_MS)})
        self.desk.attach(session)

    @property
    def session(self) -> str:
        """The one it has."""
        attach = self.link.remote_attach
        assert attach is not None
        assert isinstance(attach.source, Source)
        assert attach.source.filter is not None
        found = attach.source.filter[SESSION_FILTER]
        assert isinstance(found, str)
        return found

    def react(self, event: Event) -> None:
        if not self.desk.react(event):
            super().react(event)

    # --- what the session remembers -----------------------------------------------------------------------------------

    async def read_state(self) -> None:
        answer = await self.desk.ask("com.microsoft:get-session-state", {"session-id": self.session})
        if answer.status == 200:
            self.book.state_read(self.queue, self.session, answer.body["session-state"])

    async def set_state(self, state: bytes | None) -> None:
        place = self.book.state_requested(self.queue, self.session, state)
        arguments: dict[str, object] = {"session-id": self.session, "session-state": state}
        answer = await self.desk.ask("com.microsoft:set-session-state", arguments)
        if answer.status == 200:
            self.book.state_confirmed(self.queue, self.session, place)
