"""The fan-out: copying the messages that are sent to a topic into the topic's subscriptions.

Owns: which subscriptions get a copy, and the contents of each copy. All copies from one send are written in one batch;
a body that several subscriptions share is stored once (`shared_bodies`). Scheduled messages stay in the topic, and are
copied when they are due, according to the rules that exist at that time.

Messages enter batches in the order of their sends. If evaluating the rules for a send exceeds the remaining work budget
of the turn (`work_budget`), the evaluation continues in the next turns, and later sends to the topic wait in memory. A
send is stored only after all its messages are evaluated.

A subscription gets one copy if any of its rules without an action matches the message, and one more copy for each
matching rule with an action, changed by that action.
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
    """The rules that match a message, each with None, and the rules that failed, each with its error."""

MIN_SHARED_BODY_BYTES: Final = 256
"""The minimum size of a bare message that is stored as a shared body. References to a shared body and the list of its
users take space, too."""
SIZE_REFRESH_S: Final = 0.2
"""The interval at which the size of all subscriptions is computed. In between, the size of new copies is added."""
MAX_STARTED_PER_TURN: Final = 50
"""The maximum number of waiting sends that start in one turn."""


class Rule:
    """A rule of a subscription."""

    def __init__(self, description: RuleDescription) -> None:
        """Compile a rule. Raises InvalidArgument if the filter or the action is not valid."""
        self.description = description
        self.compiled = compile_rule(description)


class TopicFragment(Fragment):
    """A fragment of a topic: it copies messages into subscriptions, and has no receivers."""

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
        """Create a fragment without subscriptions; `work_budget` is shared by all topics in the process."""
        super().__init__(key_prefix, commit_log, policy, time_services=time_services, token_source=token_source)
        self.shared_bodies = SharedBodies(key_prefix, commit_log)
        self._limits = limits
        self.subscriptions: dict[str, SubscriptionPart] = {}
        """The parts of subscriptions in this fragment, by the canonical keys of their names."""
        self._rule_index: RuleIndex[tuple[SubscriptionPart, str]] = RuleIndex()
        self._stored_bytes = 0
        self._size_refreshed_s = -SIZE_REFRESH_S
        self._work_budget = work_budget
        self._current_publication: Publication | None = None
        """The publication whose evaluation takes more than one turn, or None."""
        self._waiting_sends: deque[tuple[Callable[[], None], OnDone, int]] = deque()
        """Sends waiting for the current publication: the call, the error callback and the size in bytes."""
        self._waiting_bytes = 0
        self._is_admitted = False
        """Whether a waiting send is being run. Its bytes were checked and counted as pending when it began to wait."""

    # --- subscriptions and rules --------------------------------------------------------------------------------------

    def put_rule(self, subscription: SubscriptionPart, rule_name: str, rule: Rule) -> None:
        """Add a rule to a subscription, or replace the subscription's rule of the same name."""
        self._rule_index.put((subscription, rule_name), rule.compiled)

    def remove_rule(self, subscription: SubscriptionPart, rule_name: str) -> None:
        """Remove a rule from a subscription."""
        self._rule_index.remove((subscription, rule_name))

    def remove_subscription(self, subscription: SubscriptionPart) -> None:
        """Remove a subscription and its rules, so that the subscription gets no more copies."""
        for name in subscription.subscription.rules:
            self.remove_rule(subscription, name)
        self.subscriptions = {key: part for key, part in self.subscriptions.items() if part is not subscription}

    def stored_bytes(self) -> int:
        """Return the size of the topic and its subscriptions; a shared body counts once per subscription."""
        now_s = self.clock.monotonic_s()
        if now_s - self._size_refreshed_s >= SIZE_REFRESH_S:
            self._size_refreshed_s = now_s
            self._stored_bytes = self.message_table.size + sum(
                [part.stored_bytes() for part in self.subscriptions.values()]
            )
        return self._stored_bytes + self._waiting_bytes

    def add_stored_bytes(self, size: int) -> None:
        """Count `size` bytes added to a subscription, until the total size is computed again."""
        self._stored_bytes += size

    # --- publishing ---------------------------------------------------------------------------------------------------

    def enqueue(self, records: Sequence[bytes], on_done: OnDone, on_batched: Callable[[], None] | None = None) -> int:
        """Publish or schedule messages, all or none; `on_done` is called when they are on disk.

        Return the first sequence number. Unlike in other fragments, it may take several turns until the messages are
        put into a batch; `on_batched` is called then.
        """
        if not self._is_admitted or self.commit_log.disk_full_reason is not None:
            self.commit_log.check_accepts_sends()
        self.commit_log.check_available()
        self.check_loaded()
        message_table = self.message_table
        enqueued_ms = enqueued_time_of(records[-1])
        if enqueued_ms < message_table.last_enqueued_ms:
            records = [with_enqueued_time(record, message_table.last_enqueued_ms) for record in records]
        else:
            message_table.last_enqueued_ms = enqueued_ms
        size = 0
        for record in records:
            size += len(record)
        return self._publish_all(records, on_done, size, do_nothing, on_batched)

    def activate_scheduled(self, records: list[bytes], on_batched: Callable[[], None], on_applied: OnApplied) -> None:
        """Publish scheduled messages that are due."""
        with suppress(InternalFault):  # logged; these messages are due again after the store is reopened
            self._publish_all(records, ignore, 0, on_applied, on_batched)

    @property
    def activation_batch_size(self) -> int:
        """The number of scheduled messages to activate at once.

        The more rules have an action, the lower the number, because each action may copy each message in memory.
        """
        return max(1, DUE_AT_ONCE // (1 + self._rule_index.action_count))

    def _publish_all(
        self,
        records: Sequence[bytes],
        on_done: OnDone,
        size: int,
        on_applied: OnApplied,
        on_batched: Callable[[], None] | None,
    ) -> int:
        """Evaluate messages and put their copies into the batch of this turn, or of a later turn."""
        message_table, work_budget = self.message_table, self._work_budget
        first = message_table.next_sequence
        message_table.next_sequence = first + len(records)
        publication = Publication(records, first, size, on_done, on_applied, on_batched)
        allowance = max(MIN_UNITS, work_budget.remaining)
        remaining = 0  # a refused send counts as having used its whole share of the budget
        try:
            remaining = self._evaluate(publication, allowance)
        finally:
            work_budget.spend(allowance - remaining)
        if publication.is_evaluated:
            self._write(publication)
        else:
            publication.spans_turns = self.is_publishing = True
            self._current_publication = publication
            self._count_publication_bytes(publication)
            work_budget.run_in_next_turns(self._continue)
        return first

    def _evaluate(self, publication: Publication, budget: int) -> int:
        """Continue an evaluation within `budget`; return the remaining units. Raises QuotaExceeded, InternalFault."""
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
        """Put all copies into the batch of this turn. Raises InternalFault, in which case the batch is not stored."""
        try:
            self._write_copies(publication)
            if publication.on_batched is not None:
                publication.on_batched()
        except Exception as fault:
            error = self._fault_error(publication, fault, "the messages could not be stored")
            self.commit_log.fail(f"the messages of a send could not be put into a batch: {fault!r}")
            raise error from fault
        self.commit_log.add(self, publication.size, publication.on_applied, publication.on_done)

    def _fault_error(self, publication: Publication, fault: Exception, message: str) -> InternalFault:
        """Have a fault logged at the end of this turn, and return the error for the sender.

        Scheduled messages have no sender. If they cause a fault, the store is marked as failed and reopened, which
        makes the messages due again.
        """
        self._work_budget.call_at_turn_end(partial(_raise_fault, fault))
        if not publication.size:
            self.commit_log.fail(f"{message}: {fault!r}")
        return InternalFault(f"{message}: see the server's log")

    def _write_copies(self, publication: Publication) -> None:
        new_copies: dict[SubscriptionPart, list[tuple[int, bytes]]] = {}
        for position, record in enumerate(publication.records):
            matches = publication.matches[position]
            if matches is None:
                self.message_table.schedule(publication.first_sequence + position, record)
            elif matches:
                self._write_message_copies(publication, position, record, matches, new_copies)
        if new_copies:
            self._register_copies(new_copies)

    def _write_message_copies(
        self,
        publication: Publication,
        position: int,
        record: bytes,
        matches: RuleMatches,
        new_copies: dict[SubscriptionPart, list[tuple[int, bytes]]],
    ) -> None:
        """Put the copies of one message into the batch of this turn, and add them to `new_copies`."""
        sequence = publication.first_sequence + position
        fields = with_original_sequence(parse_record(record), sequence)
        copies: dict[SubscriptionPart, None] = {}
        existing = set(self.subscriptions.values()) if publication.spans_turns else None
        index = -1
        for entry, error in matches:
            index += 1
            subscription, name = entry.key
            if not subscription.accepts_copies or (existing is not None and subscription not in existing):
                continue
            if error is not None:
                self._dead_letter_filter_error(subscription, fields, name, error)
            elif entry.rule.action is None:
                copies[subscription] = None
            elif (position, index) in publication.altered_copies:
                # The copy is missing if the subscription was disabled during the evaluation.
                self._write_altered_copy(
                    subscription, name, publication.altered_copies[position, index], fields, sequence, new_copies
                )
        if len(copies) > 1 and len(fields.bare_message) >= MIN_SHARED_BODY_BYTES:
            self._write_shared_copies(sequence, fields, list(copies), new_copies)
        else:
            for subscription in copies:
                self._write_copy(subscription, fields, new_copies)

    def _write_altered_copy(
        self,
        subscription: SubscriptionPart,
        rule_name: str,
        altered: bytes | FilterError,
        original_fields: RecordFields,
        sequence: int,
        new_copies: dict[SubscriptionPart, list[tuple[int, bytes]]],
    ) -> None:
        """Put a copy that an action changed into the batch, or dead-letter it."""
        if isinstance(altered, FilterError):
            self._dead_letter_filter_error(subscription, original_fields, rule_name, altered)
            return
        fields = with_original_sequence(parse_record(altered), sequence)
        if self._belongs_to_other_fragment(subscription, fields):
            subscription.dead_letter_copy(fields, *OTHER_FRAGMENT_REASON)
        else:
            self._write_copy(subscription, fields, new_copies)

    # --- publications that take more than one turn --------------------------------------------------------------------

    def run_in_order(self, call: Callable[[], None], on_error: OnDone, size: int) -> None:
        """Run a send after all earlier sends are in a batch; `on_error` is called if the send cannot run."""
        if self.is_publishing:
            self._waiting_sends.append((call, on_error, size))
            self._add_waiting_bytes(size)
        else:
            call()

    def _continue(self, budget: int) -> int:
        """Continue the current publication within `budget`, write it when it is evaluated, and start waiting sends."""
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
        """Count an unfinished publication as pending bytes, including the copies made so far."""
        self._add_waiting_bytes(publication.total_bytes - publication.counted_bytes)
        publication.counted_bytes = publication.total_bytes

    def _end_publication(self, publication: Publication) -> None:
        """Stop counting a publication as pending."""
        if self._current_publication is publication:
            self._current_publication = None
            self._add_waiting_bytes(-publication.counted_bytes)

    def _run_waiting(self) -> None:
        """Start waiting sends, until one of them needs more than one turn."""
        self.is_publishing = False
        faults: list[Exception] = []
        for _ in range(min(MAX_STARTED_PER_TURN, len(self._waiting_sends))):
            call, on_error, size = self._waiting_sends.popleft()
            self._add_waiting_bytes(-size)
            self._is_admitted = True
            try:
                call()
            except ServiceBusError as error:
                on_error(error)
            except Exception as fault:  # noqa: BLE001  # raised below, after the other sends
                faults.append(fault)
                on_error(InternalFault("the messages could not be stored: see the server's log"))
            finally:
                self._is_admitted = False
            if self.is_publishing or not self._waiting_sends:
                break
        if self._waiting_sends and not self.is_publishing:
            self.is_publishing = True
            self._work_budget.run_in_next_turns(self._continue)
        if faults:
            raise ExceptionGroup("waiting sends to a topic failed", faults)

    def _add_waiting_bytes(self, size: int) -> None:
        """Count messages waiting in memory as pending bytes of the store and as part of the topic's size."""
        self._waiting_bytes += size
        self.commit_log.pending_bytes += size

    def _fail_waiting(self) -> None:
        """Discard all waiting sends; their callbacks get an error at the end of this turn."""
        callbacks = [on_error for _, on_error, _ in self._waiting_sends]
        if self._current_publication is not None:
            callbacks.insert(0, self._current_publication.on_done)
        self._add_waiting_bytes(-self._waiting_bytes)
        self._waiting_sends.clear()
        self._current_publication, self.is_publishing = None, False
        if not callbacks:
            return
        error = self._closed_error or StoreUnavailable("the store failed before the messages were stored")

        def fail_all() -> None:
            for callback in callbacks:
                callback(error)

        self._work_budget.call_at_turn_end(fail_all)

    def _belongs_to_other_fragment(self, subscription: SubscriptionPart, fields: RecordFields) -> bool:
        """Return whether the session of a copy belongs to another fragment, where receivers would look for the copy."""
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
        """Put copies with a shared body into the batch; the copies differ only in session and time to live."""
        fields = fields._replace(shared_body=body_number)
        records: dict[tuple[bool, int], bytes | None] = {}
        users = []
        for subscription in subscriptions:
            policy = subscription.validation_policy
            kind = (policy.requires_session, policy.max_ttl_ms)
            if kind not in records:
                copy = subscription.make_copy(fields)
                records[kind] = make_record(copy) if copy is not None else None
            record = records[kind]
            if record is None:
                subscription.dead_letter_copy(fields, *NO_SESSION_REASON)
                continue
            message_table = subscription.main.message_table
            users.append(message_table.active_prefix + pack_sequence(message_table.next_sequence))
            new_copies.setdefault(subscription, []).append((message_table.add(record), record))
        if users:
            self.shared_bodies.put(body_number, fields.bare_message, users)

    def _write_copy(
        self,
        subscription: SubscriptionPart,
        fields: RecordFields,
        new_copies: dict[SubscriptionPart, list[tuple[int, bytes]]],
    ) -> None:
        copy = subscription.make_copy(fields)
        if copy is None:
            subscription.dead_letter_copy(fields, *NO_SESSION_REASON)
            return
        record = make_record(copy)
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
            subscription.main.publish_on_commit(items, size)
            self._stored_bytes += size

    # --- called by the commit log -------------------------------------------------------------------------------------

    def on_store_failed(self) -> None:
        """Discard waiting sends: the store failed, and the commit log has reset its pending bytes."""
        self._waiting_bytes = 0
        super().on_store_failed()

    def _reset(self) -> None:
        super()._reset()
        self._fail_waiting()

    def resume(self) -> None:
        """Continue after a commit was applied, or after the store became available again."""
        super().resume()
        self.shared_bodies.resume()

    def on_store_reopened(self) -> None:
        """Load the fragment from the reopened store, after the topic's subscriptions, which publishing needs."""
        self.commit_log.get([], self._load_after_reopen)

    def _load_after_reopen(self, _answer: list[bytes | None] | StoreError) -> None:
        super().on_store_reopened()

    def load(self, on_done: Callable[[ServiceBusError | None], None]) -> None:
        """Read the counters from the store, and then start `shared_bodies`."""

        def loaded(error: ServiceBusError | None) -> None:
            if error is None:
                self.shared_bodies.start()
            on_done(error)

        super().load(loaded)


OTHER_FRAGMENT_REASON: Final = (
    "Session of another fragment.",
    "A rule gave the message a session id that belongs to another fragment of the partitioned topic.",
)
NO_SESSION_REASON: Final = (
    "Session ID is null.",
    "The subscription requires sessions, and the message has no session id.",
)


def _raise_fault(fault: Exception) -> None:
    """Raise a fault, so that the event loop logs it."""
    raise fault
