"""A namespace: its entities by path, over some stores.

Owns: which entities there are, and where each lies. What an entity is called and described as is kept elsewhere (in the
catalogue); this is told of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.broker.clock import Times
from twinbus.broker.fragment import Fragment
from twinbus.broker.intake import Intake
from twinbus.broker.journal import Journal
from twinbus.broker.keys import Area, area_prefix, entity_range
from twinbus.broker.queue import Queue, policies
from twinbus.model.errors import EntityDeleted, EntityNotFound
from twinbus.model.limits import NamespaceLimits
from twinbus.model.path import key_of
from twinbus.store.protocol import Table

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from twinbus.broker.clock import Clock
    from twinbus.broker.journal import Answered
    from twinbus.model.queue import QueueDescription
    from twinbus.store.protocol import Store

_LIFE_BITS = 64
_ID_BITS = 128


class Namespace:
    """The entities of one broker."""

    def __init__(
        self,
        *,
        clock: Clock,
        random: Random,
        defer: Callable[[Callable[[], None]], object],
        on_failed: Callable[[Journal], None],
        limits: NamespaceLimits | None = None,
        store_timeout_s: float = 10.0,
    ) -> None:
        """`defer` makes a call at the end of a turn; `on_failed` opens the store of a journal anew."""
        self.limits = limits or NamespaceLimits()
        self.clock = clock
        self._times = Times(clock)
        self.timers = self._times.timers
        self.journals: list[Journal] = []
        self.queues: dict[str, Queue] = {}
        """By the key of their path."""
        self.intake = Intake(self.limits, lambda: f"{random.getrandbits(_ID_BITS):032x}")
        self._random = random
        self._defer = defer
        self._on_failed = on_failed
        self._store_timeout_s = store_timeout_s

    def add_store(self, store: Store) -> Journal:
        """Stores are known by the order in which they are added."""
        journal = Journal(
            store,
            clock=self.clock,
            timers=self.timers,
            defer=self._defer,
            timeout_s=self._store_timeout_s,
            max_pending_bytes=self.limits.max_pending_bytes,
            on_failed=self._on_failed,
        )
        self.journals.append(journal)
        return journal

    def find(self, path: str) -> Queue:
        """The queue of that path, in any spelling. EntityNotFound."""
        queue = self.queues.get(key_of(path))
        if queue is None:
            raise EntityNotFound(path)
        return queue

    def add_queue(
        self,
        entity_id: int,
        path: str,
        description: QueueDescription,
        store: int,
        *,
        created_ms: int,
        updated_ms: int,
    ) -> Queue:
        """A queue that was just created; one that may hold messages is loaded (`load`) before it is used."""
        journal = self.journals[store]
        main_policy, dead_letter_policy = policies(description, self.limits)
        dead_letters = Fragment(
            area_prefix(entity_id, 0, Area.DEAD_LETTER),
            journal,
            dead_letter_policy,
            times=self._times,
            make_life=self._make_life,
        )
        main = Fragment(
            area_prefix(entity_id, 0, Area.MAIN),
            journal,
            main_policy,
            times=self._times,
            make_life=self._make_life,
            dead_letters=dead_letters,
            has_sessions=description.requires_session,
        )
        queue = Queue(entity_id, path, description, main, dead_letters, created_ms=created_ms, updated_ms=updated_ms)
        queue.describe(description, self.limits)
        queue.used_s = self.clock.monotonic_s()
        self.queues[key_of(path)] = queue
        return queue

    def update_queue(self, path: str, description: QueueDescription, *, updated_ms: int) -> Queue:
        """A queue is described anew; locks that are out keep the time they have."""
        queue = self.find(path)
        queue.updated_ms = updated_ms
        queue.describe(description, self.limits)
        return queue

    def remove_queue(self, path: str) -> None:
        """A queue was deleted: who uses it is told, and it is not found any more."""
        queue = self.queues.pop(key_of(path))
        queue.close(EntityDeleted(f"The messaging entity '{queue.path}' was deleted."))

    def bury(self, entity_id: int, store: int, answer: Answered) -> None:
        """Remove all records of a deleted entity from a store."""
        journal = self.journals[store]
        journal.check_works()
        start, end = entity_range(entity_id)
        for table in Table:
            journal.batch.delete_range(start, end, table)
        journal.add_loose(answer)

    def _make_life(self) -> bytes:
        return self._random.getrandbits(_LIFE_BITS).to_bytes(8, "big")
