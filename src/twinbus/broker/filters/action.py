"""Actions: what a rule changes in the messages it is true for.

Statements are run one after the other, and see what those before them did. A copy that an action made says which rule
made it, in the property RuleName.

Owns: what SET and REMOVE mean, and which values a property can take. How they are written is for `draft` to know.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias
from uuid import UUID

from twinbus.amqp.encode import encode
from twinbus.amqp.errors import DecodeError
from twinbus.amqp.message import Message, Section
from twinbus.amqp.types import Byte, Float, Int, Short, Symbol, Timestamp, UByte, UInt, ULong, UShort
from twinbus.broker.filters.arithmetic import fits_long
from twinbus.broker.filters.cost import cost_of_action
from twinbus.broker.filters.draft import Draft
from twinbus.broker.filters.errors import FilterError
from twinbus.broker.filters.evaluate import value as compile_value
from twinbus.broker.filters.nodes import Constant, Property, SetTo, user_address
from twinbus.broker.filters.system import SYSTEM, known_names, number_of
from twinbus.broker.filters.values import OPAQUE, Instant, Span, described, from_amqp, to_amqp
from twinbus.broker.record import take_apart
from twinbus.model.limits import NamespaceLimits
from twinbus.model.times import TICKS_PER_MS

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.broker.filters.cost import Cost
    from twinbus.broker.filters.reader import Reader
    from twinbus.broker.filters.view import View

    Statement: TypeAlias = Callable[[Draft, NamespaceLimits], None]

_RULE_NAME: Final = Property(user_address("RuleName"), "RuleName")
_MESSAGE_ID: Final = number_of("MessageId")
_CONTENT_TYPE: Final = number_of("ContentType")
_TIME_TO_LIVE: Final = number_of("TimeToLive")
_SCHEDULED_TIME: Final = number_of("ScheduledEnqueueTimeUtc")
_DEFAULT_LIMITS: Final = NamespaceLimits()
_LARGEST_FLOAT: Final = 3.4028234663852886e38
_RANGES: Final[dict[type[int], tuple[int, int]]] = {
    UByte: (0, 2**8 - 1),
    UShort: (0, 2**16 - 1),
    UInt: (0, 2**32 - 1),
    ULong: (0, 2**64 - 1),
    Byte: (-(2**7), 2**7 - 1),
    Short: (-(2**15), 2**15 - 1),
    Int: (-(2**31), 2**31 - 1),
}


class Action:
    """The action of one rule; it has no state, and can be shared."""

    __slots__ = ("_rule_name", "_statements", "cost")

    def __init__(self, rule_name: str, statements: list[Statement], cost: Cost) -> None:
        """`rule_name` is what is written into RuleName."""
        self.cost = cost
        self._rule_name = rule_name
        self._statements = statements

    def apply(
        self,
        record: bytes,
        limits: NamespaceLimits = _DEFAULT_LIMITS,
        sequence: int | None = None,
        view: View | None = None,
    ) -> bytes:
        """A stored message with the changes. FilterError if they cannot be made, or are more than `limits` allow.

        `view` is the same message, if there is a view of it: what it has read already is not read again.
        """
        draft = Draft(record, sequence, view)
        draft.set(_RULE_NAME, self._rule_name, self._rule_name)
        try:
            for statement in self._statements:
                statement(draft, limits)
            changed = draft.written()
        except DecodeError as error:
            raise FilterError(f"a property cannot be read: {error.description}") from None
        _check_size(changed, limits)
        return changed


def compile_action(reader: Reader, rule_name: str) -> Action:
    """An action, or InvalidArgument: what is wrong with it, and where."""
    statements: list[Statement] = []
    parsed = reader.statements()
    for found in parsed:
        target, is_set = found.target, isinstance(found, SetTo)
        if isinstance(target.address, int):
            if not SYSTEM[target.address].is_settable:
                settable = known_names(settable_only=True)
                raise reader.refusal(found.at, f"{target.name} cannot be changed; what can be is {settable}")
            if not is_set and target.address == _MESSAGE_ID:
                raise reader.refusal(found.at, "a message cannot be without a MessageId")
        if not isinstance(found, SetTo):
            statements.append(_remove(target))
        elif isinstance(target.address, bytes):
            statements.append(_set_user(found, target.address))
        else:
            if isinstance(found.value, Constant):
                _try_constant(reader, found, target.address, found.value.value)
            statements.append(_set_system(found, target.address))
    return Action(rule_name, statements, cost_of_action(parsed))


def _try_constant(reader: Reader, found: SetTo, number: int, constant: object) -> None:
    try:
        _system_value(number, constant, _DEFAULT_LIMITS)
    except FilterError as error:
        raise reader.refusal(found.at, str(error)) from None


def _check_size(record: bytes, limits: NamespaceLimits) -> None:
    parts = take_apart(record)
    message = Message(parts.bare)
    size = message.size_of(Section.PROPERTIES) + message.size_of(Section.APPLICATION_PROPERTIES)
    size += len(parts.annotations)
    if size > limits.max_properties_bytes:
        most = limits.max_properties_bytes
        raise FilterError(f"the action gives {size} bytes of properties and annotations; there can be {most}")


# --- statements -------------------------------------------------------------------------------------------------------


def _remove(target: Property) -> Statement:
    return lambda draft, _limits: draft.remove(target)


def _set_user(found: SetTo, name: bytes) -> Statement:
    target, source = found.target, found.value
    if isinstance(source, Property) and isinstance(source.address, bytes):
        copied = source.address

        def copy(draft: Draft, _limits: NamespaceLimits) -> None:
            stored = draft.original(copied)
            draft.set(target, from_amqp(stored), stored)

        return copy
    evaluate = compile_value(source)

    def change(draft: Draft, limits: NamespaceLimits) -> None:
        stored = _like_before(_storable(evaluate(draft)), _original(draft, name))
        if len(encode(stored)) > limits.max_property_bytes:
            raise FilterError(f"{target.name!r:.60} would take more than {limits.max_property_bytes} bytes")
        draft.set(target, from_amqp(stored), stored)

    return change


def _set_system(found: SetTo, number: int) -> Statement:
    target, evaluate = found.target, compile_value(found.value)

    def change(draft: Draft, limits: NamespaceLimits) -> None:
        value, stored = _system_value(number, evaluate(draft), limits)
        draft.set(target, value, stored)

    return change


# --- values -----------------------------------------------------------------------------------------------------------


def _original(draft: Draft, name: bytes) -> object:
    try:
        return draft.original(name)
    except DecodeError:  # it is replaced anyway
        return None


def _storable(value: object) -> object:
    if value is OPAQUE:
        raise FilterError("a list or map, or what cannot be read, cannot be put into a property")
    if type(value) is int and not fits_long(value):
        if not 0 <= value <= _RANGES[ULong][1]:
            raise FilterError("a number that 64 bits cannot hold cannot be put into a property")
        return ULong(value)
    return to_amqp(value)


def _like_before(stored: object, before: object) -> object:
    """A number in the type that the property has already, where it fits: an int stays an int."""
    if type(stored) is int and isinstance(before, int):
        kind = type(before)
        lowest, highest = _RANGES.get(kind, (1, 0))
        return kind(stored) if lowest <= stored <= highest else stored
    if isinstance(stored, int | float) and not isinstance(stored, bool) and isinstance(before, float):
        return Float(stored) if isinstance(before, Float) and abs(stored) <= _LARGEST_FLOAT else float(stored)
    return stored


def _system_value(number: int, value: object, limits: NamespaceLimits) -> tuple[object, object]:
    """A value for a system property: as expressions see it, and as it is stored."""
    name = SYSTEM[number].names[0]
    if number == _TIME_TO_LIVE:
        if value is None:
            return None, None
        if type(value) is not Span or value.ticks < 0:
            raise FilterError(f"{name} is a duration of at least zero, not {described(value)}")
        return value, value.ticks // TICKS_PER_MS
    if number == _SCHEDULED_TIME:
        if value is not None and type(value) is not Instant:
            raise FilterError(f"{name} is a time, not {described(value)}")
        return value, None if value is None else Timestamp(value.ticks // TICKS_PER_MS)
    return _system_text(number, name, value, limits)


def _system_text(number: int, name: str, value: object, limits: NamespaceLimits) -> tuple[object, object]:
    if value is None and number != _MESSAGE_ID:
        return None, None
    if type(value) is int or isinstance(value, UUID):
        value = str(value)
    if not isinstance(value, str):
        raise FilterError(f"{name} is a text, not {described(value)}")
    if SYSTEM[number].is_short and len(value) > limits.max_id_characters:
        raise FilterError(f"{name} would have {len(value)} characters; it can have {limits.max_id_characters}")
    if number != _CONTENT_TYPE:
        return value, value
    if not value.isascii():
        raise FilterError(f"{name} can have ASCII characters only")
    return value, Symbol(value)
