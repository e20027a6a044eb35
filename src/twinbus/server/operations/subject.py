"""What a request to `$management` is about: an entity, or its dead-letter queue, and who asks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.broker.sessions import session_lock_lost
from twinbus.broker.subscription import Subscription
from twinbus.broker.topic import Topic
from twinbus.model.errors import EntityClaimed, NotAllowed
from twinbus.model.path import SubQueue

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.broker.consumer import Consumer
    from twinbus.broker.fragment import Fragment
    from twinbus.broker.hold import Hold
    from twinbus.broker.namespace import Namespace
    from twinbus.broker.queue import Queue
    from twinbus.broker.receivable import Receivable
    from twinbus.broker.sessions import Sessions
    from twinbus.server.administration import Administration
    from twinbus.server.operations.arguments import Arguments
    from twinbus.server.session_link import SessionLink


class Subject:
    """One entity or dead-letter queue, asked about by one connection."""

    def __init__(
        self,
        namespace: Namespace,
        administration: Administration,
        entity: Queue | Topic | Subscription,
        sub_queue: SubQueue,
        find_session: Callable[[Receivable, bytes], SessionLink | None],
        is_mine: Callable[[Consumer], bool],
    ) -> None:
        """`find_session` finds the link of the asker that has a session, `is_mine` knows the asker's links."""
        self.namespace = namespace
        self.administration = administration
        self.entity = entity
        self.sub_queue = sub_queue
        self.fragment: Fragment = entity.main if isinstance(entity, Topic) else entity.fragment_of(sub_queue)
        """Where its messages are: of a topic, those for later."""
        self._find_session = find_session
        self._is_mine = is_mine

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

    def sessions(self) -> Sessions:
        """NotAllowed if it has none."""
        if self.fragment.sessions is None:
            raise NotAllowed(f"'{self.path}' has no sessions")
        return self.fragment.sessions

    def hold_of(self, session: bytes) -> Hold:
        """A session that the asker has now. SessionLockLost."""
        sessions, link = self.sessions(), self._find_session(self.receivable, session)
        if link is None:
            raise session_lock_lost(session)
        return sessions.find(session, link)

    def check_receives(self, arguments: Arguments) -> None:
        """EntityClaimed if someone else has it for itself; the asker does if it has the link, or shows its epoch."""
        holder = self.receivable.claim_of(self.sub_queue).holder
        if holder is not None and not self._is_mine(holder):
            self.check_claim(arguments)

    def check_claim(self, arguments: Arguments) -> None:
        """EntityClaimed if someone has it for itself and the asker does not show its epoch."""
        claim = self.receivable.claim_of(self.sub_queue)
        if claim.holder is None:
            return
        if arguments.number("epoch", lowest=-(2**63), default=claim.epoch - 1) != claim.epoch:
            raise EntityClaimed(f"'{self.path}' is claimed by a receiver (epoch {claim.epoch}): show that epoch")
