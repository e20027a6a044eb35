"""The context of a request to `$management`: its entity or dead-letter queue, and the caller."""

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
    """One entity or dead-letter queue, as the target of requests from one connection."""

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
        """Create a context for one fragment of the entity; see `per_fragment`.

        `find_session_link` returns the caller's link that holds a session, and `owns_consumer` returns whether a
        consumer is a link of the caller. `client_id` identifies the caller to other processes.
        """
        self.namespace = namespace
        self.administration = administration
        self.entity = entity
        self.sub_queue = sub_queue
        self.client_id = client_id
        self.part = part = entity.parts[fragment_number]
        self.fragment: FragmentPort = part.fragment_of(sub_queue)
        """The fragment with the messages; for a topic, the fragment with its scheduled messages."""
        self._find_session_link = find_session_link
        self._owns_consumer = owns_consumer

    @cached_property
    def per_fragment(self) -> list[RequestContext]:
        """Contexts for each fragment of the entity."""
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
        """The entity, if messages can be received from it. Raises NotAllowed for a topic."""
        if isinstance(self.entity, Topic):
            raise NotAllowed(f"the operation needs a queue or subscription, and '{self.path}' is a topic")
        return self.entity

    @property
    def sendable(self) -> Queue | Topic:
        """The entity, if messages can be sent to it. Raises NotAllowed for a subscription or a dead-letter queue."""
        if self.sub_queue is not SubQueue.MAIN:
            raise NotAllowed(f"the operation needs a queue or topic, and '{self.path}' is a dead-letter queue")
        if isinstance(self.entity, Subscription):
            raise NotAllowed(f"the operation needs a queue or topic, and '{self.path}' is a subscription")
        return self.entity

    @property
    def subscription(self) -> Subscription:
        """The subscription. Raises NotAllowed for any other entity."""
        if not isinstance(self.entity, Subscription) or self.sub_queue is not SubQueue.MAIN:
            raise NotAllowed(f"the operation needs a subscription, and '{self.path}' is not one")
        return self.entity

    @property
    def path(self) -> str:
        """The path of the entity or dead-letter queue, in its original spelling."""
        return f"{self.entity.path}{self.sub_queue.value}"

    def check_has_sessions(self) -> None:
        """Raise NotAllowed if the entity has no sessions."""
        if not self.fragment.has_sessions:
            raise NotAllowed(f"'{self.path}' has no sessions")

    def holder_of(self, session: bytes) -> Consumer | None:
        """Return the caller's receiver that holds a session, or None."""
        return self._find_session_link(self.receivable, session)

    def session_lock_of(self, session: bytes) -> SessionLock:
        """Return the caller's lock on a session. Raise SessionLockLost if the caller has none."""
        self.check_has_sessions()
        link = self.holder_of(session)
        if link is None:
            raise session_lock_lost_error(session)
        return self.fragment.local.find_session_lock(session, link)

    def check_may_receive(self, arguments: Arguments) -> None:
        """Raise EntityClaimed if another receiver has claimed the entity.

        The caller may receive if it has the claiming link, or presents the link's epoch.
        """
        holder = self.receivable.exclusive_receiver_of(self.sub_queue).holder
        if holder is not None and not self._owns_consumer(holder):
            self.check_epoch(arguments)

    def mark_withholding(self) -> None:
        """Mark the caller's link as withholding messages.

        Other processes withhold messages in their fragments. If such a process is replaced, the link is detached,
        because the new process does not know which messages to withhold.
        """
        self.check_is_exclusive_receiver()
        holder = self.receivable.exclusive_receiver_of(self.sub_queue).holder
        assert isinstance(holder, OutgoingLink)
        holder.receiver_identity.is_withholding = True

    def check_is_exclusive_receiver(self) -> None:
        """Raise NotAllowed unless a link of the caller is the entity's exclusive receiver."""
        holder = self.receivable.exclusive_receiver_of(self.sub_queue).holder
        if holder is None or not self._owns_consumer(holder):
            raise NotAllowed(f"only the exclusive receiver of '{self.path}' may do this, on the connection of its link")

    def check_epoch(self, arguments: Arguments) -> None:
        """Raise EntityClaimed if the entity is claimed and the caller does not present the epoch of the claim."""
        claim = self.receivable.exclusive_receiver_of(self.sub_queue)
        if claim.holder is None:
            return
        if arguments.whole_number("epoch", minimum=-(2**63), default=claim.epoch - 1) != claim.epoch:
            raise EntityClaimed(f"'{self.path}' is claimed by a receiver (epoch {claim.epoch}): show that epoch")
