"""`<entity>/$management`: what a client asks of an entity beside sending and receiving.

Owns: which operations there are, and the right that each needs. docs/management.md lists them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twinbus.model.errors import InvalidOperation, NotImplementedHere, ServiceBusError
from twinbus.server.amqp.management import deletion, messages, rules, sessions, transactional_operations
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
    "twinbus:complete-up-to": (Right.LISTEN, deletion.complete_up_to),
    "twinbus:fragments": (Right.LISTEN, deletion.list_fragments),
    WITHHOLD_OPERATION: (Right.LISTEN, messages.withhold),
}
"""Each with the right it needs."""
NEEDS_SEND_RIGHT: Final = frozenset({"twinbus:resubmit"})
"""What brings messages into the queue needs the right to send to it, too."""


ALLOWED_IN_OUTAGE: Final = frozenset(
    {
        "com.microsoft:renew-lock",
        "com.microsoft:update-disposition",
        "com.microsoft:renew-session-lock",
        "com.microsoft:set-session-state",
        "com.microsoft:get-session-state",
    }
)
"""What goes on in an outage that is rehearsed: whoever has messages can finish with them."""
TRANSACTIONAL_OPERATIONS: Final[dict[str, TransactionalOperation]] = {
    "com.microsoft:schedule-message": transactional_operations.schedule,
    "com.microsoft:update-disposition": transactional_operations.update_disposition,
}
TOPIC_OPERATIONS: Final = frozenset({"com.microsoft:schedule-message", "com.microsoft:cancel-scheduled-message"})
"""What can be asked of a topic: nothing is received from it."""


LARGE_RESPONSES: Final[dict[str, int]] = {
    PEEK_OPERATION: messages.MAX_PEEK_BYTES,
    "com.microsoft:receive-by-sequence-number": 1_048_576,
    "com.microsoft:get-session-state": 262_144,
    "com.microsoft:get-message-sessions": 131_072,
    "com.microsoft:enumerate-rules": 131_072,
}
"""Operations whose answers may be large, with the bytes that one may have, about."""


class ManagementNode:
    """The `$management` of one entity or dead-letter queue, for one connection."""

    def __init__(self, path: str, context: RequestContext, grants: ConnectionGrants, counter: UsageCounter) -> None:
        """For whoever has the rights that each operation needs; what is asked is counted in `counter`."""
        self._counter = counter
        self._path = path
        self._context = context
        self._grants = grants

    def estimate_response_bytes(self, request: Request) -> int:
        """How many bytes the answer to a request may have, about; what is gathered for it included."""
        operation = request.properties.get("operation") if isinstance(request.properties, dict) else None
        weight = (
            LARGE_RESPONSES.get(operation, DEFAULT_RESPONSE_BYTES)
            if isinstance(operation, str)
            else DEFAULT_RESPONSE_BYTES
        )
        entity = self._context.entity
        return weight * len(entity.parts) if operation == PEEK_OPERATION else weight

    def handle(self, request: Request, on_reply: OnReply) -> None:
        """Do what is asked."""
        operation = request.required_text("operation")
        found = OPERATIONS.get(operation)
        if found is None:
            raise NotImplementedHere(f"$management does not know {operation!r:.80}; it knows {', '.join(OPERATIONS)}")
        right, act = found
        subject = self._context
        self._grants.check(right, f"{self._path}/$management")  # the SDK for JavaScript has a token for this node alone
        if operation in NEEDS_SEND_RIGHT:
            self._grants.check(Right.SEND, subject.entity.path)

        def answer(response: Response) -> None:
            count_operation(self._counter, operation, request.body, response.body)
            on_reply(response)

        try:
            self._run(operation, act, request, answer)
        except ServiceBusError:
            count_operation(self._counter, operation, request.body, None)
            raise

    def _run(self, operation: str, handler: ManagementOperation, request: Request, on_reply: OnReply) -> None:
        subject = self._context
        if operation not in TOPIC_OPERATIONS:
            _ = subject.receivable  # raises for a topic
        if operation not in ALLOWED_IN_OUTAGE:
            subject.entity.check_outage()
        subject.entity.record_access(subject.namespace.clock)
        arguments = Arguments(request.body, max_id_characters=subject.namespace.limits.max_id_characters)
        if operation == WITHHOLD_OPERATION:
            subject.mark_withholding()
        if request.transaction is None:
            divided = PARTITIONED_OPERATIONS.get(operation) if subject.entity.is_partitioned else None
            if divided is not None:
                divided(subject, arguments, on_reply)
            else:
                run_operation(handler, subject, arguments, on_reply)
        elif operation in TRANSACTIONAL_OPERATIONS:
            TRANSACTIONAL_OPERATIONS[operation](subject, arguments, request.transaction, on_reply)
        else:
            raise InvalidOperation(
                f"{operation} cannot be part of a transaction; {' and '.join(TRANSACTIONAL_OPERATIONS)} can"
            )

    def error_response(self, error: ServiceBusError) -> Response:
        """Status, condition and text."""
        return failure(error)
