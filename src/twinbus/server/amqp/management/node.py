"""`<entity>/$management`: the node for all operations on an entity except sending and receiving.

Owns: the table of operations, and the right that each operation needs. docs/management.md lists the operations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twinbus.model.errors import InvalidOperation, NotImplementedHere, ServiceBusError
from twinbus.server.amqp.management import deletion, messages, rules, search, sessions, transactional_operations
from twinbus.server.amqp.management.arguments import Arguments
from twinbus.server.amqp.management.fragment_routing import run_operation
from twinbus.server.amqp.management.partitioned_operations import PARTITIONED_OPERATIONS
from twinbus.server.amqp.management.responses import failure
from twinbus.server.amqp.request_link import DEFAULT_RESPONSE_BYTES
from twinbus.server.auth.keys import Right
from twinbus.server.usage.management_operations import count_operation

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from twinbus.broker.namespace import Transaction
    from twinbus.server.amqp.management.request_context import RequestContext
    from twinbus.server.amqp.request_link import OnReply, Request, Response
    from twinbus.server.auth.grants import ConnectionGrants
    from twinbus.server.usage.counter import UsageCounter

    ManagementOperation: TypeAlias = Callable[[RequestContext, Arguments, OnReply], None]
    TransactionalOperation: TypeAlias = Callable[[RequestContext, Arguments, Transaction, OnReply], None]

PEEK_OPERATION: Final = "com.microsoft:peek-message"
WITHHOLD_OPERATION: Final = "twinbus:withhold"
MOVE_OPERATION: Final = "twinbus:move"
SEARCH_OPERATION: Final = "twinbus:search"
OPERATIONS: Final[dict[str, tuple[Right, ManagementOperation]]] = {
    PEEK_OPERATION: (Right.LISTEN, messages.peek),
    "com.microsoft:schedule-message": (Right.SEND, messages.schedule),
    "com.microsoft:cancel-scheduled-message": (Right.SEND, messages.cancel_scheduled),
    "com.microsoft:renew-lock": (Right.LISTEN, messages.renew_lock),
    "com.microsoft:receive-by-sequence-number": (Right.LISTEN, messages.receive_deferred),
    "com.microsoft:update-disposition": (Right.LISTEN, messages.update_disposition),
    "com.microsoft:renew-session-lock": (Right.LISTEN, sessions.renew_session_lock),
    "com.microsoft:set-session-state": (Right.LISTEN, sessions.set_session_state),
    "com.microsoft:get-session-state": (Right.LISTEN, sessions.get_session_state),
    "com.microsoft:get-message-sessions": (Right.LISTEN, sessions.list_sessions),
    "com.microsoft:batch-delete-messages": (Right.LISTEN, deletion.batch_delete),
    "com.microsoft:add-rule": (Right.LISTEN, rules.add_rule),
    "com.microsoft:remove-rule": (Right.LISTEN, rules.remove_rule),
    "com.microsoft:enumerate-rules": (Right.LISTEN, rules.enumerate_rules),
    "twinbus:purge": (Right.LISTEN, deletion.purge),
    "twinbus:delete-by-sequence-number": (Right.LISTEN, deletion.delete_by_sequence_number),
    "twinbus:resubmit": (Right.LISTEN, deletion.resubmit),
    MOVE_OPERATION: (Right.LISTEN, deletion.move),
    SEARCH_OPERATION: (Right.LISTEN, search.search),
    "twinbus:complete-up-to": (Right.LISTEN, deletion.complete_up_to),
    "twinbus:fragments": (Right.LISTEN, deletion.list_fragments),
    WITHHOLD_OPERATION: (Right.LISTEN, messages.withhold),
}
"""All operations, with the rights they need."""
NEEDS_SEND_RIGHT: Final = frozenset({"twinbus:resubmit"})
"""Operations that also need the `Send` right, because they add messages to the queue."""


ALLOWED_IN_OUTAGE: Final = frozenset(
    {
        "com.microsoft:renew-lock",
        "com.microsoft:update-disposition",
        "com.microsoft:renew-session-lock",
        "com.microsoft:set-session-state",
        "com.microsoft:get-session-state",
    }
)
"""Operations that are allowed during a rehearsed outage, so that receivers can finish their locked messages."""
TRANSACTIONAL_OPERATIONS: Final[dict[str, TransactionalOperation]] = {
    "com.microsoft:schedule-message": transactional_operations.schedule,
    "com.microsoft:update-disposition": transactional_operations.update_disposition,
}
TOPIC_OPERATIONS: Final = frozenset(
    {"com.microsoft:schedule-message", "com.microsoft:cancel-scheduled-message", SEARCH_OPERATION}
)
"""Operations that are allowed on a topic, from which clients cannot receive; a topic holds scheduled messages."""


LARGE_RESPONSES: Final[dict[str, int]] = {
    PEEK_OPERATION: messages.MAX_PEEK_BYTES,
    SEARCH_OPERATION: search.MAX_RESPONSE_BYTES,
    "com.microsoft:receive-by-sequence-number": 1_048_576,
    "com.microsoft:get-session-state": 262_144,
    "com.microsoft:get-message-sessions": 131_072,
    "com.microsoft:enumerate-rules": 131_072,
}
"""Operations with large responses, and the estimated size of a response in bytes."""


class ManagementNode:
    """The node `$management` of one entity or dead-letter queue, for one connection."""

    def __init__(self, path: str, context: RequestContext, grants: ConnectionGrants, counter: UsageCounter) -> None:
        """Create the node. Operations need rights from `grants` and are counted in `counter`."""
        self._counter = counter
        self._path = path
        self._context = context
        self._grants = grants

    def estimate_response_bytes(self, request: Request) -> int:
        """Return the estimated size of a response, including the pages read from all fragments for it."""
        operation = request.properties.get("operation") if isinstance(request.properties, dict) else None
        size = (
            LARGE_RESPONSES.get(operation, DEFAULT_RESPONSE_BYTES)
            if isinstance(operation, str)
            else DEFAULT_RESPONSE_BYTES
        )
        entity = self._context.entity
        return size * len(entity.parts) if operation == PEEK_OPERATION else size

    def handle(self, request: Request, on_reply: OnReply) -> None:
        """Execute a request. Raise a ServiceBusError if the request is invalid or the caller lacks the right."""
        operation = request.required_text("operation")
        entry = OPERATIONS.get(operation)
        if entry is None:
            raise NotImplementedHere(f"$management does not support {operation!r:.80}, only {', '.join(OPERATIONS)}")
        right, operation_handler = entry
        context = self._context
        self._grants.check(
            right, f"{self._path}/$management"
        )  # the SDK for JavaScript may have a token for this node only
        if operation in NEEDS_SEND_RIGHT:
            self._grants.check(Right.SEND, context.entity.path)

        def count_and_reply(response: Response) -> None:
            count_operation(self._counter, operation, request.body, response.body)
            on_reply(response)

        try:
            self._run(operation, operation_handler, request, count_and_reply)
        except ServiceBusError:
            count_operation(self._counter, operation, request.body, None)
            raise

    def _run(self, operation: str, handler: ManagementOperation, request: Request, on_reply: OnReply) -> None:
        context = self._context
        if operation not in TOPIC_OPERATIONS:
            _ = context.receivable  # raises for a topic
        if operation not in ALLOWED_IN_OUTAGE:
            context.entity.check_outage()
        context.entity.record_access(context.namespace.clock)
        arguments = Arguments(request.body, max_id_characters=context.namespace.limits.max_id_characters)
        if operation == WITHHOLD_OPERATION:
            context.mark_withholding()
        elif operation == MOVE_OPERATION:
            self._grants.check(Right.SEND, arguments.text("destination"))
        if request.transaction is None:
            partitioned_operation = PARTITIONED_OPERATIONS.get(operation) if context.entity.is_partitioned else None
            if partitioned_operation is not None:
                partitioned_operation(context, arguments, on_reply)
            else:
                run_operation(handler, context, arguments, on_reply)
        elif operation in TRANSACTIONAL_OPERATIONS:
            TRANSACTIONAL_OPERATIONS[operation](context, arguments, request.transaction, on_reply)
        else:
            raise InvalidOperation(
                f"{operation} cannot be part of a transaction; {' and '.join(TRANSACTIONAL_OPERATIONS)} can"
            )

    def error_response(self, error: ServiceBusError) -> Response:
        """Return the response to a request that failed: status, condition and text."""
        return failure(error)
