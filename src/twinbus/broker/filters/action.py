"""Actions: the changes that a rule makes to its copy of a matching message.

Statements run in order, and each statement sees the effects of the statements before it. An action also sets the copy's
RuleName property to the name of the rule.

Owns the meaning of SET and REMOVE, and the values that each property accepts. `message_draft` encodes the changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias
from uuid import UUID

from twinbus.amqp.codec.encode import encode
from twinbus.amqp.errors import DecodeError
from twinbus.amqp.message import Message, Section
from twinbus.amqp.types import Byte, Float, Int, Short, Symbol, Timestamp, UByte, UInt, ULong, UShort
from twinbus.broker.filters.arithmetic import fits_long
from twinbus.broker.filters.cost import action_cost
from twinbus.broker.filters.errors import FilterError
from twinbus.broker.filters.evaluator import compile_value
from twinbus.broker.filters.message_draft import MessageDraft
from twinbus.broker.filters.syntax_tree import Constant, Property, SetStatement, user_property_key
from twinbus.broker.filters.system_properties import SYSTEM_PROPERTIES, property_names, property_number
from twinbus.broker.filters.values import OPAQUE, Duration, Instant, from_amqp, kind_name, to_amqp
from twinbus.broker.message_record import parse_record
from twinbus.model.limits import NamespaceLimits
from twinbus.model.times import TICKS_PER_MS

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinbus.broker.filters.cost import Cost
    from twinbus.broker.filters.message_view import MessageView
    from twinbus.broker.filters.parser import ExpressionParser

    Statement: TypeAlias = Callable[[MessageDraft, NamespaceLimits], None]

_RULE_NAME_PROPERTY: Final = Property(user_property_key("RuleName"), "RuleName")
_MESSAGE_ID: Final = property_number("MessageId")
_CONTENT_TYPE: Final = property_number("ContentType")
_TIME_TO_LIVE: Final = property_number("TimeToLive")
_SCHEDULED_TIME: Final = property_number("ScheduledEnqueueTimeUtc")
_DEFAULT_LIMITS: Final = NamespaceLimits()
_MAX_FLOAT: Final = 3.4028234663852886e38
_INTEGER_RANGES: Final[dict[type[int], tuple[int, int]]] = {
    UByte: (0, 2**8 - 1),
    UShort: (0, 2**16 - 1),
    UInt: (0, 2**32 - 1),
    ULong: (0, 2**64 - 1),
    Byte: (-(2**7), 2**7 - 1),
    Short: (-(2**15), 2**15 - 1),
    Int: (-(2**31), 2**31 - 1),
}


class Action:
    """Compiled action of one rule; stateless, so it can be shared."""

    __slots__ = ("_rule_name", "_statements", "cost")

    def __init__(self, rule_name: str, statements: list[Statement], cost: Cost) -> None:
        """Create an action from compiled statements; `rule_name` is written into the property RuleName."""
        self.cost = cost
        self._rule_name = rule_name
        self._statements = statements

    def apply(
        self,
        record: bytes,
        limits: NamespaceLimits = _DEFAULT_LIMITS,
        sequence: int | None = None,
        view: MessageView | None = None,
    ) -> bytes:
        """Return `record` with the changes of this action.

        Raise FilterError if a statement fails, or if the changed message exceeds `limits`. `view` is an existing view
        of the same message, whose decoded properties are reused.
        """
        draft = MessageDraft(record, sequence, view)
        draft.set(_RULE_NAME_PROPERTY, self._rule_name, self._rule_name)
        try:
            for statement in self._statements:
                statement(draft, limits)
            changed = draft.encode()
        except DecodeError as error:
            raise FilterError(f"a property of the message cannot be decoded: {error.description}") from None
        _check_size(changed, limits)
        return changed


def compile_action(parser: ExpressionParser, rule_name: str) -> Action:
    """Compile an action; raise InvalidArgument with the position and the reason if its text is not valid."""
    statements: list[Statement] = []
    parsed = parser.parse_action()
    for statement in parsed:
        target, is_set = statement.target, isinstance(statement, SetStatement)
        if isinstance(target.key, int):
            if not SYSTEM_PROPERTIES[target.key].is_settable:
                settable = property_names(settable_only=True)
                raise parser.syntax_error(statement.position, f"{target.name} cannot be changed; use one of {settable}")
            if not is_set and target.key == _MESSAGE_ID:
                raise parser.syntax_error(statement.position, "MessageId cannot be removed")
        if not isinstance(statement, SetStatement):
            statements.append(_compile_remove(target))
        elif isinstance(target.key, bytes):
            statements.append(_compile_set_user(statement, target.key))
        else:
            if isinstance(statement.value, Constant):
                _check_constant(parser, statement, target.key, statement.value.value)
            statements.append(_compile_set_system(statement, target.key))
    return Action(rule_name, statements, action_cost(parsed))


def _check_constant(parser: ExpressionParser, statement: SetStatement, number: int, value: object) -> None:
    try:
        _convert_system_value(number, value, _DEFAULT_LIMITS)
    except FilterError as error:
        raise parser.syntax_error(statement.position, str(error)) from None


def _check_size(record: bytes, limits: NamespaceLimits) -> None:
    parts = parse_record(record)
    message = Message(parts.bare_message)
    size = message.size_of(Section.PROPERTIES) + message.size_of(Section.APPLICATION_PROPERTIES)
    size += len(parts.annotations)
    if size > limits.max_properties_bytes:
        limit = limits.max_properties_bytes
        raise FilterError(f"the action makes {size} bytes of properties and annotations; the limit is {limit}")


# --- statements -------------------------------------------------------------------------------------------------------


def _compile_remove(target: Property) -> Statement:
    return lambda draft, _limits: draft.remove(target)


def _compile_set_user(statement: SetStatement, property_key: bytes) -> Statement:
    target, source = statement.target, statement.value
    if isinstance(source, Property) and isinstance(source.key, bytes):
        source_key = source.key

        def copy(draft: MessageDraft, _limits: NamespaceLimits) -> None:
            stored = draft.amqp_value(source_key)
            draft.set(target, from_amqp(stored), stored)

        return copy
    evaluate = compile_value(source)

    def change(draft: MessageDraft, limits: NamespaceLimits) -> None:
        stored = _keep_type(_to_storable(evaluate(draft)), _current_value(draft, property_key))
        if len(encode(stored)) > limits.max_property_bytes:
            raise FilterError(f"the value of {target.name!r:.60} is larger than {limits.max_property_bytes} bytes")
        draft.set(target, from_amqp(stored), stored)

    return change


def _compile_set_system(statement: SetStatement, number: int) -> Statement:
    target, evaluate = statement.target, compile_value(statement.value)

    def change(draft: MessageDraft, limits: NamespaceLimits) -> None:
        value, stored = _convert_system_value(number, evaluate(draft), limits)
        draft.set(target, value, stored)

    return change


# --- values -----------------------------------------------------------------------------------------------------------


def _current_value(draft: MessageDraft, property_key: bytes) -> object:
    try:
        return draft.amqp_value(property_key)
    except DecodeError:  # the unreadable value is about to be replaced
        return None


def _to_storable(value: object) -> object:
    if value is OPAQUE:
        raise FilterError("a property cannot be set to a list, a map or a value that cannot be decoded")
    if type(value) is int and not fits_long(value):
        if not 0 <= value <= _INTEGER_RANGES[ULong][1]:
            raise FilterError("a property cannot be set to a number that does not fit into 64 bits")
        return ULong(value)
    return to_amqp(value)


def _keep_type(new_value: object, old_value: object) -> object:
    """Convert a number to the AMQP type of the property's old value if the number fits, so that an int stays an int."""
    if type(new_value) is int and isinstance(old_value, int):
        kind = type(old_value)
        lowest, highest = _INTEGER_RANGES.get(kind, (1, 0))
        return kind(new_value) if lowest <= new_value <= highest else new_value
    if isinstance(new_value, int | float) and not isinstance(new_value, bool) and isinstance(old_value, float):
        return Float(new_value) if isinstance(old_value, Float) and abs(new_value) <= _MAX_FLOAT else float(new_value)
    return new_value


def _convert_system_value(number: int, value: object, limits: NamespaceLimits) -> tuple[object, object]:
    """Convert a value for a system property; return it as expressions see it and as it is stored."""
    name = SYSTEM_PROPERTIES[number].names[0]
    if number == _TIME_TO_LIVE:
        if value is None:
            return None, None
        if type(value) is not Duration or value.ticks < 0:
            raise FilterError(f"{name} must be a duration of at least zero, not {kind_name(value)}")
        return value, value.ticks // TICKS_PER_MS
    if number == _SCHEDULED_TIME:
        if value is not None and type(value) is not Instant:
            raise FilterError(f"{name} must be a time, not {kind_name(value)}")
        return value, None if value is None else Timestamp(value.ticks // TICKS_PER_MS)
    return _convert_system_text(number, name, value, limits)


def _convert_system_text(number: int, name: str, value: object, limits: NamespaceLimits) -> tuple[object, object]:
    if value is None and number != _MESSAGE_ID:
        return None, None
    if type(value) is int or isinstance(value, UUID):
        value = str(value)
    if not isinstance(value, str):
        raise FilterError(f"{name} must be a string, not {kind_name(value)}")
    if SYSTEM_PROPERTIES[number].is_id_sized and len(value) > limits.max_id_characters:
        raise FilterError(f"{name} has {len(value)} characters; the limit is {limits.max_id_characters}")
    if number != _CONTENT_TYPE:
        return value, value
    if not value.isascii():
        raise FilterError(f"{name} must contain only ASCII characters")
    return value, Symbol(value)
