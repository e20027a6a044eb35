"""Requests to the `$management` of a partitioned entity, which are split into requests to its fragments.

Owns: the choice of fragments for an operation, and the merging of their responses. Each fragment executes its request
like a plain entity. An operation that is "all or none" on a plain entity is "all or none" within each fragment. If
possible, an operation on several fragments first checks that each fragment can carry out its part.
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
from twinbus.server.amqp.management import deletion, messages, search, sessions
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
_STATUS_UNAVAILABLE: Final = 500
"""The lowest response status which means that the fragment or its process is unavailable."""
_PEEK_LOCK: Final = 1


def _run_and_merge(
    context: RequestContext,
    operation: ManagementOperation,
    requests: Mapping[int, Arguments],
    merge_responses: MergeResponses,
    on_reply: OnReply,
) -> None:
    """Run an operation in several fragments, each with its own arguments; reply when all have responded."""
    _run_all(context, operation, requests, lambda responses: on_reply(merge_responses(responses)))


def _run_all(
    context: RequestContext,
    operation: ManagementOperation,
    requests: Mapping[int, Arguments],
    on_all_replies: OnAllReplies,
) -> None:
    responses: dict[int, Response] = {}

    def on_response(number: int, response: Response) -> None:
        responses[number] = response
        if len(responses) == len(requests):
            on_all_replies({number: responses[number] for number in requests})

    for number, arguments in requests.items():
        try:
            run_operation(operation, context.per_fragment[number], arguments, partial(on_response, number))
        except ServiceBusError as error:
            on_response(number, failure(error))


def first_failure(responses: Mapping[int, Response]) -> Response | None:
    """Return the first failed response, or None."""
    failures = (
        each for each in responses.values() if each.properties["statusCode"] not in (_STATUS_OK, _STATUS_NO_CONTENT)
    )
    return next(failures, None)


def _merge_success(responses: Mapping[int, Response]) -> Response:
    return first_failure(responses) or success({})


# --- by sequence number -----------------------------------------------------------------------------------------------


def _split_by_sequence_number(context: RequestContext, arguments: Arguments) -> dict[int, Arguments]:
    """Return the arguments for each fragment that owns some of the sequence numbers."""
    numbers: dict[int, list[int]] = {}
    for number in arguments.sequence_numbers():
        fragment = fragment_of_sequence(number)
        numbers.setdefault(fragment if fragment < len(context.per_fragment) else 0, []).append(number)
    return {fragment: arguments.with_changes(**{"sequence-numbers": values}) for fragment, values in numbers.items()}


def _cancel(context: RequestContext, arguments: Arguments, on_reply: OnReply) -> None:
    """Cancel scheduled messages: all of them, or none. First check in all fragments whether the messages exist."""
    _ = context.sendable  # raises for a subscription
    requests = _split_by_sequence_number(context, arguments)

    def on_found(response: Response) -> None:
        if first_failure({0: response}) is not None:
            on_reply(response)
        else:
            _run_and_merge(context, messages.cancel_scheduled, requests, _merge_success, on_reply)

    _run_and_merge(context, messages.find_scheduled, requests, _merge_success, on_found)


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


def _move(context: RequestContext, arguments: Arguments, on_reply: OnReply) -> None:
    deletion.check_move(context, arguments)
    _run_and_merge(
        context, deletion.move, _split_by_sequence_number(context, arguments), _merge_sequence_numbers, on_reply
    )


def _check_same_fragment(context: RequestContext, arguments: Arguments) -> None:
    """Raise InvalidOperation if the new contents map to another fragment, where clients would look for the message."""
    policy, batch, now_ms = context.entity.validation_policy, IncomingBatch(), context.namespace.clock.wall_ms()
    partitioned_policy = ValidationPolicy(
        requires_session=policy.requires_session, detects_duplicates=policy.detects_duplicates, is_partitioned=True
    )
    context.namespace.intake.add_to(batch, arguments.binary("message"), 0, now_ms, partitioned_policy)
    key = next(iter(batch.partition_keys), None)
    (number,) = arguments.sequence_numbers()
    if key is not None and fragment_of(key) != fragment_of_sequence(number):
        raise InvalidOperation(
            f"'{context.path}' is partitioned, and the new contents of message {number} have a session id, partition "
            "key or message id of another fragment: send them as a new message, and delete this one"
        )


def _merge_sequence_numbers(responses: Mapping[int, Response]) -> Response:
    failed = first_failure(responses)
    if failed is not None:
        return failed
    numbers = [number for response in responses.values() for number in _response_items(response, "sequence-numbers")]
    return success({"sequence-numbers": Array(int, numbers)})


def _response_items(response: Response, name: str) -> list[object]:
    items = response.body.get(name) if isinstance(response.body, dict) else None
    return list(items.items) if isinstance(items, Array) else list(items or ())


def _receive_deferred(context: RequestContext, arguments: Arguments, on_reply: OnReply) -> None:
    """Receive deferred messages: all, or none. If one fragment fails, the other fragments release their messages.

    Messages that are received and deleted are therefore locked first, and deleted when all are locked.
    """
    session = arguments.session()
    if session is not None and context.fragment.has_sessions:  # all messages in a session are in one fragment
        run_operation(messages.receive_deferred, context.per_fragment[fragment_of(session)], arguments, on_reply)
        return
    requests = _split_by_sequence_number(context, arguments)
    mode = arguments.whole_number("receiver-settle-mode", minimum=0, default=_PEEK_LOCK)
    deletes = mode == 0 and len(requests) > 1
    if deletes:
        requests = {
            number: fragment_arguments.with_changes(**{"receiver-settle-mode": _PEEK_LOCK})
            for number, fragment_arguments in requests.items()
        }

    def on_all_locked(responses: Mapping[int, Response]) -> None:
        failed = first_failure(responses)
        received = {number: _response_items(response, "messages") for number, response in responses.items()}
        items = [item for fragment_items in received.values() for item in fragment_items]
        if failed is not None:
            _settle_all(context, Disposition.RELEASE, received, lambda _: on_reply(failed))
        elif not deletes:
            on_reply(success({"messages": items}))
        else:
            unlocked = [{"message": item["message"]} for item in items if isinstance(item, dict)]
            deleted = success({"messages": unlocked})
            _settle_all(
                context, Disposition.COMPLETE, received, lambda error: on_reply(failure(error) if error else deleted)
            )

    _run_all(context, messages.receive_deferred, requests, on_all_locked)


def _settle_all(
    context: RequestContext, disposition: Disposition, received: Mapping[int, list[object]], on_done: OnDone
) -> None:
    """Settle messages that several fragments have locked."""
    tokens_by_fragment = {
        number: [item["lock-token"].bytes for item in items if isinstance(item, dict)]
        for number, items in received.items()
        if items
    }
    on_settled = when_all(len(tokens_by_fragment), on_done)
    for number, tokens in tokens_by_fragment.items():
        fragment = context.per_fragment[number].fragment
        numbers = fragment.lock_numbers(tokens)
        try:
            if len(fragment.settlement.settle(disposition, numbers, on_settled, {})) == len(numbers):
                on_settled(lock_lost_error())  # `settle` does not call back if all locks are lost
        except ServiceBusError as error:
            on_settled(error)
    if not tokens_by_fragment:
        on_done(None)


# --- by lock ----------------------------------------------------------------------------------------------------------


def split_by_lock_token(context: RequestContext, arguments: Arguments) -> dict[int, Arguments]:
    """Return the arguments for each fragment that issued some of the lock tokens.

    Raise MessageLockLost if a token names a fragment that does not exist.
    """
    tokens: dict[int, list[object]] = {}
    for token in arguments.lock_tokens():
        number = token.bytes[TOKEN_FRAGMENT_BYTE]
        if number >= len(context.per_fragment):
            raise lock_lost_error()
        tokens.setdefault(number, []).append(token)
    return {number: arguments.with_changes(**{"lock-tokens": values}) for number, values in tokens.items()}


def _renew_lock(context: RequestContext, arguments: Arguments, on_reply: OnReply) -> None:
    messages.check_lock_renewal(context)
    requests = split_by_lock_token(context, arguments)
    for number, fragment_arguments in requests.items():
        messages.held_lock_numbers(context.per_fragment[number], fragment_arguments)
    order = [token.bytes for token in arguments.lock_tokens()]

    def merge(responses: Mapping[int, Response]) -> Response:
        failed = first_failure(responses)
        if failed is not None:
            return failed
        times = {
            token.bytes: time
            for number, fragment_arguments in requests.items()
            for token, time in zip(
                fragment_arguments.lock_tokens(), _response_items(responses[number], "expirations"), strict=True
            )
        }
        return success({"expirations": Array(Timestamp, [times[token] for token in order])})

    _run_and_merge(context, messages.renew_lock, requests, merge, on_reply)


def _update_disposition(context: RequestContext, arguments: Arguments, on_reply: OnReply) -> None:
    requests = split_by_lock_token(context, arguments)
    for number, fragment_arguments in requests.items():
        messages.held_lock_numbers(context.per_fragment[number], fragment_arguments)
    _run_and_merge(context, messages.update_disposition, requests, _merge_success, on_reply)


# --- by session -------------------------------------------------------------------------------------------------------


def _route_by_session(operation: ManagementOperation) -> ManagementOperation:
    """Return an operation that runs in the fragment of its session."""

    def run_in_session_fragment(context: RequestContext, arguments: Arguments, on_reply: OnReply) -> None:
        session = arguments.session()
        run_operation(
            operation, context.per_fragment[fragment_of(session) if session is not None else 0], arguments, on_reply
        )

    return run_in_session_fragment


def _list_sessions(context: RequestContext, arguments: Arguments, on_reply: OnReply) -> None:
    """List the sessions of one fragment after the other; skipped sessions are read again for every page."""
    context.check_has_sessions()
    skip = arguments.whole_number("skip", minimum=0, default=0)
    top = min(
        arguments.whole_number("top", minimum=1, default=sessions.MAX_LISTED_SESSIONS), sessions.MAX_LISTED_SESSIONS
    )
    session_ids: list[object] = []
    seen_count = 0

    def list_fragment(number: int, offset: int) -> None:
        if number == len(context.per_fragment) or len(session_ids) == top:
            body: dict[str, object] = {"skip": Int(skip + len(session_ids)), "sessions-ids": Array(str, session_ids)}
            on_reply(success(body) if session_ids else no_content())
            return

        def on_listed(response: Response) -> None:
            nonlocal seen_count
            if first_failure({0: response}) is not None:
                on_reply(response)
                return
            names = _response_items(response, "sessions-ids")
            for name in names:
                seen_count += 1
                if seen_count > skip and len(session_ids) < top:
                    session_ids.append(name)
            if len(names) < sessions.MAX_LISTED_SESSIONS:
                list_fragment(number + 1, 0)
            else:
                list_fragment(number, offset + len(names))

        page = arguments.with_changes(skip=offset, top=sessions.MAX_LISTED_SESSIONS)
        try:
            run_operation(sessions.list_sessions, context.per_fragment[number], page, on_listed)
        except ServiceBusError as error:
            on_reply(failure(error))

    list_fragment(0, 0)


# --- everywhere -------------------------------------------------------------------------------------------------------


def _peek(context: RequestContext, arguments: Arguments, on_reply: OnReply) -> None:
    session = arguments.session()
    if session is not None and context.fragment.has_sessions:
        run_operation(messages.peek, context.per_fragment[fragment_of(session)], arguments, on_reply)
    else:
        PartitionedPeek(context, arguments, on_reply).start()


def _search(context: RequestContext, arguments: Arguments, on_reply: OnReply) -> None:
    """Search one fragment; the response says where the next request continues, perhaps in the next fragment.

    A fragment that does not respond is skipped, and named in the response.
    """
    number = fragment_of_sequence(search.parse_criteria(context, arguments).from_sequence)
    if number >= len(context.per_fragment):
        on_reply(search.empty_response(arguments))
        return

    def on_found(response: Response) -> None:
        status = response.properties["statusCode"]
        if isinstance(status, int) and status >= _STATUS_UNAVAILABLE:
            response = search.empty_response(arguments, unavailable_fragment=number)
        on_reply(search.continue_after(response, number, len(context.per_fragment)))

    try:
        run_operation(search.search, context.per_fragment[number], arguments, on_found)
    except ServiceBusError as error:
        on_found(failure(error))


def _batch_delete(context: RequestContext, arguments: Arguments, on_reply: OnReply) -> None:
    """Delete from one fragment after the other until enough messages are deleted."""
    max_count = min(arguments.whole_number("message-count", minimum=1), deletion.MAX_BATCH_DELETE)
    removed = 0

    def delete_from(number: int) -> None:
        if number == len(context.per_fragment) or removed == max_count:
            body: dict[str, object] = {"message-count": Int(removed)}
            on_reply(success(body) if removed else no_content(body))
            return

        def on_deleted(response: Response) -> None:
            nonlocal removed
            if first_failure({0: response}) is not None and not removed:
                on_reply(response)
                return
            deleted_count = response.body.get("message-count") if isinstance(response.body, dict) else 0
            removed += deleted_count if isinstance(deleted_count, int) else 0
            delete_from(number + 1)

        try:
            page = arguments.with_changes(**{"message-count": max_count - removed})
            run_operation(deletion.batch_delete, context.per_fragment[number], page, on_deleted)
        except ServiceBusError as error:
            on_deleted(failure(error))

    delete_from(0)


def _purge(context: RequestContext, arguments: Arguments, on_reply: OnReply) -> None:
    requests = dict.fromkeys(range(len(context.per_fragment)), arguments)
    _run_and_merge(context, deletion.purge, requests, _merge_sums, on_reply)


def _merge_sums(responses: Mapping[int, Response]) -> Response:
    failed = first_failure(responses)
    if failed is not None:
        return failed
    bodies = [response.body for response in responses.values() if isinstance(response.body, dict)]
    return success({name: sum(body[name] for body in bodies) for name in bodies[0]})


def _complete_up_to(context: RequestContext, arguments: Arguments, on_reply: OnReply) -> None:
    """Complete messages in the fragment of the sequence number; a `fragment` argument must name the same fragment."""
    implied = fragment_of_sequence(arguments.whole_number("sequence-number", minimum=0))
    number = arguments.whole_number("fragment", minimum=0, default=implied)
    if number >= len(context.per_fragment) or implied not in (number, 0):
        raise InvalidArgument(
            f"fragment is {number}, but sequence-number belongs to fragment {implied} of {len(context.per_fragment)}"
        )
    run_operation(
        deletion.complete_up_to, context.per_fragment[number], arguments.with_changes(fragment=None), on_reply
    )


def _list_fragments(context: RequestContext, arguments: Arguments, on_reply: OnReply) -> None:
    def merge(responses: Mapping[int, Response]) -> Response:
        descriptions = [
            item
            for number, response in responses.items()
            for item in _response_items(response, "fragments") or [{"fragment": number, "is-available": False}]
        ]
        return success({"entity-id": context.entity.entity_id, "fragments": descriptions})

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
    "twinbus:move": _move,
    "twinbus:search": _search,
    "twinbus:complete-up-to": _complete_up_to,
    "twinbus:fragments": _list_fragments,
    "twinbus:withhold": _withhold,
}
"""Operations that differ from those on a plain entity."""
