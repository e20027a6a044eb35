"""Search: reading the messages of a fragment for which a filter is true, with a bounded amount of work.

Owns: one request for a search. A search reads the messages in the order of their sequence numbers, a bounded number at
once, evaluates the filter within the work budget of the turn, and stops when it has found or read enough messages: the
result says where the next request continues. Searches beyond the process's limit wait in the order of their requests.
This module must not know how a request is encoded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twinbus.broker.filters.cost import FULL_SIZE, SIZE_BITS
from twinbus.broker.filters.errors import FilterError
from twinbus.broker.filters.message_view import MessageView
from twinbus.broker.filters.rule_index import PAIR_BITS
from twinbus.broker.fragment.dispatcher import MAX_SCAN_SPAN
from twinbus.broker.message_record import render_unlocked
from twinbus.broker.ports.search import ACTIVE, DEFERRED, SCHEDULED, SearchResult
from twinbus.broker.store_keys import pack_sequence, sequence_of_key
from twinbus.model.errors import InternalFault, ServiceBusError, StoreUnavailable
from twinbus.store.protocol import StoreError

if TYPE_CHECKING:
    from twinbus.broker.fragment.fragment import Fragment, SequencedRecord
    from twinbus.broker.ports.read_limiter import ReadLimiter
    from twinbus.broker.ports.search import OnFound, SearchCriteria
    from twinbus.broker.work_budget import WorkBudget
    from twinbus.store.protocol import Row

READ_BATCH_SIZE: Final = 250
READ_BATCH_BYTES: Final = 262_144
MAX_READS: Final = 100
"""Maximum number of reads for one request: ranges of deleted messages take reads, too."""
VIEW_COST: Final = 5
"""Cost of finding the properties of one message, in units of the work budget."""


class MessageSearch:
    """One search in a fragment."""

    def __init__(
        self,
        fragment: Fragment,
        criteria: SearchCriteria,
        work_budget: WorkBudget,
        limiter: ReadLimiter,
        on_found: OnFound,
    ) -> None:
        """Create a search; `on_found` is called once, with the result or an error."""
        self._fragment = fragment
        self._criteria = criteria
        self._work_budget = work_budget
        self._limiter = limiter
        self._on_found = on_found
        self._incarnation = fragment.incarnation
        self._read_count = 0
        self._found_bytes = 0
        self._rows: list[SequencedRecord] = []
        """Messages that were read and not evaluated yet, in reverse order: the next message to evaluate is the last."""
        self._read_up_to = 0
        """The first sequence number that was not read."""
        self._result = SearchResult(max(criteria.from_sequence, fragment.message_table.first_sequence))

    def start(self) -> None:
        """Begin to search. Raise StoreUnavailable if the store does not work."""
        self._check_available()
        self.advance()

    def advance(self) -> None:
        """Begin to read; if too many searches are running in the process, the limiter calls `advance` again later."""
        if not self._limiter.acquire(self):
            return
        try:
            self._check_available()
        except ServiceBusError as error:
            self._finish(error)
        else:
            self._read()

    def _check_available(self) -> None:
        self._fragment.commit_log.check_available()
        self._fragment.check_loaded()
        if self._incarnation != self._fragment.incarnation:
            raise StoreUnavailable("the store failed during the search")

    def _finish(self, error: ServiceBusError | None) -> None:
        self._limiter.release(self)
        self._on_found(error if error is not None else self._result)

    # --- reading ------------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        """Read the next messages of all states, or finish."""
        table, result, states = self._fragment.message_table, self._result, self._criteria.states
        committed = table.committed
        result.end_sequence = committed.next_sequence
        kinds = (
            (ACTIVE, table.active_prefix, table.low_watermark, committed.active_count),
            (DEFERRED, table.deferred_prefix, table.first_sequence, committed.deferred_count),
            (SCHEDULED, table.scheduled_prefix, table.first_sequence, committed.scheduled_count),
        )
        ranges = [(prefix, low) for state, prefix, low, count in kinds if state in states and count]
        start = max(result.next_sequence, min([low for _, low in ranges], default=committed.next_sequence))
        if self._is_enough or start >= committed.next_sequence:
            if not self._is_enough:
                result.next_sequence = max(result.next_sequence, committed.next_sequence)
            self._finish(None)
            return
        self._read_count += 1
        end = min(committed.next_sequence, start + MAX_SCAN_SPAN)
        rows: list[Row] = []
        full_ends: list[int] = []
        pending_count = len(ranges)
        watched_read = self._fragment.commit_log.watch_read(
            lambda error: self._finish(error) if error is not None else self._on_read(rows, min([*full_ends, end]))
        )

        def on_rows(read: list[Row] | StoreError) -> None:
            nonlocal pending_count
            if not watched_read.is_pending:
                return
            if isinstance(read, StoreError):
                watched_read.finish(StoreUnavailable(f"the store is unavailable: {read}"))
                return
            pending_count -= 1
            rows.extend(read)
            if len(read) == READ_BATCH_SIZE or sum([len(record) for _, record in read]) > READ_BATCH_BYTES:
                full_ends.append(sequence_of_key(read[-1][0]) + 1)  # more messages in this state may follow
            if not pending_count:
                watched_read.finish(None)

        for prefix, _ in ranges:
            self._fragment.scan(
                prefix + pack_sequence(start),
                prefix + pack_sequence(end),
                on_rows,
                limit=READ_BATCH_SIZE,
                max_bytes=READ_BATCH_BYTES,
            )

    @property
    def _is_enough(self) -> bool:
        criteria, result = self._criteria, self._result
        return (
            len(result.messages) >= criteria.max_messages
            or result.scanned_count >= criteria.max_scanned
            or self._found_bytes >= criteria.max_bytes
            or self._read_count >= MAX_READS
        )

    def _on_read(self, rows: list[Row], end_sequence: int) -> None:
        """Evaluate the messages below `end_sequence`, up to which all states were read."""
        by_sequence = {sequence_of_key(key): record for key, record in rows}
        self._rows = sorted([item for item in by_sequence.items() if item[0] < end_sequence], reverse=True)
        self._read_up_to = end_sequence
        if self._rows:
            self._work_budget.run_in_next_turns(self._evaluate)
        else:
            self._continue()

    # --- evaluating ---------------------------------------------------------------------------------------------------

    def _evaluate(self, budget: int) -> int:
        """Evaluate messages that were read, until `budget` is used up; return the remaining units."""
        try:
            self._check_available()
            while self._rows and budget > 0 and not self._is_enough:
                sequence, record = self._rows.pop()
                budget -= self._evaluate_one(sequence, self._fragment.redelivery.as_delivered(sequence, record))
        except ServiceBusError as error:
            self._finish(error)
            return budget
        except Exception:
            self._finish(InternalFault("the filter could not be evaluated: see the server's log"))
            raise
        if self._rows and not self._is_enough:
            self._work_budget.run_in_next_turns(self._evaluate)
        else:
            self._continue()
        return budget

    def _evaluate_one(self, sequence: int, record: bytes) -> int:
        """Add a message to the result if it matches; return the cost."""
        result, rule, cost = self._result, self._criteria.rule, VIEW_COST
        is_match = True
        if rule is not None:
            view = MessageView(record, sequence)
            try:
                is_match = rule.matches(view)
            except FilterError:
                is_match = False
            cost += rule.cost.fixed + (rule.cost.variable * min(len(record), FULL_SIZE) >> SIZE_BITS)
            cost += view.scanned_properties >> PAIR_BITS
        result.scanned_count += 1
        result.next_sequence = sequence + 1
        if is_match:
            message = render_unlocked(record, sequence)
            result.messages.append(message)
            self._found_bytes += len(message)
        return cost

    def _continue(self) -> None:
        """Read on after all messages in memory were evaluated, or finish."""
        if not self._rows:
            self._result.next_sequence = self._read_up_to
        self._rows.clear()
        self._read()
