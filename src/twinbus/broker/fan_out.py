"""The fan-out: from a message that was sent to a topic to its copies in subscriptions.

Owns: which subscriptions get a message, and as what. All copies of a message, and of all that were sent together, are
one batch; what several subscriptions have is kept once (`bodies`). Messages for later wait in the topic, and are copied
when they are due, as the rules are then.

Messages go into batches in the order in which they were sent. Where evaluating the rules for one send takes more than
the turn has left (`work`), the topic is busy: that send goes on in the next turns, and all others of the topic wait
behind it, in memory, unanswered. Nothing of a send is stored before all of it is evaluated.

A subscription gets one copy if any of its rules without an action is true for a message, and one more for each of its
rules that is true and has an action, with that done to it.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from twinbus.broker.agenda import AT_ONCE as DUE_AT_ONCE
from twinbus.broker.bodies import Bodies
from twinbus.broker.filters.errors import FilterError
from twinbus.broker.filters.index import RuleIndex
from twinbus.broker.filters.rule import compile_rule
from twinbus.broker.fragment import Fragment
from twinbus.broker.keys import pack_sequence
from twinbus.broker.publication import Publication
from twinbus.broker.record import (
    enqueued_of,
    make_record,
    numbered,
    session_in,
    take_apart,
    with_enqueued,
)
from twinbus.broker.work import SMALL
from twinbus.model.callbacks import do_nothing, ignore
from twinbus.model.errors import InternalFault, ServiceBusError, StoreUnavailable
from twinbus.model.partition_key import fragment_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twinbus.broker.clock import Times
    from twinbus.broker.filters.index import Entry
    from twinbus.broker.fragment import Policy
    from twinbus.broker.journal import Applied, Journal
    from twinbus.broker.locks import TokenSource
    from twinbus.broker.ports.callbacks import Answered
    from twinbus.broker.receivable_part import SubscriptionPart
    from twinbus.broker.record import Parts
    from twinbus.broker.work import WorkBudget
    from twinbus.model.limits import NamespaceLimits
    from twinbus.model.rule import RuleDescription
    from twinbus.store.protocol import StoreError

    Found: TypeAlias = list[tuple[Entry[tuple[SubscriptionPart, str]], FilterError | None]]
    """Rules that match a message, or fail with an error."""

SHARED_FROM: Final = 256
"""Bytes of a bare message from which on it is kept once: a reference and the list of who has it cost some, too."""
WEIGHED_EVERY_S: Final = 0.2
"""How often it is added up what all subscriptions hold; what is published in between is added to that."""
AT_ONCE: Final = 50
"""Sends that waited behind others, and are begun in one turn."""


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
        work: WorkBudget,
    ) -> None:
        """Without subscriptions. `work` is shared by all topics of the process."""
        super().__init__(prefix, journal, policy, times=times, tokens=tokens)
        self.bodies = Bodies(prefix, journal)
        self._limits = limits
        self.subscriptions: dict[str, SubscriptionPart] = {}
        """By the keys of their names."""
        self._rules: RuleIndex[tuple[SubscriptionPart, str]] = RuleIndex()
        self._held_bytes = 0
        self._weighed_s = -WEIGHED_EVERY_S
        self._work = work
        self._publication: Publication | None = None
        """The one that is being evaluated, where that takes more than a turn."""
        self._behind: deque[tuple[Callable[[], None], Answered, int]] = deque()
        """Calls to be made when it is in a batch, in turn; who is told if they cannot be; how many bytes they hold."""
        self._waiting_bytes = 0
        self._is_admitted = False
        """A call is made that waited: what it sends was counted among what waits to be written before."""

    # --- subscriptions and rules --------------------------------------------------------------------------------------

    def put_rule(self, subscription: SubscriptionPart, name: str, rule: Rule) -> None:
        """Add a rule of a subscription, or replace the one of the same name."""
        self._rules.put((subscription, name), rule.compiled)

    def remove_rule(self, subscription: SubscriptionPart, name: str) -> None:
        """Remove a rule of a subscription."""
        self._rules.remove((subscription, name))

    def remove_subscription(self, subscription: SubscriptionPart) -> None:
        """Copy nothing more into a subscription."""
        for name in subscription.subscription.rules:
            self.remove_rule(subscription, name)
        self.subscriptions = {key: one for key, one in self.subscriptions.items() if one is not subscription}

    def held_bytes(self) -> int:
        """What the topic and its subscriptions hold together, a body that several have as often as they have it."""
        now_s = self.clock.monotonic_s()
        if now_s - self._weighed_s >= WEIGHED_EVERY_S:
            self._weighed_s = now_s
            self._held_bytes = self.holdings.size + sum([one.held_bytes() for one in self.subscriptions.values()])
        return self._held_bytes + self._waiting_bytes

    def note_growth(self, size: int) -> None:
        """A subscription holds so many bytes more, which count before all is weighed again."""
        self._held_bytes += size

    # --- publishing ---------------------------------------------------------------------------------------------------

    def enqueue(self, records: Sequence[bytes], answer: Answered, beside: Callable[[], None] | None = None) -> int:
        """Publish messages, or keep them for later: all or none. `answer` hears when that is on disk.

        As of a fragment; but it may take some turns before they are put into a batch, and `beside` is called then.
        """
        if not self._is_admitted or self.journal.refusal is not None:
            self.journal.check_takes_sends()
        self.journal.check_works()
        self.check_loaded()
        holdings = self.holdings
        enqueued_ms = enqueued_of(records[-1])
        if enqueued_ms < holdings.latest_ms:
            records = [with_enqueued(record, holdings.latest_ms) for record in records]
        else:
            holdings.latest_ms = enqueued_ms
        size = 0
        for record in records:
            size += len(record)
        return self._publish_all(records, answer, size, do_nothing, beside)

    def make_active(self, records: list[bytes], beside: Callable[[], None], applied: Applied) -> None:
        """Publish messages that were there for later."""
        with suppress(InternalFault):  # it is logged, and these messages are due again when the store was read again
            self._publish_all(records, ignore, 0, applied, beside)

    @property
    def activates_at_once(self) -> int:
        """Fewer where actions multiply what scheduled messages take in memory."""
        return max(1, DUE_AT_ONCE // (1 + self._rules.actions))

    def _publish_all(
        self,
        records: Sequence[bytes],
        answer: Answered,
        size: int,
        applied: Applied,
        beside: Callable[[], None] | None,
    ) -> int:
        """Evaluate, and put into the batch of this turn: or of another one, where there is too much to evaluate."""
        holdings, work = self.holdings, self._work
        first = holdings.next
        holdings.next = first + len(records)
        publication = Publication(records, first, size, answer, applied, beside)
        allowance = max(SMALL, work.left)
        left = 0  # a send that is refused has used up all
        try:
            left = self._evaluate(publication, allowance)
        finally:
            work.spend(allowance - left)
        if publication.is_done:
            self._put(publication)
        else:
            publication.is_late = self.is_busy = True
            self._publication = publication
            self._hold_all_of(publication)
            work.wait(self._go_on)
        return first

    def _evaluate(self, publication: Publication, allowance: int) -> int:
        """Evaluate more, as `Publication.work`. QuotaExceeded if the copies do not fit; InternalFault."""
        copied = publication.copied
        try:
            if not self._rules.actions and not publication.is_late:
                allowance = publication.work_at_once(self._rules, allowance)
            if not publication.is_done:
                allowance = publication.work(self._rules, self._limits, allowance)
        except ServiceBusError:
            raise
        except Exception as fault:
            raise self._failed(publication, fault, "the rules of the topic could not be evaluated") from fault
        if publication.copied > copied and publication.size and self.subscriptions:
            self.check_room(publication.weight - publication.held)
        return allowance

    def _put(self, publication: Publication) -> None:
        """Put all copies into the batch of this turn. InternalFault: then nothing of this batch is stored."""
        try:
            self._put_copies(publication)
            if publication.beside is not None:
                publication.beside()
        except Exception as fault:
            failed = self._failed(publication, fault, "the messages could not be stored")
            self.journal.fail(f"the messages of a send could not be put into a batch: {fault!r}")
            raise failed from fault
        self.journal.add(self, publication.size, publication.applied, publication.answer)

    def _failed(self, publication: Publication, fault: Exception, what: str) -> InternalFault:
        """Have a fault logged, and make the error for the sender.

        Scheduled messages have none: the store is read again, which makes them due again.
        """
        self._work.call_later(partial(_raise, fault))
        if not publication.size:
            self.journal.fail(f"{what}: {fault!r}")
        return InternalFault(f"{what}: see the server's log")

    def _put_copies(self, publication: Publication) -> None:
        fresh: dict[SubscriptionPart, list[tuple[int, bytes]]] = {}
        for place, record in enumerate(publication.records):
            found = publication.found[place]
            if found is None:
                self.holdings.schedule(publication.first + place, record)
            elif found:
                self._publish(publication, place, record, found, fresh)
        if fresh:
            self._deliver(fresh)

    def _publish(
        self,
        publication: Publication,
        place: int,
        record: bytes,
        found: Found,
        fresh: dict[SubscriptionPart, list[tuple[int, bytes]]],
    ) -> None:
        """Put the copies of one message into the batch of this turn; `fresh` gets them."""
        number = publication.first + place
        parts = numbered(take_apart(record), number)
        copies: dict[SubscriptionPart, None] = {}
        there = set(self.subscriptions.values()) if publication.is_late else None
        index = -1
        for entry, error in found:
            index += 1
            subscription, name = entry.key
            if not subscription.takes_copies or (there is not None and subscription not in there):
                continue
            if error is not None:
                self._bury(subscription, parts, name, error)
            elif entry.rule.action is None:
                copies[subscription] = None
            elif (place, index) in publication.altered:  # else the subscription took no copies when it was its turn
                self._add_altered(subscription, name, publication.altered[place, index], parts, number, fresh)
        if len(copies) > 1 and len(parts.bare) >= SHARED_FROM:
            self._share(number, parts, list(copies), fresh)
        else:
            for subscription in copies:
                self._add(subscription, parts, fresh)

    def _add_altered(
        self,
        subscription: SubscriptionPart,
        name: str,
        altered: bytes | FilterError,
        original: Parts,
        number: int,
        fresh: dict[SubscriptionPart, list[tuple[int, bytes]]],
    ) -> None:
        """A copy that a rule changed."""
        if isinstance(altered, FilterError):
            self._bury(subscription, original, name, altered)
            return
        parts = numbered(take_apart(altered), number)
        if self._leads_elsewhere(subscription, parts):
            subscription.bury(parts, *OTHER_FRAGMENT)
        else:
            self._add(subscription, parts, fresh)

    # --- what takes more than a turn ----------------------------------------------------------------------------------

    def in_order(self, call: Callable[[], None], refuse: Answered, size: int) -> None:
        """Make a call once all that was sent before is in a batch; `refuse` hears why it cannot be made."""
        if self.is_busy:
            self._behind.append((call, refuse, size))
            self._hold(size)
        else:
            call()

    def _go_on(self, allowance: int) -> int:
        """Evaluate more, as `Publication.work`; put what is done into a batch, and begin those that wait behind it."""
        publication = self._publication
        if publication is not None:
            units, allowance = allowance, 0
            try:
                allowance = self._evaluate(publication, units)
                if not publication.is_done:
                    self._hold_all_of(publication)
                    self._work.wait(self._go_on)
                    return allowance
                self._let_go(publication)
                if publication.size:
                    self.journal.check_works()
                self._put(publication)
            except ServiceBusError as error:
                self._let_go(publication)
                try:
                    publication.answer(error)
                finally:
                    self._begin_waiting()
                return allowance
        self._begin_waiting()
        return allowance

    def _hold_all_of(self, publication: Publication) -> None:
        """Count a publication that takes more turns as pending, with the copies made so far."""
        self._hold(publication.weight - publication.held)
        publication.held = publication.weight

    def _let_go(self, publication: Publication) -> None:
        """A publication waits no more."""
        if self._publication is publication:
            self._publication = None
            self._hold(-publication.held)

    def _begin_waiting(self) -> None:
        """Make the calls that wait, up to one that makes the fragment busy again."""
        self.is_busy = False
        faults: list[Exception] = []
        for _ in range(min(AT_ONCE, len(self._behind))):
            call, refuse, size = self._behind.popleft()
            self._hold(-size)
            self._is_admitted = True
            try:
                call()
            except ServiceBusError as error:
                refuse(error)
            except Exception as fault:  # noqa: BLE001  # told below: one's fault must not leave the others waiting
                faults.append(fault)
                refuse(InternalFault("the messages could not be stored: see the server's log"))
            finally:
                self._is_admitted = False
            if self.is_busy or not self._behind:
                break
        if self._behind and not self.is_busy:
            self.is_busy = True
            self._work.wait(self._go_on)
        if faults:
            raise ExceptionGroup("what waited for a topic could not be stored", faults)

    def _hold(self, size: int) -> None:
        """Messages wait in memory: that counts as what waits to be written, and as what the topic holds."""
        self._waiting_bytes += size
        self.journal.pending_bytes += size

    def _refuse_waiting(self) -> None:
        """What is in memory is void: whoever waits is told, at the end of this turn."""
        answers = [refuse for _, refuse, _ in self._behind]
        if self._publication is not None:
            answers.insert(0, self._publication.answer)
        self._hold(-self._waiting_bytes)
        self._behind.clear()
        self._publication, self.is_busy = None, False
        if not answers:
            return
        error = self._end or StoreUnavailable("the store failed before the messages were stored")

        def tell() -> None:
            for answer in answers:
                answer(error)

        self._work.call_later(tell)

    def _leads_elsewhere(self, subscription: SubscriptionPart, parts: Parts) -> bool:
        """Whoever accepts the session of a message would look for it in another fragment than this."""
        if not subscription.terms.requires_session or not subscription.entity.is_partitioned:
            return False
        session = session_in(parts.bare)
        return session is not None and fragment_of(session) != self.number

    def _share(
        self,
        number: int,
        parts: Parts,
        subscriptions: list[SubscriptionPart],
        fresh: dict[SubscriptionPart, list[tuple[int, bytes]]],
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
        self, subscription: SubscriptionPart, parts: Parts, fresh: dict[SubscriptionPart, list[tuple[int, bytes]]]
    ) -> None:
        adopted = subscription.adopt(parts)
        if adopted is None:
            subscription.bury(parts, *NO_SESSION)
            return
        record = make_record(adopted)
        fresh.setdefault(subscription, []).append((subscription.main.holdings.add(record), record))

    def _bury(self, subscription: SubscriptionPart, parts: Parts, name: str, error: FilterError) -> None:
        if subscription.subscription.description.dead_lettering_on_filter_errors:
            reason = f"Rule '{name}' could not be evaluated: {error}"
            subscription.bury(parts, "FilterEvaluationException", reason)

    def _deliver(self, fresh: dict[SubscriptionPart, list[tuple[int, bytes]]]) -> None:
        for subscription, items in fresh.items():
            size = sum([len(record) for _, record in items])
            subscription.main.expect(items, size)
            self._held_bytes += size

    # --- the journal calls these --------------------------------------------------------------------------------------

    def lose_store(self) -> None:
        """The store failed: the journal counts nothing as waiting any more."""
        self._waiting_bytes = 0
        super().lose_store()

    def _restart(self) -> None:
        super()._restart()
        self._refuse_waiting()

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


def _raise(fault: Exception) -> None:
    """Have the loop log a fault."""
    raise fault
