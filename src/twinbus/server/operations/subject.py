"""What a request to `$management` is about: a queue, or its dead-letter queue, and who asks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.broker.sessions import session_lock_lost
from twinbus.model.errors import EntityClaimed, NotAllowed
from twinbus.model.path import SubQueue

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.broker.consumer import Consumer
    from twinbus.broker.fragment import Fragment
    from twinbus.broker.hold import Hold
    from twinbus.broker.namespace import Namespace
    from twinbus.broker.queue import Queue
    from twinbus.broker.sessions import Sessions
    from twinbus.server.operations.arguments import Arguments
    from twinbus.server.session_link import SessionLink


class Subject:
    """One queue or dead-letter queue, asked about by one connection."""

    def __init__(
        self,
        namespace: Namespace,
        queue: Queue,
        sub_queue: SubQueue,
        find_session: Callable[[Queue, bytes], SessionLink | None],
        is_mine: Callable[[Consumer], bool],
    ) -> None:
        """`find_session` finds the link of the asker that has a session, `is_mine` knows the asker's links."""
        self.namespace = namespace
        self.queue = queue
        self.sub_queue = sub_queue
        self.fragment: Fragment = queue.fragment_of(sub_queue)
        self._find_session = find_session
        self._is_mine = is_mine

    @property
    def path(self) -> str:
        """As its owner writes it."""
        return f"{self.queue.path}{self.sub_queue.value}"

    def check_main(self, operation: str) -> None:
        """NotAllowed for a dead-letter queue."""
        if self.sub_queue is not SubQueue.MAIN:
            raise NotAllowed(f"{operation} is for a queue, and '{self.path}' is its dead-letter queue")

    def sessions(self) -> Sessions:
        """NotAllowed if it has none."""
        if self.fragment.sessions is None:
            raise NotAllowed(f"'{self.path}' has no sessions")
        return self.fragment.sessions

    def hold_of(self, session: bytes) -> Hold:
        """A session that the asker has now. SessionLockLost."""
        sessions, link = self.sessions(), self._find_session(self.queue, session)
        if link is None:
            raise session_lock_lost(session)
        return sessions.find(session, link)

    def check_receives(self, arguments: Arguments) -> None:
        """EntityClaimed if someone else has it for itself; the asker does if it has the link, or shows its epoch."""
        holder = self.queue.claim_of(self.sub_queue).holder
        if holder is not None and not self._is_mine(holder):
            self.check_claim(arguments)

    def check_claim(self, arguments: Arguments) -> None:
        """EntityClaimed if someone has it for itself and the asker does not show its epoch."""
        claim = self.queue.claim_of(self.sub_queue)
        if claim.holder is None:
            return
        if arguments.number("epoch", lowest=-(2**63), default=claim.epoch - 1) != claim.epoch:
            raise EntityClaimed(f"'{self.path}' is claimed by a receiver (epoch {claim.epoch}): show that epoch")
