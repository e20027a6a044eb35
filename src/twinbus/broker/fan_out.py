"""The fan-out: from a message that was sent to a topic to its copies in subscriptions.

Owns: which subscriptions get a message, and as what. All copies of a message, and of all that were sent together, are
one batch; what several subscriptions have is kept once (`bodies`). Messages for later wait in the topic, and are copied
when they are due, as the rules are then.

A subscription gets one copy if any of its rules without an action is true for a message, and one more for each of its
rules that is true and has an action, with that done to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twinbus.broker.bodies import Bodies
from twinbus.broker.filters.errors import FilterError
from twinbus.broker.filters.index import RuleIndex
from twinbus.broker.filters.rule import compile_rule
from twinbus.broker.filters.view import View
from twinbus.broker.fragment import Fragment
from twinbus.broker.keys import pack_sequence
from twinbus.broker.record import (
    SCHEDULED_STATE,
    enqueued_of,
    make_record,
    numbered,
    session_in,
    take_apart,
    with_enqueued,
)
from twinbus.model.hashing import fragment_of
from twinbus.model.path import key_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twinbus.broker.clock import Times
    from twinbus.broker.filters.action import Action
    from twinbus.broker.fragment import Policy
    from twinbus.broker.journal import Answered, Applied, Journal
    from twinbus.broker.locks import TokenSource
    from twinbus.broker.record import Parts
    from twinbus.broker.subscription import Subscription
    from twinbus.model.errors import ServiceBusError
    from twinbus.model.limits import NamespaceLimits
    from twinbus.model.rule import RuleDescription
    from twinbus.store.protocol import StoreError

SHARED_FROM: Final = 256
"""Bytes of a bare message from which on it is kept once: a reference and the list of who has it cost some, too."""
WEIGHED_EVERY_S: Final = 0.2
"""How often it is added up what all subscriptions hold; what is published in between is added to that."""


class Rule:
    """A rule of a subscription."""

    def __init__(self, description: RuleDescription) -> None:
        """InvalidArgument if it means nothing."""
        self.description = description
        self.compiled = compile_rule(description)


class TopicFragment(Fragment):
    """One fragment of a topic. Nobody receives from it."""

    def __init__(
        self,
        prefix: bytes,
        journal: Journal,
        policy: Policy,
        *,
        times: Times,
        tokens: TokenSource,
        limits: NamespaceLimits,
    ) -> None:
        """Without subscriptions."""
        super().__init__(prefix, journal, policy, times=times, tokens=tokens)
        self.bodies = Bodies(prefix, journal)
        self._limits = limits
        self.subscriptions: dict[str, Subscription] = {}
        """By the keys of their names."""
        self._rules: RuleIndex[tuple[Subscription, str]] = RuleIndex()
        self._held_bytes = 0
        self._weighed_s = -WEIGHED_EVERY_S

    # --- subscriptions and rules --------------------------------------------------------------------------------------

    def put_rule(self, subscription: Subscription, description: RuleDescription) -> None:
        """A rule is there from now on, instead of one of the same name. InvalidArgument."""
        rule, name = Rule(description), key_of(description.name)
        subscription.rules[name] = rule
        self._rules.put((subscription, name), rule.compiled)

    def remove_rule(self, subscription: Subscription, name: str) -> None:
        """A rule is no more."""
        del subscription.rules[key_of(name)]
        self._rules.remove((subscription, key_of(name)))

    def remove_subscription(self, subscription: Subscription) -> None:
        """A subscription is no more: it gets nothing from now on."""
        for name in list(subscription.rules):
            self.remove_rule(subscription, name)
        self.subscriptions = {key: one for key, one in self.subscriptions.items() if one is not subscription}

    def held_bytes(self) -> int:
        """What the topic and its subscriptions hold together, a body that several have as often as they have it."""
        now_s = self.clock.monotonic_s()
        if now_s - self._weighed_s >= WEIGHED_EVERY_S:
            self._weighed_s = now_s
            self._held_bytes = self.holdings.size + sum([one.held_bytes() for one in self.subscriptions.values()])
        return self._held_bytes

    def note_growth(self, size: int) -> None:
        """A subscription holds so many bytes more, which count before all is weighed again."""
        self._held_bytes += size

    # --- publishing ---------------------------------------------------------------------------------------------------

    def enqueue(self, records: Sequence[bytes], answer: Answered) -> int:
        """Publish messages, or keep them for later: all or none. `answer` hears when that is on disk."""
        self.journal.check_takes_sends()
        self.check_loaded()
        holdings = self.holdings
        enqueued_ms = enqueued_of(records[-1])
        if enqueued_ms < holdings.latest_ms:
            records = [with_enqueued(record, holdings.latest_ms) for record in records]
        else:
            holdings.latest_ms = enqueued_ms
        first, size = holdings.next, 0
        fresh: dict[Subscription, list[tuple[int, bytes]]] = {}
        for record in records:
            sequence = holdings.next
            holdings.next = sequence + 1
            size += len(record)
            if record[3] == SCHEDULED_STATE:
                holdings.schedule(sequence, record)
            else:
                self._publish(sequence, record, fresh)
        self._deliver(fresh)
        self.journal.add(self, size, _nothing, answer)
        return first

    def make_active(self, records: list[bytes]) -> Applied:
        """Messages that were there for later are published now, in the batch of this turn."""
        fresh: dict[Subscription, list[tuple[int, bytes]]] = {}
        for record in records:
            sequence = self.holdings.next
            self.holdings.next = sequence + 1
            self._publish(sequence, record, fresh)
        self._deliver(fresh)
        return _nothing

    def _publish(self, number: int, record: bytes, fresh: dict[Subscription, list[tuple[int, bytes]]]) -> None:
        """Put the copies of one message into the batch of this turn; `fresh` gets them."""
        matches = self._rules.match(View(record, number))
        if not matches:
            return
        parts = numbered(take_apart(record), number)
        copies: dict[Subscription, None] = {}
        for (subscription, name), error in matches:
            if not subscription.takes_copies:
                continue
            action = subscription.rules[name].compiled.action
            if error is not None:
                self._bury(subscription, parts, name, error)
            elif action is None:
                copies[subscription] = None
            else:
                self._alter(subscription, name, action, record, number, fresh)
        if len(copies) > 1 and len(parts.bare) >= SHARED_FROM:
            self._share(number, parts, list(copies), fresh)
        else:
            for subscription in copies:
                self._add(subscription, parts, fresh)

    def _alter(
        self,
        subscription: Subscription,
        name: str,
        action: Action,
        record: bytes,
        number: int,
        fresh: dict[Subscription, list[tuple[int, bytes]]],
    ) -> None:
        """A copy that a rule changes."""
        try:
            altered = action.apply(record, self._limits, number)
        except FilterError as problem:
            self._bury(subscription, numbered(take_apart(record), number), name, problem)
            return
        parts = numbered(take_apart(altered), number)
        if self._leads_elsewhere(subscription, parts):
            subscription.bury(parts, *OTHER_FRAGMENT)
        else:
            self._add(subscription, parts, fresh)

    def _leads_elsewhere(self, subscription: Subscription, parts: Parts) -> bool:
        """Whoever accepts the session of a message would look for it in another fragment than this."""
        if not subscription.terms.requires_session or not subscription.topic.description.enable_partitioning:
            return False
        session = session_in(parts.bare)
        return session is not None and fragment_of(session) != self.number

    def _share(
        self,
        number: int,
        parts: Parts,
        subscriptions: list[Subscription],
        fresh: dict[Subscription, list[tuple[int, bytes]]],
    ) -> None:
        """Copies of one message that are all alike but for what their subscriptions say of sessions and lives."""
        parts = parts._replace(shared=number)
        records: dict[tuple[bool, int], bytes | None] = {}
        users = []
        for subscription in subscriptions:
            terms = subscription.terms
            kind = (terms.requires_session, terms.ttl_ms)
            if kind not in records:
                adopted = subscription.adopt(parts)
                records[kind] = make_record(adopted) if adopted is not None else None
            record = records[kind]
            if record is None:
                subscription.bury(parts, *NO_SESSION)
                continue
            holdings = subscription.main.holdings
            users.append(holdings.active + pack_sequence(holdings.next))
            fresh.setdefault(subscription, []).append((holdings.add(record), record))
        if users:
            self.bodies.keep(number, parts.bare, users)

    def _add(
        self, subscription: Subscription, parts: Parts, fresh: dict[Subscription, list[tuple[int, bytes]]]
    ) -> None:
        adopted = subscription.adopt(parts)
        if adopted is None:
            subscription.bury(parts, *NO_SESSION)
            return
        record = make_record(adopted)
        fresh.setdefault(subscription, []).append((subscription.main.holdings.add(record), record))

    def _bury(self, subscription: Subscription, parts: Parts, name: str, error: FilterError) -> None:
        if subscription.description.dead_lettering_on_filter_errors:
            reason = f"Rule '{name}' could not be evaluated: {error}"
            subscription.bury(parts, "FilterEvaluationException", reason)

    def _deliver(self, fresh: dict[Subscription, list[tuple[int, bytes]]]) -> None:
        for subscription, items in fresh.items():
            size = sum([len(record) for _, record in items])
            subscription.main.expect(items, size)
            self._held_bytes += size

    # --- the journal calls these --------------------------------------------------------------------------------------

    def settled_down(self) -> None:
        """A commit was applied, or the store speaks again."""
        super().settled_down()
        self.bodies.settled_down()

    def find_store(self) -> None:
        """The store was opened anew: nothing is published before all subscriptions are there again."""
        self.journal.get([], self._find_store_then)

    def _find_store_then(self, _answer: list[bytes | None] | StoreError) -> None:
        super().find_store()

    def load(self, done: Callable[[ServiceBusError | None], None]) -> None:
        """Read the marks from the store."""

        def loaded(error: ServiceBusError | None) -> None:
            if error is None:
                self.bodies.start()
            done(error)

        super().load(loaded)


OTHER_FRAGMENT: Final = (
    "Session of another fragment.",
    "A rule gave the message a session id that is of another fragment of the topic, which is partitioned.",
)
NO_SESSION: Final = ("Session ID is null.", "The subscription requires sessions, and the message names none.")


def _nothing() -> None:
    """What a commit changed is told by others."""
