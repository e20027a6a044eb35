"""What a request to `$management` is about: an entity, or its dead-letter queue, and who asks."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from twinbus.broker.namespace import Subscription, Topic
from twinbus.broker.ports.settlement import session_lock_lost_error
from twinbus.model.errors import EntityClaimed, NotAllowed
from twinbus.model.path import SubQueue
from twinbus.server.amqp.outgoing_link import OutgoingLink

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.broker.namespace import Namespace, Queue
    from twinbus.broker.ports.consumer import Consumer
    from twinbus.broker.ports.fragment import FragmentPort, SessionLock
    from twinbus.server.amqp.management.arguments import Arguments
    from twinbus.server.catalogue.administration import Administration


class RequestContext:
    """One entity or dead-letter queue, asked about by one connection."""

    def __init__(
        self,
        namespace: Namespace,
        administration: Administration,
        entity: Queue | Topic | Subscription,
        sub_queue: SubQueue,
        find_session_link: Callable[[Queue | Subscription, bytes], Consumer | None],
        owns_consumer: Callable[[Consumer], bool],
        *,
        fragment_number: int = 0,
        client_id: int = 0,
    ) -> None:
        """`find_session` finds the link of the asker that has a session, `is_mine` knows the asker's links.

        What is asked is done in fragment `number`; see `parts`. `client` is the asker's number, for other processes.
        """
        self.namespace = namespace
        self.administration = administration
        self.entity = entity
        self.sub_queue = sub_queue
        self.client_id = client_id
        self.part = part = entity.parts[fragment_number]
        self.fragment: FragmentPort = part.fragment_of(sub_queue)
        """Where its messages are: of a topic, those for later."""
        self._find_session_link = find_session_link
        self._owns_consumer = owns_consumer

    @cached_property
    def per_fragment(self) -> list[RequestContext]:
        """The same, for each fragment that the entity has."""
        return [
            RequestContext(
                self.namespace,
                self.administration,
                self.entity,
                self.sub_queue,
                self._find_session_link,
                self._owns_consumer,
                fragment_number=number,
                client_id=self.client_id,
            )
            for number in range(len(self.entity.parts))
        ]

    @property
    def receivable(self) -> Queue | Subscription:
        """What messages are received from. NotAllowed for a topic."""
        if isinstance(self.entity, Topic):
            raise NotAllowed(f"'{self.path}' is a topic: that can be asked of a queue or a subscription")
        return self.entity

    @property
    def sendable(self) -> Queue | Topic:
        """What messages are sent to. NotAllowed for a subscription, or a dead-letter queue."""
        if self.sub_queue is not SubQueue.MAIN:
            raise NotAllowed(f"that is for a queue or topic, and '{self.path}' is a dead-letter queue")
        if isinstance(self.entity, Subscription):
            raise NotAllowed(f"that is for a queue or topic, and '{self.path}' is a subscription")
        return self.entity

    @property
    def subscription(self) -> Subscription:
        """NotAllowed for any other."""
        if not isinstance(self.entity, Subscription) or self.sub_queue is not SubQueue.MAIN:
            raise NotAllowed(f"that is for a subscription, and '{self.path}' is none")
        return self.entity

    @property
    def path(self) -> str:
        """As its owner writes it."""
        return f"{self.entity.path}{self.sub_queue.value}"

    def check_has_sessions(self) -> None:
        """NotAllowed if it has none."""
        if not self.fragment.has_sessions:
            raise NotAllowed(f"'{self.path}' has no sessions")

    def holder_of(self, session: bytes) -> Consumer | None:
        """The asker's receiver that holds a session, if it has one."""
        return self._find_session_link(self.receivable, session)

    def session_lock_of(self, session: bytes) -> SessionLock:
        """A session that the asker has now. SessionLockLost."""
        self.check_has_sessions()
        link = self.holder_of(session)
        if link is None:
            raise session_lock_lost_error(session)
        return self.fragment.local.find_session_lock(session, link)

    def check_may_receive(self, arguments: Arguments) -> None:
        """EntityClaimed if someone else has it for itself; the asker does if it has the link, or shows its epoch."""
        holder = self.receivable.exclusive_receiver_of(self.sub_queue).holder
        if holder is not None and not self._owns_consumer(holder):
            self.check_epoch(arguments)

    def mark_withholding(self) -> None:
        """Let the asker's link end if another process withholds messages from it and is replaced: the next does not."""
        self.check_is_exclusive_receiver()
        holder = self.receivable.exclusive_receiver_of(self.sub_queue).holder
        assert isinstance(holder, OutgoingLink)
        holder.receiver_identity.is_withholding = True

    def check_is_exclusive_receiver(self) -> None:
        """NotAllowed unless the asker has a link that is the entity's exclusive receiver."""
        holder = self.receivable.exclusive_receiver_of(self.sub_queue).holder
        if holder is None or not self._owns_consumer(holder):
            raise NotAllowed(f"that is for the exclusive receiver of '{self.path}', on the connection of its link")

    def check_epoch(self, arguments: Arguments) -> None:
        """EntityClaimed if someone has it for itself and the asker does not show its epoch."""
        claim = self.receivable.exclusive_receiver_of(self.sub_queue)
        if claim.holder is None:
            return
        if arguments.whole_number("epoch", minimum=-(2**63), default=claim.epoch - 1) != claim.epoch:
            raise EntityClaimed(f"'{self.path}' is claimed by a receiver (epoch {claim.epoch}): show that epoch")
