"""Parts of topics whose stores belong to this process.

Owns: what the topic's part and the subscriptions' parts beside it hold together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.broker.fragment import Policy
from twinbus.broker.part import StoredPart
from twinbus.model.queue import QueueRuntime

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.broker.fan_out import TopicFragment
    from twinbus.broker.topic import Topic
    from twinbus.model.errors import ServiceBusError
    from twinbus.model.limits import NamespaceLimits
    from twinbus.model.topic import TopicDescription


class TopicPart(StoredPart):
    """A part of a topic. Its messages are copied into the subscriptions' parts of the same number."""

    def __init__(self, topic: Topic, main: TopicFragment) -> None:
        """Made by the namespace."""
        super().__init__(topic, main.number)
        self._topic = topic
        self._main = main
        main.check_room = self.check_room

    @property
    def main(self) -> TopicFragment:
        """Its scheduled messages, and the way of all others to the subscriptions."""
        return self._main

    @property
    def is_in_use(self) -> bool:
        """Whether a receiver or browser is attached to one of its subscriptions."""
        return any(part.is_in_use for part in self._main.subscriptions.values())

    @property
    def max_size_mb(self) -> int:
        """The size of the topic, as it is described."""
        return self._topic.description.max_size_mb

    def held_bytes(self) -> int:
        """Return the size of what it and its subscriptions hold together."""
        return self._main.held_bytes()

    def describe(self, limits: NamespaceLimits) -> None:
        """Adopt the topic's description."""
        self._main.policy = topic_policy(self._topic.description, limits)

    def load(self, done: Callable[[ServiceBusError | None], None]) -> None:
        """Read what it holds from the store."""
        self._main.load(done)

    def runtime(self) -> QueueRuntime:
        """Return what it holds now."""
        return QueueRuntime(
            active_count=0,
            dead_letter_count=0,
            scheduled_count=self._main.holdings.shown.scheduled_count,
            size_bytes=self.held_bytes(),
            created_ms=0,
            updated_ms=0,
            accessed_ms=0,
            is_available=self._main.is_available,
        )


def topic_policy(description: TopicDescription, limits: NamespaceLimits) -> Policy:
    """Return the policy of a topic's fragments: they keep scheduled messages, and the ids of all."""
    return Policy(
        lock_duration_ms=0,
        max_delivery_count=None,
        max_locks=0,
        duplicate_window_ms=description.duplicate_window_ms,
        max_properties_bytes=limits.max_properties_bytes,
    )
