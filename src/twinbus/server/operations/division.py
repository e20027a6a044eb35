"""Requests to the `$management` of a partitioned entity: each is divided into requests to its fragments.

Owns: which fragments are asked for what, and how their answers become one. What a fragment does with its request is
what a plain entity does. What is "all or none" on a plain entity is so within a fragment; over several it is looked
before whether all of it can be done, where that can be.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from twinbus.amqp.types import Array, Int, Timestamp
from twinbus.broker.ports.callbacks import all_of
from twinbus.broker.ports.incoming import Parcel, Terms
from twinbus.broker.ports.numbers import FRAGMENT_BYTE, fragment_of_sequence
from twinbus.broker.ports.settlement import How, lock_lost
from twinbus.model.errors import InvalidArgument, InvalidOperation, ServiceBusError
from twinbus.model.partition_key import fragment_of
from twinbus.server.operations import messages, removals, sessions, withholding
from twinbus.server.operations.carrying import carry_out
from twinbus.server.operations.outcomes import failure, nothing, success
from twinbus.server.operations.peeking import Peeking

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import TypeAlias

    from twinbus.broker.ports.callbacks import Answered
    from twinbus.server.operations.arguments import Arguments
    from twinbus.server.operations.subject import Subject
    from twinbus.server.requests import Reply, Response

    Operation: TypeAlias = Callable[[Subject, Arguments, Reply], None]
    Merge: TypeAlias = Callable[[Mapping[int, Response]], Response]
    AllAnswered: TypeAlias = Callable[[Mapping[int, Response]], None]

_OK: Final = 200
_NO_CONTENT: Final = 204
_PEEK_LOCK: Final = 1


def _ask(subject: Subject, act: Operation, requests: Mapping[int, Arguments], merge: Merge, reply: Reply) -> None:
    """Have something done in several fragments, each with arguments of its own, and answer when all have."""
    _ask_all(subject, act, requests, lambda answers: reply(merge(answers)))


def _ask_all(subject: Subject, act: Operation, requests: Mapping[int, Arguments], answered_all: AllAnswered) -> None:
    answers: dict[int, Response] = {}

    def answered(number: int, response: Response) -> None:
        answers[number] = response
        if len(answers) == len(requests):
            answered_all({number: answers[number] for number in requests})

    for number, arguments in requests.items():
        try:
            carry_out(act, subject.parts[number], arguments, partial(answered, number))
        except ServiceBusError as error:
            answered(number, failure(error))


def first_failure(answers: Mapping[int, Response]) -> Response | None:
    """The first of several answers that says no."""
    bad = (one for one in answers.values() if one.properties["statusCode"] not in (_OK, _NO_CONTENT))
    return next(bad, None)


def _done(answers: Mapping[int, Response]) -> Response:
    return first_failure(answers) or success({})


# --- by sequence number -----------------------------------------------------------------------------------------------


def _by_number(subject: Subject, arguments: Arguments) -> dict[int, Arguments]:
    """The arguments of each fragment that some of the sequence numbers are of."""
    numbers: dict[int, list[int]] = {}
    for number in arguments.sequence_numbers():
        fragment = fragment_of_sequence(number)
        numbers.setdefault(fragment if fragment < len(subject.parts) else 0, []).append(number)
    return {fragment: arguments.but(**{"sequence-numbers": some}) for fragment, some in numbers.items()}


def _cancel(subject: Subject, arguments: Arguments, reply: Reply) -> None:
    """All of them, or none: where they are of several fragments, it is looked first whether all are there."""
    _ = subject.sendable  # raises for a subscription
    requests = _by_number(subject, arguments)

    def found(response: Response) -> None:
        if first_failure({0: response}) is not None:
            reply(response)
        else:
            _ask(subject, messages.cancel, requests, _done, reply)

    _ask(subject, messages.find_scheduled, requests, _done, found)


def _delete_numbers(subject: Subject, arguments: Arguments, reply: Reply) -> None:
    _ask(subject, removals.delete_numbers, _by_number(subject, arguments), _all_numbers, reply)


def _resubmit(subject: Subject, arguments: Arguments, reply: Reply) -> None:
    removals.check_resubmission(subject, arguments)
    if arguments.has("message"):
        _check_stays(subject, arguments)
    _ask(subject, removals.resubmit, _by_number(subject, arguments), _all_numbers, reply)


def _check_stays(subject: Subject, arguments: Arguments) -> None:
    """InvalidOperation if a message is changed so that its key leads elsewhere: nobody would look where it is then."""
    terms, parcel, now_ms = subject.entity.terms, Parcel(), subject.namespace.clock.wall_ms()
    wanted = Terms(
        requires_session=terms.requires_session, detects_duplicates=terms.detects_duplicates, is_partitioned=True
    )
    subject.namespace.intake.add_to(parcel, arguments.binary("message"), 0, now_ms, wanted)
    key = next(iter(parcel.keys), None)
    (number,) = arguments.sequence_numbers()
    if key is not None and fragment_of(key) != fragment_of_sequence(number):
        raise InvalidOperation(
            f"'{subject.path}' is partitioned, and the new contents of message {number} have a session id, partition "
            "key or message id of another fragment: send them as a new message, and delete this one"
        )


def _all_numbers(answers: Mapping[int, Response]) -> Response:
    bad = first_failure(answers)
    if bad is not None:
        return bad
    numbers = [number for one in answers.values() for number in _items(one, "sequence-numbers")]
    return success({"sequence-numbers": Array(int, numbers)})


def _items(response: Response, name: str) -> list[object]:
    found = response.body.get(name) if isinstance(response.body, dict) else None
    return list(found.items) if isinstance(found, Array) else list(found or ())


def _receive_deferred(subject: Subject, arguments: Arguments, reply: Reply) -> None:
    """All of them, or none: where one fragment cannot give what it is asked for, the others take back what they gave.

    So messages that are to be deleted are locked first, and deleted when all are.
    """
    session = arguments.session()
    if session is not None and subject.fragment.has_sessions:  # what is not in its fragment is not its own
        carry_out(messages.receive_deferred, subject.parts[fragment_of(session)], arguments, reply)
        return
    requests = _by_number(subject, arguments)
    mode = arguments.number("receiver-settle-mode", lowest=0, default=_PEEK_LOCK)
    deletes = mode == 0 and len(requests) > 1
    if deletes:
        requests = {number: one.but(**{"receiver-settle-mode": _PEEK_LOCK}) for number, one in requests.items()}

    def taken(answers: Mapping[int, Response]) -> None:
        bad = first_failure(answers)
        given = {number: _items(one, "messages") for number, one in answers.items()}
        items = [item for some in given.values() for item in some]
        if bad is not None:
            _settle_all(subject, How.RELEASE, given, lambda _: reply(bad))
        elif not deletes:
            reply(success({"messages": items}))
        else:
            bare = [{"message": item["message"]} for item in items if isinstance(item, dict)]
            deleted = success({"messages": bare})
            _settle_all(subject, How.COMPLETE, given, lambda error: reply(failure(error) if error else deleted))

    _ask_all(subject, messages.receive_deferred, requests, taken)


def _settle_all(subject: Subject, how: How, given: Mapping[int, list[object]], answer: Answered) -> None:
    """Settle what several fragments gave under locks."""
    locked = {
        number: [item["lock-token"].bytes for item in items if isinstance(item, dict)]
        for number, items in given.items()
        if items
    }
    told = all_of(len(locked), answer)
    for number, tokens in locked.items():
        fragment = subject.parts[number].fragment
        numbers = fragment.lock_numbers(tokens)
        try:
            if len(fragment.settlement.settle(how, numbers, told, {})) == len(numbers):
                told(lock_lost())  # nobody else tells it
        except ServiceBusError as error:
            told(error)
    if not locked:
        answer(None)


# --- by lock ----------------------------------------------------------------------------------------------------------


def by_token(subject: Subject, arguments: Arguments) -> dict[int, Arguments]:
    """The arguments of each fragment that some of the lock tokens are of. MessageLockLost if one is of none."""
    tokens: dict[int, list[object]] = {}
    for token in arguments.tokens():
        number = token.bytes[FRAGMENT_BYTE]
        if number >= len(subject.parts):
            raise lock_lost()
        tokens.setdefault(number, []).append(token)
    return {number: arguments.but(**{"lock-tokens": some}) for number, some in tokens.items()}


def _renew_lock(subject: Subject, arguments: Arguments, reply: Reply) -> None:
    messages.check_renews(subject)
    requests = by_token(subject, arguments)
    for number, one in requests.items():
        messages.held_numbers(subject.parts[number], one)
    order = [token.bytes for token in arguments.tokens()]

    def merge(answers: Mapping[int, Response]) -> Response:
        bad = first_failure(answers)
        if bad is not None:
            return bad
        times = {
            token.bytes: time
            for number, one in requests.items()
            for token, time in zip(one.tokens(), _items(answers[number], "expirations"), strict=True)
        }
        return success({"expirations": Array(Timestamp, [times[token] for token in order])})

    _ask(subject, messages.renew_lock, requests, merge, reply)


def _update_disposition(subject: Subject, arguments: Arguments, reply: Reply) -> None:
    requests = by_token(subject, arguments)
    for number, one in requests.items():
        messages.held_numbers(subject.parts[number], one)
    _ask(subject, messages.update_disposition, requests, _done, reply)


# --- by session -------------------------------------------------------------------------------------------------------


def _of_session(act: Operation) -> Operation:
    """What is asked of one session is asked of the fragment that it is in."""

    def asked(subject: Subject, arguments: Arguments, reply: Reply) -> None:
        session = arguments.session()
        carry_out(act, subject.parts[fragment_of(session) if session is not None else 0], arguments, reply)

    return asked


def _list_sessions(subject: Subject, arguments: Arguments, reply: Reply) -> None:
    """Fragment by fragment; those that come before what is asked for are counted again each time."""
    subject.check_sessions()
    skip = arguments.number("skip", lowest=0, default=0)
    top = min(arguments.number("top", lowest=1, default=sessions.LIST_MAX), sessions.LIST_MAX)
    found: list[object] = []
    passed = 0

    def ask(number: int, at: int) -> None:
        if number == len(subject.parts) or len(found) == top:
            full: dict[str, object] = {"skip": Int(skip + len(found)), "sessions-ids": Array(str, found)}
            reply(success(full) if found else nothing())
            return

        def listed(response: Response) -> None:
            nonlocal passed
            if first_failure({0: response}) is not None:
                reply(response)
                return
            names = _items(response, "sessions-ids")
            for name in names:
                passed += 1
                if passed > skip and len(found) < top:
                    found.append(name)
            if len(names) < sessions.LIST_MAX:
                ask(number + 1, 0)
            else:
                ask(number, at + len(names))

        page = arguments.but(skip=at, top=sessions.LIST_MAX)
        try:
            carry_out(sessions.list_sessions, subject.parts[number], page, listed)
        except ServiceBusError as error:
            reply(failure(error))

    ask(0, 0)


# --- everywhere -------------------------------------------------------------------------------------------------------


def _peek(subject: Subject, arguments: Arguments, reply: Reply) -> None:
    session = arguments.session()
    if session is not None and subject.fragment.has_sessions:
        carry_out(messages.peek, subject.parts[fragment_of(session)], arguments, reply)
    else:
        Peeking(subject, arguments, reply).begin()


def _batch_delete(subject: Subject, arguments: Arguments, reply: Reply) -> None:
    """From one fragment after the other, until there are enough."""
    most = min(arguments.number("message-count", lowest=1), removals.BATCH_DELETE_MAX)
    removed = 0

    def ask(number: int) -> None:
        if number == len(subject.parts) or removed == most:
            count: dict[str, object] = {"message-count": Int(removed)}
            reply(success(count) if removed else nothing(count))
            return

        def told(response: Response) -> None:
            nonlocal removed
            if first_failure({0: response}) is not None and not removed:
                reply(response)
                return
            some = response.body.get("message-count") if isinstance(response.body, dict) else 0
            removed += some if isinstance(some, int) else 0
            ask(number + 1)

        try:
            page = arguments.but(**{"message-count": most - removed})
            carry_out(removals.batch_delete, subject.parts[number], page, told)
        except ServiceBusError as error:
            told(failure(error))

    ask(0)


def _purge(subject: Subject, arguments: Arguments, reply: Reply) -> None:
    everywhere = dict.fromkeys(range(len(subject.parts)), arguments)
    _ask(subject, removals.purge, everywhere, _sums, reply)


def _sums(answers: Mapping[int, Response]) -> Response:
    bad = first_failure(answers)
    if bad is not None:
        return bad
    bodies = [one.body for one in answers.values() if isinstance(one.body, dict)]
    return success({name: sum(body[name] for body in bodies) for name in bodies[0]})


def _complete_up_to(subject: Subject, arguments: Arguments, reply: Reply) -> None:
    """The sequence number says of which fragment it is; who names that as well has to name the same."""
    implied = fragment_of_sequence(arguments.number("sequence-number", lowest=0))
    number = arguments.number("fragment", lowest=0, default=implied)
    if number >= len(subject.parts) or implied not in (number, 0):
        raise InvalidArgument(
            f"fragment is {number}, and sequence-number one of fragment {implied}; there are {len(subject.parts)}"
        )
    carry_out(removals.complete_up_to, subject.parts[number], arguments.but(fragment=None), reply)


def _list_fragments(subject: Subject, arguments: Arguments, reply: Reply) -> None:
    def merge(answers: Mapping[int, Response]) -> Response:
        listed = [
            item
            for number, one in answers.items()
            for item in _items(one, "fragments") or [{"fragment": number, "is-available": False}]
        ]
        return success({"entity-id": subject.entity.entity_id, "fragments": listed})

    _ask(subject, removals.list_fragments, dict.fromkeys(range(len(subject.parts)), arguments), merge, reply)


def _withhold(subject: Subject, arguments: Arguments, reply: Reply) -> None:
    _ask(subject, withholding.withhold, dict.fromkeys(range(len(subject.parts)), arguments), _done, reply)


DIVIDED: Final[dict[str, Operation]] = {
    "com.microsoft:peek-message": _peek,
    "com.microsoft:cancel-scheduled-message": _cancel,
    "com.microsoft:renew-lock": _renew_lock,
    "com.microsoft:receive-by-sequence-number": _receive_deferred,
    "com.microsoft:update-disposition": _update_disposition,
    "com.microsoft:renew-session-lock": _of_session(sessions.renew),
    "com.microsoft:set-session-state": _of_session(sessions.set_state),
    "com.microsoft:get-session-state": _of_session(sessions.get_state),
    "com.microsoft:get-message-sessions": _list_sessions,
    "com.microsoft:batch-delete-messages": _batch_delete,
    "twinbus:purge": _purge,
    "twinbus:delete-by-sequence-number": _delete_numbers,
    "twinbus:resubmit": _resubmit,
    "twinbus:complete-up-to": _complete_up_to,
    "twinbus:fragments": _list_fragments,
    "twinbus:withhold": _withhold,
}
"""What is done otherwise than on a plain entity; the rest is the same."""
