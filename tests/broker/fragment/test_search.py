"""A search reads and evaluates a bounded number of messages per turn, and ends with one result or error."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.broker.slow_rules import WORK_UNITS, SlowRuleHarness
from tests.broker.topic_harness import sql_rule
from twinbus.broker.filters.rule import compile_rule
from twinbus.broker.ports.search import STATES, SearchCriteria, SearchResult
from twinbus.model.errors import StoreUnavailable

if TYPE_CHECKING:
    from twinbus.model.errors import ServiceBusError

SLOW = " OR ".join(["n > 1000"] * WORK_UNITS)
"""A filter that takes a turn for each message."""


class SearchHarness(SlowRuleHarness):
    """A queue with messages, and the results of searches in it."""

    def __init__(self, count: int) -> None:
        super().__init__()
        for number in range(count):
            self.send(b"%d" % number, n=number)
        self.run_turns()
        self.results: list[SearchResult | ServiceBusError] = []

    def search(self, expression: str, *, max_scanned: int = 1_000, max_messages: int = 1_000) -> None:
        rule = compile_rule(sql_rule(expression))
        criteria = SearchCriteria(0, STATES, rule, max_messages, max_scanned, 1_000_000)
        namespace = self.namespace
        fragment = self.queue.parts[0].main.local
        fragment.search(criteria, namespace.work_budget, namespace.search_limiter, self.results.append)

    @property
    def result(self) -> SearchResult:
        [result] = self.results
        assert isinstance(result, SearchResult)
        return result


def test_other_clients_are_served_while_a_filter_is_evaluated() -> None:
    harness = SearchHarness(10)
    harness.search(SLOW)
    sent = harness.send(b"light")
    harness.run_turn()
    assert (sent, harness.results) == ([None], [])
    assert harness.run_turns() >= 9
    assert harness.result.scanned_count >= 10
    assert harness.result.messages == []


def test_a_search_stops_after_the_messages_that_it_may_read_or_return() -> None:
    harness = SearchHarness(10)
    harness.search("n >= 0", max_scanned=4)
    harness.run_turns()
    assert (harness.result.scanned_count, harness.result.next_sequence) == (4, 5)
    assert not harness.result.is_finished
    harness.results.clear()
    harness.search("n >= 3", max_messages=2)
    harness.run_turns()
    assert (len(harness.result.messages), harness.result.next_sequence) == (2, 6)


def test_a_store_failure_ends_a_search_with_an_error() -> None:
    harness = SearchHarness(10)
    harness.search(SLOW)
    harness.run_turn()
    harness.commit_log.fail("input/output error")
    harness.run_turns()
    assert [type(result) for result in harness.results] == [StoreUnavailable]
    harness.reopen()
    harness.run_turns()
    harness.results.clear()
    harness.search("n >= 0")
    harness.run_turns()
    assert harness.result.scanned_count == 10


def test_searches_beyond_the_limit_of_the_process_wait_for_their_turn() -> None:
    harness = SearchHarness(3)
    for _ in range(7):
        harness.search(SLOW)
    harness.run_turn()
    assert harness.namespace.search_limiter.running_count == 4
    harness.run_turns()
    assert [type(result) for result in harness.results] == [SearchResult] * 7
    assert harness.namespace.search_limiter.running_count == 0
