"""The kinds of entities, by what can be done with them."""

from __future__ import annotations

from typing import TypeAlias

from twinbus.broker.partitioned.queue import PartitionedQueue
from twinbus.broker.partitioned.topic import PartitionedSubscription, PartitionedTopic
from twinbus.broker.queue import Queue
from twinbus.broker.subscription import Subscription
from twinbus.broker.topic import Topic

AnyQueue: TypeAlias = Queue | PartitionedQueue
AnyTopic: TypeAlias = Topic | PartitionedTopic
AnySubscription: TypeAlias = Subscription | PartitionedSubscription
Sendable: TypeAlias = AnyQueue | AnyTopic
"""What messages are sent to."""
AnySource: TypeAlias = AnyQueue | AnySubscription
"""What messages are received from."""
AnyEntity: TypeAlias = Sendable | AnySubscription
