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

from twinbus.broker.entities.publication import Publication
from twinbus.broker.filters.errors import FilterError
from twinbus.broker.filters.rule import compile_rule
from twinbus.broker.filters.rule_index import RuleIndex
from twinbus.broker.fragment.fragment import Fragment
from twinbus.broker.fragment.shared_bodies import SharedBodies
from twinbus.broker.fragment.time_index import SCAN_BATCH_SIZE as DUE_AT_ONCE
from twinbus.broker.message_record import (
    enqueued_time_of,
    make_record,
    parse_record,
    session_id_in,
    with_enqueued_time,
    with_original_sequence,
)
from twinbus.broker.store_keys import pack_sequence
from twinbus.broker.work_budget import MIN_UNITS
from twinbus.model.callbacks import do_nothing, ignore
from twinbus.model.errors import InternalFault, ServiceBusError, StoreUnavailable
from twinbus.model.partition_key import fragment_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twinbus.broker.clock import TimeServices
    from twinbus.broker.commit_log import CommitLog, OnApplied
    from twinbus.broker.entities.local_parts import SubscriptionPart
    from twinbus.broker.filters.rule_index import IndexedRule
    from twinbus.broker.fragment.fragment import FragmentPolicy
    from twinbus.broker.fragment.locks import TokenSource
    from twinbus.broker.message_record import RecordFields
    from twinbus.broker.ports.callbacks import OnDone
    from twinbus.broker.work_budget import WorkBudget
    from twinbus.model.limits import NamespaceLimits
    from twinbus.model.rule import RuleDescription
    from twinbus.store.protocol import StoreError

    RuleMatches: TypeAlias = list[tuple[IndexedRule[tuple[SubscriptionPart, str]], FilterError | None]]
    """Rules that match a message, or fail with an error."""

MIN_SHARED_BODY_BYTES: Final = 256
"""Bytes of a bare message from which on it is kept once: a reference and the list of who has it cost some, too."""
SIZE_REFRESH_S: Final = 0.2
"""How often it is added up what all subscriptions hold; what is published in between is added to that."""
MAX_STARTED_PER_TURN: Final = 50
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
        key_prefix: bytes,
        commit_log: CommitLog,
        policy: FragmentPolicy,
        *,
        time_services: TimeServices,
        token_source: TokenSource,
        limits: NamespaceLimits,
        work_budget: WorkBudget,
    ) -> None:
        """Without subscriptions. `work` is shared by all topics of the process."""
        super().__init__(key_prefix, commit_log, policy, time_services=time_services, token_source=token_source)
        self.shared_bodies = SharedBodies(key_prefix, commit_log)
        self._limits = limits
        self.subscriptions: dict[str, SubscriptionPart] = {}
        """By the keys of their names."""
        self._rule_index: RuleIndex[tuple[SubscriptionPart, str]] = RuleIndex()
        self._stored_bytes = 0
        self._size_refreshed_s = -SIZE_REFRESH_S
        self._work_budget = work_budget
        self._current_publication: Publication | None = None
        """The one that is being evaluated, where that takes more than a turn."""
        self._waiting_sends: deque[tuple[Callable[[], None], OnDone, int]] = deque()
        """Calls to be made when it is in a batch, in turn; who is told if they cannot be; how many bytes they hold."""
        self._waiting_bytes = 0
        self._is_admitted = False
        """A call is made that waited: what it sends was counted among what waits to be written before."""

    # --- subscriptions and rules --------------------------------------------------------------------------------------

    def put_rule(self, subscription: SubscriptionPart, rule_name: str, rule: Rule) -> None:
        """Add a rule of a subscription, or replace the one of the same name."""
        self._rule_index.put((subscription, rule_name), rule.compiled)

    def remove_rule(self, subscription: SubscriptionPart, rule_name: str) -> None:
        """Remove a rule of a subscription."""
        self._rule_index.remove((subscription, rule_name))

    def remove_subscription(self, subscription: SubscriptionPart) -> None:
        """Copy nothing more into a subscription."""
        for name in subscription.subscription.rules:
            self.remove_rule(subscription, name)
        self.subscriptions = {key: one for key, one in self.subscriptions.items() if one is not subscription}

    def stored_bytes(self) -> int:
        """What the topic and its subscriptions hold together, a body that several have as often as they have it."""
        now_s = self.clock.monotonic_s()
        if now_s - self._size_refreshed_s >= SIZE_REFRESH_S:
            self._size_refreshed_s = now_s
            self._stored_bytes = self.message_table.size + sum(
                [one.stored_bytes() for one in self.subscriptions.values()]
            )
        return self._stored_bytes + self._waiting_bytes

    def add_stored_bytes(self, size: int) -> None:
        """A subscription holds so many bytes more, which count before all is weighed again."""
        self._stored_bytes += size

    # --- publishing ---------------------------------------------------------------------------------------------------

    def enqueue(self, records: Sequence[bytes], on_done: OnDone, on_batched: Callable[[], None] | None = None) -> int:
        """Publish messages, or keep them for later: all or none. `answer` hears when that is on disk.

        As of a fragment; but it may take some turns before they are put into a batch, and `beside` is called then.
        """
        if not self._is_admitted or self.commit_log.disk_full_reason is not None:
            self.commit_log.check_accepts_sends()
        self.commit_log.check_available()
        self.check_loaded()
        holdings = self.message_table
        enqueued_ms = enqueued_time_of(records[-1])
        if enqueued_ms < holdings.last_enqueued_ms:
            records = [with_enqueued_time(record, holdings.last_enqueued_ms) for record in records]
        else:
            holdings.last_enqueued_ms = enqueued_ms
        size = 0
        for record in records:
            size += len(record)
        return self._publish_all(records, on_done, size, do_nothing, on_batched)

    def activate_scheduled(self, records: list[bytes], on_batched: Callable[[], None], on_applied: OnApplied) -> None:
        """Publish messages that were there for later."""
        with suppress(InternalFault):  # it is logged, and these messages are due again when the store was read again
            self._publish_all(records, ignore, 0, on_applied, on_batched)

    @property
    def activation_batch_size(self) -> int:
        """Fewer where actions multiply what scheduled messages take in memory."""
        return max(1, DUE_AT_ONCE // (1 + self._rule_index.action_count))

    def _publish_all(
        self,
        records: Sequence[bytes],
        on_done: OnDone,
        size: int,
        on_applied: OnApplied,
        on_batched: Callable[[], None] | None,
    ) -> int:
        """Evaluate, and put into the batch of this turn: or of another one, where there is too much to evaluate."""
        holdings, work = self.message_table, self._work_budget
        first = holdings.next_sequence
        holdings.next_sequence = first + len(records)
        publication = Publication(records, first, size, on_done, on_applied, on_batched)
        allowance = max(MIN_UNITS, work.remaining)
        left = 0  # a send that is refused has used up all
        try:
            left = self._evaluate(publication, allowance)
        finally:
            work.spend(allowance - left)
        if publication.is_evaluated:
            self._write(publication)
        else:
            publication.spans_turns = self.is_publishing = True
            self._current_publication = publication
            self._count_publication_bytes(publication)
            work.run_in_next_turns(self._continue)
        return first

    def _evaluate(self, publication: Publication, budget: int) -> int:
        """Evaluate more, as `Publication.work`. QuotaExceeded if the copies do not fit; InternalFault."""
        copied = publication.copied_bytes
        try:
            if not self._rule_index.action_count and not publication.spans_turns:
                budget = publication.evaluate_without_actions(self._rule_index, budget)
            if not publication.is_evaluated:
                budget = publication.evaluate(self._rule_index, self._limits, budget)
        except ServiceBusError:
            raise
        except Exception as fault:
            raise self._fault_error(publication, fault, "the rules of the topic could not be evaluated") from fault
        if publication.copied_bytes > copied and publication.size and self.subscriptions:
            self.check_quota(publication.total_bytes - publication.counted_bytes)
        return budget

    def _write(self, publication: Publication) -> None:
        """Put all copies into the batch of this turn. InternalFault: then nothing of this batch is stored."""
        try:
            self._write_copies(publication)
            if publication.on_batched is not None:
                publication.on_batched()
        except Exception as fault:
            failed = self._fault_error(publication, fault, "the messages could not be stored")
            self.commit_log.fail(f"the messages of a send could not be put into a batch: {fault!r}")
            raise failed from fault
        self.commit_log.add(self, publication.size, publication.on_applied, publication.on_done)

    def _fault_error(self, publication: Publication, fault: Exception, message: str) -> InternalFault:
        """Have a fault logged, and make the error for the sender.

        Scheduled messages have none: the store is read again, which makes them due again.
        """
        self._work_budget.call_at_turn_end(partial(_raise_fault, fault))
        if not publication.size:
            self.commit_log.fail(f"{message}: {fault!r}")
        return InternalFault(f"{message}: see the server's log")

    def _write_copies(self, publication: Publication) -> None:
        fresh: dict[SubscriptionPart, list[tuple[int, bytes]]] = {}
        for place, record in enumerate(publication.records):
            found = publication.matches[place]
            if found is None:
                self.message_table.schedule(publication.first_sequence + place, record)
            elif found:
                self._write_message_copies(publication, place, record, found, fresh)
        if fresh:
            self._register_copies(fresh)

    def _write_message_copies(
        self,
        publication: Publication,
        position: int,
        record: bytes,
        matches: RuleMatches,
        new_copies: dict[SubscriptionPart, list[tuple[int, bytes]]],
    ) -> None:
        """Put the copies of one message into the batch of this turn; `fresh` gets them."""
        number = publication.first_sequence + position
        parts = with_original_sequence(parse_record(record), number)
        copies: dict[SubscriptionPart, None] = {}
        there = set(self.subscriptions.values()) if publication.spans_turns else None
        index = -1
        for entry, error in matches:
            index += 1
            subscription, name = entry.key
            if not subscription.accepts_copies or (there is not None and subscription not in there):
                continue
            if error is not None:
                self._dead_letter_filter_error(subscription, parts, name, error)
            elif entry.rule.action is None:
                copies[subscription] = None
            elif (
                position,
                index,
            ) in publication.altered_copies:  # else the subscription took no copies when it was its turn
                self._write_altered_copy(
                    subscription, name, publication.altered_copies[position, index], parts, number, new_copies
                )
        if len(copies) > 1 and len(parts.bare_message) >= MIN_SHARED_BODY_BYTES:
            self._write_shared_copies(number, parts, list(copies), new_copies)
        else:
            for subscription in copies:
                self._write_copy(subscription, parts, new_copies)

    def _write_altered_copy(
        self,
        subscription: SubscriptionPart,
        rule_name: str,
        altered: bytes | FilterError,
        original_fields: RecordFields,
        sequence: int,
        new_copies: dict[SubscriptionPart, list[tuple[int, bytes]]],
    ) -> None:
        """A copy that a rule changed."""
        if isinstance(altered, FilterError):
            self._dead_letter_filter_error(subscription, original_fields, rule_name, altered)
            return
        parts = with_original_sequence(parse_record(altered), sequence)
        if self._belongs_to_other_fragment(subscription, parts):
            subscription.dead_letter_copy(parts, *OTHER_FRAGMENT_REASON)
        else:
            self._write_copy(subscription, parts, new_copies)

    # --- what takes more than a turn ----------------------------------------------------------------------------------

    def run_in_order(self, call: Callable[[], None], on_error: OnDone, size: int) -> None:
        """Make a call once all that was sent before is in a batch; `refuse` hears why it cannot be made."""
        if self.is_publishing:
            self._waiting_sends.append((call, on_error, size))
            self._add_waiting_bytes(size)
        else:
            call()

    def _continue(self, budget: int) -> int:
        """Evaluate more, as `Publication.work`; put what is done into a batch, and begin those that wait behind it."""
        publication = self._current_publication
        if publication is not None:
            units, budget = budget, 0
            try:
                budget = self._evaluate(publication, units)
                if not publication.is_evaluated:
                    self._count_publication_bytes(publication)
                    self._work_budget.run_in_next_turns(self._continue)
                    return budget
                self._end_publication(publication)
                if publication.size:
                    self.commit_log.check_available()
                self._write(publication)
            except ServiceBusError as error:
                self._end_publication(publication)
                try:
                    publication.on_done(error)
                finally:
                    self._run_waiting()
                return budget
        self._run_waiting()
        return budget

    def _count_publication_bytes(self, publication: Publication) -> None:
        """Count a publication that takes more turns as pending, with the copies made so far."""
        self._add_waiting_bytes(publication.total_bytes - publication.counted_bytes)
        publication.counted_bytes = publication.total_bytes

    def _end_publication(self, publication: Publication) -> None:
        """A publication waits no more."""
        if self._current_publication is publication:
            self._current_publication = None
            self._add_waiting_bytes(-publication.counted_bytes)

    def _run_waiting(self) -> None:
        """Make the calls that wait, up to one that makes the fragment busy again."""
        self.is_publishing = False
        faults: list[Exception] = []
        for _ in range(min(MAX_STARTED_PER_TURN, len(self._waiting_sends))):
            call, refuse, size = self._waiting_sends.popleft()
            self._add_waiting_bytes(-size)
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
            if self.is_publishing or not self._waiting_sends:
                break
        if self._waiting_sends and not self.is_publishing:
            self.is_publishing = True
            self._work_budget.run_in_next_turns(self._continue)
        if faults:
            raise ExceptionGroup("what waited for a topic could not be stored", faults)

    def _add_waiting_bytes(self, size: int) -> None:
        """Messages wait in memory: that counts as what waits to be written, and as what the topic holds."""
        self._waiting_bytes += size
        self.commit_log.pending_bytes += size

    def _fail_waiting(self) -> None:
        """What is in memory is void: whoever waits is told, at the end of this turn."""
        answers = [refuse for _, refuse, _ in self._waiting_sends]
        if self._current_publication is not None:
            answers.insert(0, self._current_publication.on_done)
        self._add_waiting_bytes(-self._waiting_bytes)
        self._waiting_sends.clear()
        self._current_publication, self.is_publishing = None, False
        if not answers:
            return
        error = self._closed_error or StoreUnavailable("the store failed before the messages were stored")

        def tell() -> None:
            for answer in answers:
                answer(error)

        self._work_budget.call_at_turn_end(tell)

    def _belongs_to_other_fragment(self, subscription: SubscriptionPart, fields: RecordFields) -> bool:
        """Whoever accepts the session of a message would look for it in another fragment than this."""
        if not subscription.validation_policy.requires_session or not subscription.entity.is_partitioned:
            return False
        session = session_id_in(fields.bare_message)
        return session is not None and fragment_of(session) != self.number

    def _write_shared_copies(
        self,
        body_number: int,
        fields: RecordFields,
        subscriptions: list[SubscriptionPart],
        new_copies: dict[SubscriptionPart, list[tuple[int, bytes]]],
    ) -> None:
        """Copies of one message that are all alike but for what their subscriptions say of sessions and lives."""
        fields = fields._replace(shared_body=body_number)
        records: dict[tuple[bool, int], bytes | None] = {}
        users = []
        for subscription in subscriptions:
            terms = subscription.validation_policy
            kind = (terms.requires_session, terms.max_ttl_ms)
            if kind not in records:
                adopted = subscription.make_copy(fields)
                records[kind] = make_record(adopted) if adopted is not None else None
            record = records[kind]
            if record is None:
                subscription.dead_letter_copy(fields, *NO_SESSION_REASON)
                continue
            holdings = subscription.main.message_table
            users.append(holdings.active_prefix + pack_sequence(holdings.next_sequence))
            new_copies.setdefault(subscription, []).append((holdings.add(record), record))
        if users:
            self.shared_bodies.put(body_number, fields.bare_message, users)

    def _write_copy(
        self,
        subscription: SubscriptionPart,
        fields: RecordFields,
        new_copies: dict[SubscriptionPart, list[tuple[int, bytes]]],
    ) -> None:
        adopted = subscription.make_copy(fields)
        if adopted is None:
            subscription.dead_letter_copy(fields, *NO_SESSION_REASON)
            return
        record = make_record(adopted)
        new_copies.setdefault(subscription, []).append((subscription.main.message_table.add(record), record))

    def _dead_letter_filter_error(
        self, subscription: SubscriptionPart, fields: RecordFields, rule_name: str, error: FilterError
    ) -> None:
        if subscription.subscription.description.dead_lettering_on_filter_errors:
            reason = f"Rule '{rule_name}' could not be evaluated: {error}"
            subscription.dead_letter_copy(fields, "FilterEvaluationException", reason)

    def _register_copies(self, new_copies: dict[SubscriptionPart, list[tuple[int, bytes]]]) -> None:
        for subscription, items in new_copies.items():
            size = sum([len(record) for _, record in items])
            subscription.main.announce_on_commit(items, size)
            self._stored_bytes += size

    # --- the journal calls these --------------------------------------------------------------------------------------

    def on_store_failed(self) -> None:
        """The store failed: the journal counts nothing as waiting any more."""
        self._waiting_bytes = 0
        super().on_store_failed()

    def _reset(self) -> None:
        super()._reset()
        self._fail_waiting()

    def resume(self) -> None:
        """A commit was applied, or the store speaks again."""
        super().resume()
        self.shared_bodies.resume()

    def on_store_reopened(self) -> None:
        """The store was opened anew: nothing is published before all subscriptions are there again."""
        self.commit_log.get([], self._load_after_reopen)

    def _load_after_reopen(self, _answer: list[bytes | None] | StoreError) -> None:
        super().on_store_reopened()

    def load(self, on_done: Callable[[ServiceBusError | None], None]) -> None:
        """Read the marks from the store."""

        def loaded(error: ServiceBusError | None) -> None:
            if error is None:
                self.shared_bodies.start()
            on_done(error)

        super().load(loaded)


OTHER_FRAGMENT_REASON: Final = (
    "Session of another fragment.",
    "A rule gave the message a session id that is of another fragment of the topic, which is partitioned.",
)
NO_SESSION_REASON: Final = ("Session ID is null.", "The subscription requires sessions, and the message names none.")


def _raise_fault(fault: Exception) -> None:
    """Have the loop log a fault."""
    raise fault
