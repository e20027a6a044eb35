"""A subscription: what its topic copies into it is received from it.

Owns: its description and its rules, and what becomes of a message of the topic before it is one of the subscription's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinbus.broker import sending
from twinbus.broker.entity import NO_SENDING
from twinbus.broker.intake import Terms
from twinbus.broker.receivable import Receivable, policies
from twinbus.broker.record import NEVER_MS, expires_ms, make_record, session_in, with_properties, with_ttl
from twinbus.broker.settlement import reasons
from twinbus.model.description import FOREVER_MS

if TYPE_CHECKING:
    from twinbus.broker.fan_out import Rule
    from twinbus.broker.receivable import Rooms
    from twinbus.broker.record import Parts
    from twinbus.broker.topic import Topic
    from twinbus.model.limits import NamespaceLimits
    from twinbus.model.rule import RuleDescription
    from twinbus.model.topic import SubscriptionDescription


class Subscription(Receivable):
    """One subscription of a topic."""

    def __init__(
        self,
        entity_id: int,
        path: str,
        description: SubscriptionDescription,
        topic: Topic,
        rooms: Rooms,
        *,
        created_ms: int,
        updated_ms: int,
    ) -> None:
        """Made by the namespace."""
        super().__init__(entity_id, path, description.status, rooms, created_ms=created_ms, updated_ms=updated_ms)
        self.description = description
        self.topic = topic
        self.rules: dict[str, Rule] = {}
        """By the keys of their names, in the order of their making."""

    def part(self, _number: int) -> Subscription:
        """What is of one fragment of it: it has one."""
        return self

    def check_room(self, size: int) -> None:
        """QuotaExceeded if so many bytes more do not fit into its topic."""
        sending.check_size(self.topic, size)
        self.topic.main.note_growth(size)

    @property
    def takes_copies(self) -> bool:
        """It gets what is published."""
        return self.status not in NO_SENDING

    def describe(self, description: SubscriptionDescription, limits: NamespaceLimits) -> None:
        """It is to be like this from now on; locks that are out keep the time they have."""
        self.description = description
        self.terms = Terms(
            ttl_ms=description.default_time_to_live_ms,
            requires_session=description.requires_session,
        )
        self.main.policy, self.dead_letters.policy = policies(description, limits)
        self.forward(description.forward_to, description.forward_dead_lettered_to)
        self.set_status(description.status)

    def put_rule(self, description: RuleDescription) -> None:
        """A rule is there from now on, instead of one of the same name. InvalidArgument."""
        self.topic.main.put_rule(self, description)

    def remove_rule(self, name: str) -> None:
        """A rule is no more."""
        self.topic.main.remove_rule(self, name)

    def leave_topic(self) -> None:
        """It gets nothing any more."""
        self.topic.main.remove_subscription(self)

    def adopt(self, parts: Parts) -> Parts | None:
        """A message of the topic as it is one of the subscription's; None if it lacks the session that it must have."""
        session = None
        if self.terms.requires_session:
            session = session_in(parts.bare)
            if session is None:
                return None
        envelope = parts.envelope
        if self.terms.ttl_ms < FOREVER_MS:
            envelope = with_ttl(envelope, self.terms.ttl_ms)
        return parts._replace(
            envelope=envelope, session=session, alarm_ms=expires_ms(envelope, parts.enqueued_ms), state=0
        )

    def bury(self, parts: Parts, reason: str, description: str) -> None:
        """A message of the topic that cannot be one of the subscription's goes to its dead letters, in this batch."""
        bare = with_properties(parts.bare, reasons(reason, description))
        self.dead_letters.take_in(
            make_record(parts._replace(bare=bare, alarm_ms=NEVER_MS, session=None, state=0, shared=0))
        )
