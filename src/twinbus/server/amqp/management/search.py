"""The operation `twinbus:search`: messages for which a filter is true, page by page.

Owns: the arguments and the response of a search, and the compiled filters of recent searches. The search itself is in
`broker.fragment.message_search`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from twinbus.broker.filters.rule import CompiledRule, compile_rule
from twinbus.broker.namespace import Topic
from twinbus.broker.ports.fragment import SEQUENCE_FRAGMENT_SHIFT
from twinbus.broker.ports.search import SCHEDULED, STATES, SearchCriteria, SearchResult
from twinbus.model.errors import InvalidArgument, QuotaExceeded, ServiceBusError
from twinbus.model.rule import RuleDescription, SqlFilter
from twinbus.server.amqp.management.messages import MAX_PEEK_BYTES, MAX_PEEK_COUNT, without_body
from twinbus.server.amqp.management.responses import failure, success

if TYPE_CHECKING:
    from twinbus.server.amqp.management.arguments import Arguments
    from twinbus.server.amqp.management.request_context import RequestContext
    from twinbus.server.amqp.request_link import OnReply, Response

MAX_RESPONSE_BYTES: Final = MAX_PEEK_BYTES
DEFAULT_MAX_SCANNED: Final = 1_000
MAX_SCANNED: Final = 10_000
MAX_CACHED_FILTERS: Final = 64


def search(context: RequestContext, arguments: Arguments, on_reply: OnReply) -> None:
    """Return the next messages for which a filter is true, and where the next request continues."""
    criteria = parse_criteria(context, arguments)
    omits_bodies = arguments.boolean("omit-message-body")

    def on_found(result: SearchResult | ServiceBusError) -> None:
        if isinstance(result, ServiceBusError):
            on_reply(failure(result))
            return
        messages = [without_body(message) for message in result.messages] if omits_bodies else result.messages
        on_reply(
            success(
                {
                    "messages": [{"message": message} for message in messages],
                    "next-sequence-number": result.next_sequence,
                    "end-sequence-number": result.end_sequence,
                    "scanned": result.scanned_count,
                    "is-finished": result.is_finished,
                }
            )
        )

    namespace = context.namespace
    context.fragment.local.search(criteria, namespace.work_budget, namespace.search_limiter, on_found)


def parse_criteria(context: RequestContext, arguments: Arguments) -> SearchCriteria:
    """Return the criteria of a request. Raise InvalidArgument or QuotaExceeded for an invalid or expensive filter."""
    state = arguments.text_or_none("state")
    if state is not None and state not in STATES:
        raise InvalidArgument(f"state is {state!r:.60}; it must be one of {', '.join(STATES)}")
    states: tuple[str, ...] = STATES if state is None else (state,)
    if isinstance(context.entity, Topic):  # its messages are in its subscriptions
        states = tuple(each for each in states if each == SCHEDULED)
    expression = arguments.text_or_none("filter")
    return SearchCriteria(
        from_sequence=max(0, arguments.whole_number("from-sequence-number", minimum=-(2**63), default=0)),
        states=states,
        rule=None if expression is None else _compile(expression, context.namespace.limits.max_rule_cost),
        max_messages=min(arguments.whole_number("message-count", minimum=1, default=100), MAX_PEEK_COUNT),
        max_scanned=min(arguments.whole_number("max-scanned", minimum=1, default=DEFAULT_MAX_SCANNED), MAX_SCANNED),
        max_bytes=MAX_RESPONSE_BYTES,
    )


@lru_cache(maxsize=MAX_CACHED_FILTERS)
def _compile(expression: str, max_cost: int) -> CompiledRule:
    """Return a compiled filter, which is cached: each page of a search repeats the filter, and parsing takes long."""
    rule = compile_rule(RuleDescription(name="filter", filter=SqlFilter(expression=expression)))
    if rule.total_cost > max_cost:
        raise QuotaExceeded(
            f"the filter takes up to {rule.total_cost:,} units of work for a message, and a filter may take "
            f"{max_cost:,}: use fewer patterns with wildcards between their characters"
        )
    return rule


def empty_response(arguments: Arguments, *, unavailable_fragment: int | None = None) -> Response:
    """Return the response for a fragment that does not exist, or that does not respond."""
    position = arguments.whole_number("from-sequence-number", minimum=-(2**63), default=0)
    body: dict[str, object] = {
        "messages": [],
        "next-sequence-number": position,
        "end-sequence-number": position,
        "scanned": 0,
        "is-finished": True,
    }
    if unavailable_fragment is not None:
        body["unavailable-fragments"] = [unavailable_fragment]
    return success(body)


def continue_after(response: Response, fragment: int, fragment_count: int) -> Response:
    """Return the response of one of several fragments; after its end, the search continues in the next fragment."""
    body = response.body
    if isinstance(body, dict) and body.get("is-finished") and fragment + 1 < fragment_count:
        next_sequence = (fragment + 1) << SEQUENCE_FRAGMENT_SHIFT
        return success(body | {"next-sequence-number": next_sequence, "is-finished": False})
    return response
