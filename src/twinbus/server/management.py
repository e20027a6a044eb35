"""`<entity>/$management`: what a client asks of an entity beside sending and receiving.

Owns: which operations there are, and the right that each needs. docs/management.md lists them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twinbus.model.errors import InvalidOperation, NotImplementedHere, ServiceBusError
from twinbus.server.keys import Right
from twinbus.server.metering.operations import count_operation
from twinbus.server.operations import messages, removals, rules, sessions, transacted, withholding
from twinbus.server.operations.arguments import Arguments
from twinbus.server.operations.carrying import carry_out
from twinbus.server.operations.division import DIVIDED
from twinbus.server.operations.outcomes import failure
from twinbus.server.requests import ANSWER_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from twinbus.broker.namespace import Transaction
    from twinbus.server.access import Access
    from twinbus.server.metering.counter import Counter
    from twinbus.server.operations.subject import Subject
    from twinbus.server.requests import Reply, Request, Response

    Operation: TypeAlias = Callable[[Subject, Arguments, Reply], None]
    TransactedOperation: TypeAlias = Callable[[Subject, Arguments, Transaction, Reply], None]

PEEK: Final = "com.microsoft:peek-message"
WITHHOLD: Final = "twinbus:withhold"
OPERATIONS: Final[dict[str, tuple[Right, Operation]]] = {
    PEEK: (Right.LISTEN, messages.peek),
    "com.microsoft:schedule-message": (Right.SEND, messages.schedule),
    "com.microsoft:cancel-scheduled-message": (Right.SEND, messages.cancel),
    "com.microsoft:renew-lock": (Right.LISTEN, messages.renew_lock),
    "com.microsoft:receive-by-sequence-number": (Right.LISTEN, messages.receive_deferred),
    "com.microsoft:update-disposition": (Right.LISTEN, messages.update_disposition),
    "com.microsoft:renew-session-lock": (Right.LISTEN, sessions.renew),
    "com.microsoft:set-session-state": (Right.LISTEN, sessions.set_state),
    "com.microsoft:get-session-state": (Right.LISTEN, sessions.get_state),
    "com.microsoft:get-message-sessions": (Right.LISTEN, sessions.list_sessions),
    "com.microsoft:batch-delete-messages": (Right.LISTEN, removals.batch_delete),
    "com.microsoft:add-rule": (Right.LISTEN, rules.add),
    "com.microsoft:remove-rule": (Right.LISTEN, rules.remove),
    "com.microsoft:enumerate-rules": (Right.LISTEN, rules.enumerate_rules),
    "twinbus:purge": (Right.LISTEN, removals.purge),
    "twinbus:delete-by-sequence-number": (Right.LISTEN, removals.delete_numbers),
    "twinbus:resubmit": (Right.LISTEN, removals.resubmit),
    "twinbus:complete-up-to": (Right.LISTEN, removals.complete_up_to),
    "twinbus:fragments": (Right.LISTEN, removals.list_fragments),
    WITHHOLD: (Right.LISTEN, withholding.withhold),
}
"""Each with the right it needs."""
SENDS_TOO: Final = frozenset({"twinbus:resubmit"})
"""What brings messages into the queue needs the right to send to it, too."""


HOLDERS_NEED: Final = frozenset(
    {
        "com.microsoft:renew-lock",
        "com.microsoft:update-disposition",
        "com.microsoft:renew-session-lock",
        "com.microsoft:set-session-state",
        "com.microsoft:get-session-state",
    }
)
"""What goes on in an outage that is rehearsed: whoever has messages can finish with them."""
IN_TRANSACTIONS: Final[dict[str, TransactedOperation]] = {
    "com.microsoft:schedule-message": transacted.schedule,
    "com.microsoft:update-disposition": transacted.update_disposition,
}
FOR_TOPICS: Final = frozenset({"com.microsoft:schedule-message", "com.microsoft:cancel-scheduled-message"})
"""What can be asked of a topic: nothing is received from it."""


LARGE_ANSWERS: Final[dict[str, int]] = {
    PEEK: messages.PEEK_MAX_BYTES,
    "com.microsoft:receive-by-sequence-number": 1_048_576,
    "com.microsoft:get-session-state": 262_144,
    "com.microsoft:get-message-sessions": 131_072,
    "com.microsoft:enumerate-rules": 131_072,
}
"""Operations whose answers may be large, with the bytes that one may have, about."""


class Management:
    """The `$management` of one entity or dead-letter queue, for one connection."""

    def __init__(self, path: str, subject: Subject, access: Access, counter: Counter) -> None:
        """For whoever has the rights that each operation needs; what is asked is counted in `counter`."""
        self._counter = counter
        self._path = path
        self._subject = subject
        self._access = access

    def weigh(self, request: Request) -> int:
        """How many bytes the answer to a request may have, about; what is gathered for it included."""
        operation = request.properties.get("operation") if isinstance(request.properties, dict) else None
        weight = LARGE_ANSWERS.get(operation, ANSWER_BYTES) if isinstance(operation, str) else ANSWER_BYTES
        entity = self._subject.entity
        return weight * len(entity.parts) if operation == PEEK else weight

    def handle(self, request: Request, reply: Reply) -> None:
        """Do what is asked."""
        operation = request.text("operation")
        found = OPERATIONS.get(operation)
        if found is None:
            raise NotImplementedHere(f"$management does not know {operation!r:.80}; it knows {', '.join(OPERATIONS)}")
        right, act = found
        subject = self._subject
        self._access.check(right, f"{self._path}/$management")  # the SDK for JavaScript has a token for this node alone
        if operation in SENDS_TOO:
            self._access.check(Right.SEND, subject.entity.path)

        def answer(response: Response) -> None:
            count_operation(self._counter, operation, request.body, response.body)
            reply(response)

        try:
            self._act(operation, act, request, answer)
        except ServiceBusError:
            count_operation(self._counter, operation, request.body, None)
            raise

    def _act(self, operation: str, act: Operation, request: Request, reply: Reply) -> None:
        subject = self._subject
        if operation not in FOR_TOPICS:
            _ = subject.receivable  # raises for a topic
        if operation not in HOLDERS_NEED:
            subject.entity.check_outage()
        subject.entity.note_use(subject.namespace.clock)
        arguments = Arguments(request.body, max_id_characters=subject.namespace.limits.max_id_characters)
        if operation == WITHHOLD:
            subject.note_withholding()
        if request.transaction is None:
            divided = DIVIDED.get(operation) if subject.entity.is_partitioned else None
            if divided is not None:
                divided(subject, arguments, reply)
            else:
                carry_out(act, subject, arguments, reply)
        elif operation in IN_TRANSACTIONS:
            IN_TRANSACTIONS[operation](subject, arguments, request.transaction, reply)
        else:
            raise InvalidOperation(f"{operation} cannot be part of a transaction; {' and '.join(IN_TRANSACTIONS)} can")

    def refuse(self, error: ServiceBusError) -> Response:
        """Status, condition and text."""
        return failure(error)
