"""Requests to the `$management` of a partitioned entity: each is divided into requests to its fragments.

Owns: which fragments are asked for what, and how their answers become one. What a fragment does with its request is
what a plain entity does. What is "all or none" on a plain entity is so within a fragment; over several it is looked
before whether all of it can be done, where that can be.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from twinbus.amqp.types import Array, Int, Timestamp
from twinbus.broker.ports.callbacks import when_all
from twinbus.broker.ports.fragment import TOKEN_FRAGMENT_BYTE, fragment_of_sequence
from twinbus.broker.ports.incoming_batch import IncomingBatch, ValidationPolicy
from twinbus.broker.ports.settlement import Disposition, lock_lost_error
from twinbus.model.errors import InvalidArgument, InvalidOperation, ServiceBusError
from twinbus.model.partition_key import fragment_of
from twinbus.server.amqp.management import deletion, messages, sessions
from twinbus.server.amqp.management.fragment_routing import run_operation
from twinbus.server.amqp.management.partitioned_peek import PartitionedPeek
from twinbus.server.amqp.management.responses import failure, no_content, success

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import TypeAlias

    from twinbus.broker.ports.callbacks import OnDone
    from twinbus.server.amqp.management.arguments import Arguments
    from twinbus.server.amqp.management.request_context import RequestContext
    from twinbus.server.amqp.request_link import OnReply, Response

    ManagementOperation: TypeAlias = Callable[[RequestContext, Arguments, OnReply], None]
    MergeResponses: TypeAlias = Callable[[Mapping[int, Response]], Response]
    OnAllReplies: TypeAlias = Callable[[Mapping[int, Response]], None]

_STATUS_OK: Final = 200
_STATUS_NO_CONTENT: Final = 204
_PEEK_LOCK: Final = 1


def _run_and_merge(
    context: RequestContext,
    operation: ManagementOperation,
    requests: Mapping[int, Arguments],
    merge_responses: MergeResponses,
    on_reply: OnReply,
) -> None:
    """Have something done in several fragments, each with arguments of its own, and answer when all have."""
    _run_all(context, operation, requests, lambda answers: on_reply(merge_responses(answers)))


def _run_all(
    context: RequestContext,
    operation: ManagementOperation,
    requests: Mapping[int, Arguments],
    on_all_replies: OnAllReplies,
) -> None:
    answers: dict[int, Response] = {}

    def answered(number: int, response: Response) -> None:
        answers[number] = response
        if len(answers) == len(requests):
            on_all_replies({number: answers[number] for number in requests})

    for number, arguments in requests.items():
        try:
            run_operation(operation, context.per_fragment[number], arguments, partial(answered, number))
        except ServiceBusError as error:
            answered(number, failure(error))


def first_failure(responses: Mapping[int, Response]) -> Response | None:
    """The first of several answers that says no."""
    bad = (one for one in responses.values() if one.properties["statusCode"] not in (_STATUS_OK, _STATUS_NO_CONTENT))
    return next(bad, None)


def _merge_success(responses: Mapping[int, Response]) -> Response:
    return first_failure(responses) or success({})


# --- by sequence number -----------------------------------------------------------------------------------------------


def _split_by_sequence_number(context: RequestContext, arguments: Arguments) -> dict[int, Arguments]:
    """The arguments of each fragment that some of the sequence numbers are of."""
    numbers: dict[int, list[int]] = {}
    for number in arguments.sequence_numbers():
        fragment = fragment_of_sequence(number)
        numbers.setdefault(fragment if fragment < len(context.per_fragment) else 0, []).append(number)
    return {fragment: arguments.with_changes(**{"sequence-numbers": some}) for fragment, some in numbers.items()}


def _cancel(context: RequestContext, arguments: Arguments, on_reply: OnReply) -> None:
    """All of them, or none: where they are of several fragments, it is looked first whether all are there."""
    _ = context.sendable  # raises for a subscription
    requests = _split_by_sequence_number(context, arguments)

    def found(response: Response) -> None:
        if first_failure({0: response}) is not None:
            on_reply(response)
        else:
            _run_and_merge(context, messages.cancel_scheduled, requests, _merge_success, on_reply)

    _run_and_merge(context, messages.find_scheduled, requests, _merge_success, found)


def _delete_by_sequence_number(context: RequestContext, arguments: Arguments, on_reply: OnReply) -> None:
    _run_and_merge(
        context,
        deletion.delete_by_sequence_number,
        _split_by_sequence_number(context, arguments),
        _merge_sequence_numbers,
        on_reply,
    )


def _resubmit(context: RequestContext, arguments: Arguments, on_reply: OnReply) -> None:
    deletion.check_resubmission(context, arguments)
    if arguments.has("message"):
        _check_same_fragment(context, arguments)
    _run_and_merge(
        context, deletion.resubmit, _split_by_sequence_number(context, arguments), _merge_sequence_numbers, on_reply
    )


def _check_same_fragment(context: RequestContext, arguments: Arguments) -> None:
    """InvalidOperation if a message is changed so that its key leads elsewhere: nobody would look where it is then."""
    terms, parcel, now_ms = context.entity.validation_policy, IncomingBatch(), context.namespace.clock.wall_ms()
    wanted = ValidationPolicy(
        requires_session=terms.requires_session, detects_duplicates=terms.detects_duplicates, is_partitioned=True
    )
    context.namespace.intake.add_to(parcel, arguments.binary("message"), 0, now_ms, wanted)
    key = next(iter(parcel.partition_keys), None)
    (number,) = arguments.sequence_numbers()
    if key is not None and fragment_of(key) != fragment_of_sequence(number):
        raise InvalidOperation(
            f"'{context.path}' is partitioned, and the new contents of message {number} have a session id, partition "
            "key or message id of another fragment: send them as a new message, and delete this one"
        )


def _merge_sequence_numbers(responses: Mapping[int, Response]) -> Response:
    bad = first_failure(responses)
    if bad is not None:
        return bad
    numbers = [number for one in responses.values() for number in _response_items(one, "sequence-numbers")]
    return success({"sequence-numbers": Array(int, numbers)})


def _response_items(response: Response, name: str) -> list[object]:
    found = response.body.get(name) if isinstance(response.body, dict) else None
    return list(found.items) if isinstance(found, Array) else list(found or ())


def _receive_deferred(context: RequestContext, arguments: Arguments, on_reply: OnReply) -> None:
    """All of them, or none: where one fragment cannot give what it is asked for, the others take back what they gave.

    So messages that are to be deleted are locked first, and deleted when all are.
    """
    session = arguments.session()
    if session is not None and context.fragment.has_sessions:  # what is not in its fragment is not its own
        run_operation(messages.receive_deferred, context.per_fragment[fragment_of(session)], arguments, on_reply)
        return
    requests = _split_by_sequence_number(context, arguments)
    mode = arguments.whole_number("receiver-settle-mode", minimum=0, default=_PEEK_LOCK)
    deletes = mode == 0 and len(requests) > 1
    if deletes:
        requests = {
            number: one.with_changes(**{"receiver-settle-mode": _PEEK_LOCK}) for number, one in requests.items()
        }

    def taken(answers: Mapping[int, Response]) -> None:
        bad = first_failure(answers)
        given = {number: _response_items(one, "messages") for number, one in answers.items()}
        items = [item for some in given.values() for item in some]
        if bad is not None:
            _settle_all(context, Disposition.RELEASE, given, lambda _: on_reply(bad))
        elif not deletes:
            on_reply(success({"messages": items}))
        else:
            bare = [{"message": item["message"]} for item in items if isinstance(item, dict)]
            deleted = success({"messages": bare})
            _settle_all(
                context, Disposition.COMPLETE, given, lambda error: on_reply(failure(error) if error else deleted)
            )

    _run_all(context, messages.receive_deferred, requests, taken)


def _settle_all(
    context: RequestContext, disposition: Disposition, received: Mapping[int, list[object]], on_done: OnDone
) -> None:
    """Settle what several fragments gave under locks."""
    locked = {
        number: [item["lock-token"].bytes for item in items if isinstance(item, dict)]
        for number, items in received.items()
        if items
    }
    told = when_all(len(locked), on_done)
    for number, tokens in locked.items():
        fragment = context.per_fragment[number].fragment
        numbers = fragment.lock_numbers(tokens)
        try:
            if len(fragment.settlement.settle(disposition, numbers, told, {})) == len(numbers):
                told(lock_lost_error())  # nobody else tells it
        except ServiceBusError as error:
            told(error)
    if not locked:
        on_done(None)


# --- by lock ----------------------------------------------------------------------------------------------------------


def split_by_lock_token(context: RequestContext, arguments: Arguments) -> dict[int, Arguments]:
    """The arguments of each fragment that some of the lock tokens are of. MessageLockLost if one is of none."""
    tokens: dict[int, list[object]] = {}
    for token in arguments.lock_tokens():
        number = token.bytes[TOKEN_FRAGMENT_BYTE]
        if number >= len(context.per_fragment):
            raise lock_lost_error()
        tokens.setdefault(number, []).append(token)
    return {number: arguments.with_changes(**{"lock-tokens": some}) for number, some in tokens.items()}


def _renew_lock(context: RequestContext, arguments: Arguments, on_reply: OnReply) -> None:
    messages.check_lock_renewal(context)
    requests = split_by_lock_token(context, arguments)
    for number, one in requests.items():
        messages.held_lock_numbers(context.per_fragment[number], one)
    order = [token.bytes for token in arguments.lock_tokens()]

    def merge(answers: Mapping[int, Response]) -> Response:
        bad = first_failure(answers)
        if bad is not None:
            return bad
        times = {
            token.bytes: time
            for number, one in requests.items()
            for token, time in zip(one.lock_tokens(), _response_items(answers[number], "expirations"), strict=True)
        }
        return success({"expirations": Array(Timestamp, [times[token] for token in order])})

    _run_and_merge(context, messages.renew_lock, requests, merge, on_reply)


def _update_disposition(context: RequestContext, arguments: Arguments, on_reply: OnReply) -> None:
    requests = split_by_lock_token(context, arguments)
    for number, one in requests.items():
        messages.held_lock_numbers(context.per_fragment[number], one)
    _run_and_merge(context, messages.update_disposition, requests, _merge_success, on_reply)


# --- by session -------------------------------------------------------------------------------------------------------


def _route_by_session(operation: ManagementOperation) -> ManagementOperation:
    """What is asked of one session is asked of the fragment that it is in."""

    def asked(subject: RequestContext, arguments: Arguments, reply: OnReply) -> None:
        session = arguments.session()
        run_operation(
            operation, subject.per_fragment[fragment_of(session) if session is not None else 0], arguments, reply
        )

    return asked


def _list_sessions(context: RequestContext, arguments: Arguments, on_reply: OnReply) -> None:
    """Fragment by fragment; those that come before what is asked for are counted again each time."""
    context.check_has_sessions()
    skip = arguments.whole_number("skip", minimum=0, default=0)
    top = min(
        arguments.whole_number("top", minimum=1, default=sessions.MAX_LISTED_SESSIONS), sessions.MAX_LISTED_SESSIONS
    )
    found: list[object] = []
    passed = 0

    def ask(number: int, at: int) -> None:
        if number == len(context.per_fragment) or len(found) == top:
            full: dict[str, object] = {"skip": Int(skip + len(found)), "sessions-ids": Array(str, found)}
            on_reply(success(full) if found else no_content())
            return

        def listed(response: Response) -> None:
            nonlocal passed
            if first_failure({0: response}) is not None:
                on_reply(response)
                return
            names = _response_items(response, "sessions-ids")
            for name in names:
                passed += 1
                if passed > skip and len(found) < top:
                    found.append(name)
            if len(names) < sessions.MAX_LISTED_SESSIONS:
                ask(number + 1, 0)
            else:
                ask(number, at + len(names))

        page = arguments.with_changes(skip=at, top=sessions.MAX_LISTED_SESSIONS)
        try:
            run_operation(sessions.list_sessions, context.per_fragment[number], page, listed)
        except ServiceBusError as error:
            on_reply(failure(error))

    ask(0, 0)


# --- everywhere -------------------------------------------------------------------------------------------------------


def _peek(context: RequestContext, arguments: Arguments, on_reply: OnReply) -> None:
    session = arguments.session()
    if session is not None and context.fragment.has_sessions:
        run_operation(messages.peek, context.per_fragment[fragment_of(session)], arguments, on_reply)
    else:
        PartitionedPeek(context, arguments, on_reply).start()


def _batch_delete(context: RequestContext, arguments: Arguments, on_reply: OnReply) -> None:
    """From one fragment after the other, until there are enough."""
    most = min(arguments.whole_number("message-count", minimum=1), deletion.MAX_BATCH_DELETE)
    removed = 0

    def ask(number: int) -> None:
        if number == len(context.per_fragment) or removed == most:
            count: dict[str, object] = {"message-count": Int(removed)}
            on_reply(success(count) if removed else no_content(count))
            return

        def told(response: Response) -> None:
            nonlocal removed
            if first_failure({0: response}) is not None and not removed:
                on_reply(response)
                return
            some = response.body.get("message-count") if isinstance(response.body, dict) else 0
            removed += some if isinstance(some, int) else 0
            ask(number + 1)

        try:
            page = arguments.with_changes(**{"message-count": most - removed})
            run_operation(deletion.batch_delete, context.per_fragment[number], page, told)
        except ServiceBusError as error:
            told(failure(error))

    ask(0)


def _purge(context: RequestContext, arguments: Arguments, on_reply: OnReply) -> None:
    everywhere = dict.fromkeys(range(len(context.per_fragment)), arguments)
    _run_and_merge(context, deletion.purge, everywhere, _merge_sums, on_reply)


def _merge_sums(responses: Mapping[int, Response]) -> Response:
    bad = first_failure(responses)
    if bad is not None:
        return bad
    bodies = [one.body for one in responses.values() if isinstance(one.body, dict)]
    return success({name: sum(body[name] for body in bodies) for name in bodies[0]})


def _complete_up_to(context: RequestContext, arguments: Arguments, on_reply: OnReply) -> None:
    """The sequence number says of which fragment it is; who names that as well has to name the same."""
    implied = fragment_of_sequence(arguments.whole_number("sequence-number", minimum=0))
    number = arguments.whole_number("fragment", minimum=0, default=implied)
    if number >= len(context.per_fragment) or implied not in (number, 0):
        raise InvalidArgument(
            f"fragment is {number}, and sequence-number one of fragment {implied}; there are "
            f"{len(context.per_fragment)}"
        )
    run_operation(
        deletion.complete_up_to, context.per_fragment[number], arguments.with_changes(fragment=None), on_reply
    )


def _list_fragments(context: RequestContext, arguments: Arguments, on_reply: OnReply) -> None:
    def merge(answers: Mapping[int, Response]) -> Response:
        listed = [
            item
            for number, one in answers.items()
            for item in _response_items(one, "fragments") or [{"fragment": number, "is-available": False}]
        ]
        return success({"entity-id": context.entity.entity_id, "fragments": listed})

    _run_and_merge(
        context, deletion.list_fragments, dict.fromkeys(range(len(context.per_fragment)), arguments), merge, on_reply
    )


def _withhold(context: RequestContext, arguments: Arguments, on_reply: OnReply) -> None:
    _run_and_merge(
        context,
        messages.withhold,
        dict.fromkeys(range(len(context.per_fragment)), arguments),
        _merge_success,
        on_reply,
    )


PARTITIONED_OPERATIONS: Final[dict[str, ManagementOperation]] = {
    "com.microsoft:peek-message": _peek,
    "com.microsoft:cancel-scheduled-message": _cancel,
    "com.microsoft:renew-lock": _renew_lock,
    "com.microsoft:receive-by-sequence-number": _receive_deferred,
    "com.microsoft:update-disposition": _update_disposition,
    "com.microsoft:renew-session-lock": _route_by_session(sessions.renew_session_lock),
    "com.microsoft:set-session-state": _route_by_session(sessions.set_session_state),
    "com.microsoft:get-session-state": _route_by_session(sessions.get_session_state),
    "com.microsoft:get-message-sessions": _list_sessions,
    "com.microsoft:batch-delete-messages": _batch_delete,
    "twinbus:purge": _purge,
    "twinbus:delete-by-sequence-number": _delete_by_sequence_number,
    "twinbus:resubmit": _resubmit,
    "twinbus:complete-up-to": _complete_up_to,
    "twinbus:fragments": _list_fragments,
    "twinbus:withhold": _withhold,
}
"""What is done otherwise than on a plain entity; the rest is the same."""
