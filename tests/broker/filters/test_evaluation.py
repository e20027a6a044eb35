"""Evaluation of filters, case by case. MATCH: true; NOT: false or unknown; FAILS: evaluation raises an error."""

from __future__ import annotations

from decimal import Decimal
from uuid import UUID

import pytest

from tests.broker.filters.messages import ENQUEUED_MS, matches, span, stored
from twinbus.amqp.types import (
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
    Float,
    Int,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)
from twinbus.broker.filters.errors import FilterError
from twinbus.broker.filters.values import from_amqp

SECOND = 10_000_000
UNIQUE = UUID("3f2504e0-4f89-11d3-9a0c-0305e82c3301")
FULL = stored(
    {
        "color": "red",
        "Size": Int(7),
        "price": 19.5,
        "paid": True,
        "nothing": None,
        "empty": "",
        "percent": "50%",
        "path": r"a\b",
        "quote": "it's",
        "With Space": 1,
        "a]b": 2,
        'a"b': 3,
        "x.y": 4,
        "like": "x",
        "user": "u",
        "p": 5,
        "größe": 6,
        "_x": 8,
        "which": "color",
        "pattern": "r_d",
        "byte": Byte(-3),
        "short": Short(300),
        "ubyte": UByte(200),
        "ushort": UShort(60_000),
        "uint": UInt(4_000_000_000),
        "ulong": ULong(2**64 - 1),
        "long": 2**62,
        "float": Float(0.5),
        "d32": Decimal32.from_decimal(Decimal("1.5")),
        "d64": Decimal64.from_decimal(Decimal(12)),
        "d128": Decimal128.from_decimal(Decimal("19.99")),
        "char": Char("c"),
        "symbol": Symbol("sym"),
        "id": UNIQUE,
        "raw": b"\x01\x02",
        "when": Timestamp(ENQUEUED_MS),
        "later": Timestamp(ENQUEUED_MS + 5_000),
        "took": span(3 * SECOND),
        "offset": Described(Symbol("com.microsoft:datetime-offset"), 621_355_968_000_000_000 + ENQUEUED_MS * 10_000),
        "uri": Described(Symbol("com.microsoft:uri"), "http://x/"),
        "list": [1, 2],
    },
    to="there",
    subject="orders",
    reply_to="back",
    correlation_id=ULong(17),
    content_type="application/json",
    group_id="s-1",
    reply_to_group_id="s-2",
    annotations={
        "x-opt-partition-key": "pk",
        "x-opt-via-partition-key": "vpk",
        "x-opt-scheduled-enqueue-time": Timestamp(ENQUEUED_MS),
        "x-opt-enqueue-sequence-number": 12,
    },
    ttl_ms=60_000,
)

MATCH = [
    # comparisons
    "color = 'red'",
    "'red' = color",
    "color <> 'blue'",
    "color != 'blue'",
    "color < 'ree'",
    "color <= 'red'",
    "color > 'rec'",
    "color >= 'red'",
    "Size = 7",
    "size > 6.5",
    "SIZE >= 7.0",
    "size < 7.5E0",
    "price = 19.5",
    "price = 1.95e1",
    "price > 19",
    "paid = TRUE",
    "paid <> FALSE",
    "paid = true",
    "empty = ''",
    "quote = 'it''s'",
    "1 = 1",
    "2 > 1",
    "'a' < 'b'",
    ".5 = 0.5",
    "5. = 5",
    # numbers of all types, by value
    "byte = -3",
    "short = 300",
    "ubyte = 200",
    "ushort = 60000",
    "uint = 4000000000",
    "ulong > 9223372036854775807",
    "long = 4611686018427387904",
    "float = 0.5",
    "d32 = 1.5",
    "d64 = 12",
    "d128 = 19.99",
    "size = 7.0",
    "ulong > long",
    "byte < ubyte",
    "-9223372036854775808 < byte",
    # texts of all types
    "char = 'c'",
    "symbol = 'sym'",
    "uri = 'http://x/'",
    # names
    "user.color = 'red'",
    "USER.COLOR = 'red'",
    "[color] = 'red'",
    "\"color\" = 'red'",
    "user.[color] = 'red'",
    "[user].[color] = 'red'",
    "[With Space] = 1",
    '"with space" = 1',
    "[a]]b] = 2",
    '"a""b" = 3',
    "[x.y] = 4",
    "[like] = 'x'",
    "user = 'u'",
    "user.user = 'u'",
    "p = 5",
    "größe = 6",
    "GRÖSSE IS NULL",
    "GRÖßE = 6",
    "_x = 8",
    "user . color = 'red'",
    # functions
    "property('color') = 'red'",
    "p('COLOR') = 'red'",
    "P(which) = 'red'",
    "p('wh' + 'ich') = 'color'",
    "property(p('which')) = 'red'",
    "newid() <> newid()",
    "newid() IS NOT NULL",
    "p(nothing) IS NULL",
    # null
    "missing IS NULL",
    "nothing IS NULL",
    "color IS NOT NULL",
    "NOT color IS NULL",
    "list IS NOT NULL",
    "size + missing IS NULL",
    "NULL IS NULL",
    # exists
    "EXISTS(color)",
    "exists ( user.Color )",
    "EXISTS(nothing)",
    "NOT EXISTS(missing)",
    "EXISTS(list)",
    "EXISTS(sys.Label)",
    "NOT EXISTS(sys.DeadLetterSource)",
    # IN
    "color IN ('red')",
    "color IN ('blue', 'red')",
    "color NOT IN ('blue', 'green')",
    "size IN (1, 7.0)",
    "size IN (price, size)",
    "size + 1 IN (8)",
    "'red' IN (color)",
    "color IN (NULL, 'red')",
    # LIKE
    "color LIKE 'red'",
    "color LIKE 'r%'",
    "color LIKE '%d'",
    "color LIKE '%e%'",
    "color LIKE 'r_d'",
    "color LIKE '___'",
    "color LIKE '%'",
    "color LIKE '%%r%%d%%'",
    "color NOT LIKE 'b%'",
    "empty LIKE ''",
    "empty LIKE '%'",
    "percent LIKE '50!%' ESCAPE '!'",
    "percent LIKE '%!%' ESCAPE '!'",
    r"percent LIKE '50\%' ESCAPE '\'",
    r"path LIKE 'a\b'",
    r"path LIKE 'a\\b' ESCAPE '\'",
    "percent LIKE '5!0%' ESCAPE '!'",
    "color LIKE pattern",
    "color LIKE 'r' + '_d'",
    "color NOT LIKE percent",
    # arithmetic
    "size + 1 = 8",
    "size - 1 = 6",
    "size * 2 = 14",
    "size / 2 = 3",
    "-size / 2 = -3",
    "size / 2.0 = 3.5",
    "size % 4 = 3",
    "-size % 4 = -3",
    "price % 4 = 3.5",
    "2 + 3 * 4 = 14",
    "(2 + 3) * 4 = 20",
    "10 - 4 - 3 = 3",
    "-size = -7",
    "+size = 7",
    "- - size = 7",
    "2 - -2 = 4",
    "color + '!' = 'red!'",
    "d64 * 2 = 24",
    "byte * -1 = 3",
    "price / 1e300 / 1e300 = 0",
    # precedence
    "color = 'red' OR color = 'x' AND size = 0",
    "NOT color = 'blue' AND size = 7",
    "NOT (color = 'blue' AND size = 7)",
    "NOT NOT color = 'red'",
    "(((color = 'red')))",
    "(color) = ('red')",
    "color='red'AND(size=7)",
    "color = 'red' and size = 7 Or 1 = 2",
    "missing = 1 OR color = 'red'",
    "color = 'red'\n\tAND size = 7",
    # system properties
    "sys.MessageId = 'm-1'",
    "sys.messageid LIKE 'm-%'",
    "sys.CorrelationId = '17'",
    "sys.To = 'there'",
    "sys.ReplyTo = 'back'",
    "sys.Label = 'orders'",
    "sys.Subject = 'orders'",
    "SYS.LABEL = 'orders'",
    "sys.[Label] = 'orders'",
    "sys.SessionId = 's-1'",
    "sys.ReplyToSessionId = 's-2'",
    "sys.ContentType = 'application/json'",
    "sys.PartitionKey = 'pk'",
    "sys.ViaPartitionKey = 'vpk'",
    "sys.SequenceNumber = 77",
    "sys.EnqueuedSequenceNumber = 12",
    "sys.DeliveryCount = 0",
    "sys.Size > 100",
    "sys.DeadLetterSource IS NULL",
    "sys.EnqueuedTimeUtc = when",
    "sys.ScheduledEnqueueTimeUtc = when",
    "sys.ExpiresAtUtc - sys.EnqueuedTimeUtc = sys.TimeToLive",
    "sys.ExpiresAt > sys.EnqueuedTime",
    # times and durations
    "when < later",
    "later - when > took",
    "when + took < later",
    "took + when < later",
    "later - took > when",
    "took + took > took",
    "-took < took",
    "took - took < took",
    "when = offset",
    "id = id",
    "raw = raw",
    "NOT id <> id",
]
NOT = [
    "color = 'Red'",
    "color LIKE 'R%'",
    "color IN ('RED')",
    "color = 'blue'",
    "color <> 'red'",
    "1 = 2",
    # null and unknown
    "missing = 1",
    "missing <> 1",
    "NOT missing = 1",
    "missing = missing",
    "nothing = nothing",
    "nothing = NULL",
    "color = NULL",
    "color <> NULL",
    "NULL = NULL",
    "missing IN (1)",
    "missing NOT IN (1)",
    "color NOT IN ('x', NULL)",
    "color NOT IN ('x', missing)",
    "color IN (NULL)",
    "NULL IN (1)",
    "missing LIKE '%'",
    "missing NOT LIKE '%'",
    "color LIKE NULL",
    "color LIKE missing",
    "color LIKE 'r%' ESCAPE missing",
    "missing + 1 = 1",
    "-missing = -1",
    "missing = 1 AND 1 = 1",
    "NOT (missing = 1 OR 1 = 2)",
    "color IS NULL",
    "missing IS NOT NULL",
    "EXISTS(missing)",
    # different kinds
    "size = '7'",
    "size <> '7'",
    "NOT size = '7'",
    "color = 1",
    "color > 1",
    "size > 'a'",
    "paid = 1",
    "paid = 'true'",
    "paid < TRUE",
    "when = 1",
    "when > 'a'",
    "took = when",
    f"id = '{UNIQUE}'",
    "raw = 'x'",
    "raw < raw",
    "id < id",
    "list = list",
    "list = 1",
    "size LIKE '7'",
    "size NOT LIKE '7'",
    "list IN (1, 'x')",
    # LIKE
    "color LIKE 'r'",
    "color LIKE '_'",
    "color LIKE ''",
    "color LIKE '%x%'",
    "color LIKE 're%ed'",
    "color LIKE '____'",
    "percent LIKE '5!0!_' ESCAPE '!'",
    "color NOT LIKE 'r%'",
    # arithmetic
    "size / 2 = 3.5",
    "size + 1 = '8'",
    "long > ulong",
]
FAILS = [
    "size / 0 = 1",
    "size / (size - 7) = 1",
    "price / 0.0 = 1",
    "size % 0 = 1",
    "long * 4 = 1",
    "long + long + long = 1",
    "-ulong < 0",
    "ulong + 1 > 0",
    "color - 1 = 1",
    "color + 1 = 'red1'",
    "1 + color = 1",
    "color * 2 = 1",
    "-color = 1",
    "+color = 1",
    "paid + 1 = 2",
    "when + when = 1",
    "when * 2 = 1",
    "took / 2 = 1",
    "list + 1 = 1",
    "id + 1 = 1",
    "p(size) = 1",
    "color LIKE 'r' ESCAPE color",
    "color LIKE pattern ESCAPE empty",
    "color LIKE percent ESCAPE '%'",
    "when + sys.TimeToLive + took * 1 = when",
    "NOT (size / 0 = 1)",
    "size / 0 = 1 OR color = 'red'",
    "missing = 1 OR size / 0 = 1",
]


@pytest.mark.parametrize("expression", MATCH)
def test_a_message_matches(expression: str) -> None:
    assert matches(expression, FULL)


@pytest.mark.parametrize("expression", NOT)
def test_a_message_does_not_match(expression: str) -> None:
    assert not matches(expression, FULL)


@pytest.mark.parametrize("expression", FAILS)
def test_a_filter_cannot_be_evaluated(expression: str) -> None:
    with pytest.raises(FilterError):
        matches(expression, FULL)


PARAMETERS = {
    "text": ("string", "red"),
    "int": ("int", "7"),
    "long": ("long", "4611686018427387904"),
    "double": ("double", "19.5"),
    "yes": ("boolean", "true"),
    "when": ("dateTime", "2023-11-14T22:13:20Z"),
    "zoned": ("dateTime", "2023-11-15T00:13:20.0000000+02:00"),
    "bare": ("dateTime", "2023-11-14T22:13:20"),
    "fine": ("dateTime", "2023-11-14T22:13:20.0000001Z"),
    "took": ("duration", "PT3S"),
    "minute": ("duration", "PT1M"),
    "minus": ("duration", "-P1DT2H"),
    "forever": ("duration", "P10675199DT2H48M5.47758S"),
    "id": ("guid", str(UNIQUE)),
    "raw": ("binary", "AQI="),
    "pattern": ("string", "r_d"),
    "infinite": ("double", "INF"),
}


@pytest.mark.parametrize(
    "expression",
    [
        "color = @text",
        "COLOR = @TEXT",
        "size = @int",
        "long = @long",
        "price = @double",
        "paid = @yes",
        "when = @when",
        "when = @zoned",
        "when = @bare",
        "when < @fine",
        "when <= @when",
        "took = @took",
        "later - when > @took",
        "sys.TimeToLive = @minute",
        "took > @minus",
        "sys.TimeToLive < @forever",
        "id = @id",
        "raw = @raw",
        "color LIKE @pattern",
        "color IN (@pattern, @text)",
        "sys.EnqueuedTimeUtc + @minute = sys.ExpiresAtUtc",
        "price < @infinite",
        "size + @int = 14",
    ],
)
def test_a_parameter_is_a_constant_of_its_type(expression: str) -> None:
    assert matches(expression, FULL, **PARAMETERS)


def test_a_message_that_never_expires_has_the_maximum_time_to_live() -> None:
    forever = {
        "forever": ("duration", "P10675199DT2H48M5.4775807S"),
        "end": ("dateTime", "9999-12-31T23:59:59.9999999Z"),
    }
    assert matches("sys.TimeToLive = @forever AND sys.ExpiresAtUtc = @end", stored(), **forever)


def test_a_message_without_properties_matches_null_checks() -> None:
    assert matches("color IS NULL AND sys.Label IS NULL AND NOT EXISTS(color)", stored())


def test_the_first_of_several_names_that_differ_in_case_is_used() -> None:
    assert matches("color = 1", stored({"Color": 1, "color": 2}))


@pytest.mark.parametrize(
    ("message_id", "text"), [(UNIQUE, str(UNIQUE)), (ULong(5), "5"), (b"\x0a\xff", "0aff"), ("plain", "plain")]
)
def test_ids_of_any_type_are_compared_as_text(message_id: object, text: str) -> None:
    record = stored(message_id=message_id, correlation_id=message_id)
    assert matches(f"sys.MessageId = '{text}' AND sys.CorrelationId = '{text}'", record)


def test_a_decimal_with_thousands_of_digits_is_exact() -> None:
    for text in ("1E6111", "-9999999999999999999999999999999999E6111", "12E3", "7E1"):
        sign, digits, exponent = Decimal(text).as_tuple()
        exact = (-1) ** sign * int("".join(map(str, digits))) * 10 ** int(exponent)
        assert from_amqp(Decimal128.from_decimal(Decimal(text))) == exact
