"""Draws docs/amqp-states.md from the tables of twinbus.amqp.states. Run it after changing a table: a test compares."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from twinbus.amqp import states

if TYPE_CHECKING:
    from collections.abc import Mapping
    from enum import Enum

PAGE: Final = Path(__file__).parent.parent / "docs" / "amqp-states.md"

INTRODUCTION: Final = """\
# The states of the AMQP engine

Drawn from the tables in `src/twinbus/amqp/states.py` by `tools/draw_states.py`; the tables are the program.

AMQP is symmetric, so each table holds for both ends: a connection, a session or a link has one state for what we have
sent and one for what the peer has sent. A step without an arrow is illegal: from the peer it is answered with an error,
from our own program it raises `LocalError`. Only a link that is over does not complain: what it is asked for is not
done, because it may have ended while the program was about to answer. Once we have sent close, end or detach, what the
peer still had on its way is dropped until its own arrives.
"""

TABLES: Final[dict[str, tuple[str, Mapping[Any, Enum]]]] = {
    "Connection": (
        "An illegal step closes the connection with `amqp:illegal-state`.",
        states.CONNECTION_TRANSITIONS,
    ),
    "Session": (
        "An illegal step closes the connection with `amqp:illegal-state`; frames on an ended channel are dropped.",
        states.SESSION_TRANSITIONS,
    ),
    "Link": (
        "An illegal step ends the session with `amqp:session:unattached-handle` or `amqp:session:handle-in-use`.",
        states.LINK_TRANSITIONS,
    ),
    "SASL": (
        """\
In strict turns, so both ends share one state. Mechanisms, challenge and outcome are the server's steps, init and
response the client's. An illegal step drops the connection.""",
        states.SASL_TRANSITIONS,
    ),
}


def words(member: Enum) -> str:
    """A state or step as it is spoken of."""
    return member.name.lower()


def diagram(table: Mapping[Any, Enum]) -> str:
    """A table as a Mermaid diagram; the steps between the same two states share an arrow."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for (state, step), following in table.items():
        arrows.setdefault((words(state), words(following)), []).append(words(step))
    first = words(next(iter(table))[0])
    lines = [f"    {start} --> {end}: {', '.join(steps)}" for (start, end), steps in arrows.items()]
    return "\n".join(["```mermaid", "stateDiagram-v2", f"    [*] --> {first}", *lines, "```"])


def page() -> str:
    """The whole page."""
    parts = [f"\n## {name}\n\n{about}\n\n{diagram(table)}\n" for name, (about, table) in TABLES.items()]
    return INTRODUCTION + "".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page())
