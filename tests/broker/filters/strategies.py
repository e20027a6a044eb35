"""Hypothesis strategies for filters and messages, with few names and values, so that filters often match."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

from hypothesis import strategies as st

from tests.broker.filters.messages import span
from twinbus.amqp.types import Decimal128, Float, Int, Symbol, Timestamp, UInt, ULong

if TYPE_CHECKING:
    from random import Random

    from tests.broker.filters.reference_evaluator import Tree

texts = st.sampled_from(["", "a", "A", "b", "ab", "a%", "_", "%b", "c"])
whole = st.sampled_from([0, 1, -1, 2, 7, 2**53, 2**53 + 1, 2**63 - 1, -(2**63) + 1])
fractions = st.sampled_from([0.0, 1.0, 0.5, -1.5, float(2**53), 1e300])
constants = (st.none() | st.booleans() | texts | whole | fractions).map(lambda value: ("constant", value))
properties = st.sampled_from(["a", "A", "b", "user.c", "[d]", "e"]).map(lambda name: ("property", name))

stored_values: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    texts,
    texts.map(Symbol),
    whole,
    st.sampled_from([Int(1), UInt(7), ULong(2**64 - 1), Float(0.5), 1.0, 0.5, -1.5, 1e300]),
    st.sampled_from([Decimal128.from_decimal(Decimal(text)) for text in ("1", "0.5", "7.0", "1E+3")]),
    st.sampled_from([Timestamp(0), Timestamp(5), span(0), span(50_000), UUID(int=1), UUID(int=2), [1], b"x"]),
)
messages = st.dictionaries(st.sampled_from(["a", "b", "C", "d", "D"]), stored_values, max_size=5)


def _chains(signs: str, operands: st.SearchStrategy[Tree], first: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
    rest = st.lists(st.tuples(st.sampled_from(signs), operands), min_size=1, max_size=2)
    return st.tuples(st.just("chain"), first, rest)


# A chain begins with a property, because a chain of constants that fails is refused when the rule is compiled.
products = _chains("*/%", constants | properties, properties)
sums = _chains("+-", constants | properties | products, properties | products)
chains = products | sums
values: st.SearchStrategy[Tree] = st.one_of(
    properties,
    constants,
    chains,
    st.tuples(st.just("minus"), properties | chains),
    st.tuples(st.just("named"), st.one_of(properties, st.just(("constant", "b")))),
)
patterns = st.text(alphabet="ab%_", max_size=4).map(lambda text: ("constant", text))

equalities: st.SearchStrategy[Tree] = st.one_of(
    st.tuples(st.just("compare"), st.just("="), properties, constants),
    st.tuples(st.just("compare"), st.just("="), constants, properties),
    st.tuples(st.just("in"), properties, st.lists(constants, min_size=1, max_size=3)),
)
tests: st.SearchStrategy[Tree] = st.one_of(
    equalities,
    st.tuples(st.just("compare"), st.sampled_from(["=", "<>", "!=", "<", "<=", ">", ">="]), values, values),
    st.tuples(st.just("in"), values, st.lists(values, min_size=1, max_size=3)),
    st.tuples(st.just("like"), values, patterns | properties, st.none() | st.just(("constant", "!"))),
    st.tuples(st.just("null"), values),
    st.tuples(st.just("exists"), st.sampled_from(["a", "user.B", "[c]", "e"])),
)


def _joined(inner: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
    return st.one_of(
        st.tuples(st.sampled_from(["and", "or"]), st.lists(inner, min_size=2, max_size=3)),
        st.tuples(st.just("not"), inner),
    )


filters = st.recursive(tests, _joined, max_leaves=8)


def random_tree(random: Random, depth: int = 3) -> Tree:
    """Return a filter for an index: ANDs and ORs of equalities that often hold and comparisons that may fail."""
    if depth and random.random() < 0.7:
        return random.choice(["and", "or"]), [random_tree(random, depth - 1) for _ in range(random.randint(2, 3))]
    operand: Tree = ("property", random.choice("abc"))
    constant: Tree = ("constant", random.choice([0, 1, 1.0, "a", True]))
    if random.random() < 0.7:
        return "compare", "=", operand, constant
    quotient: Tree = ("chain", operand, [("/", ("property", random.choice("abc")))])
    return "compare", random.choice("=<>"), random.choice([operand, quotient]), constant
