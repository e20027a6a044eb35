"""Draws docs/amqp-states.md from the tables in twinbus.amqp.states. Run it after changing a table; a test checks it."""

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

`tools/draw_states.py` draws this page from the tables in `src/twinbus/amqp/states.py`, which the engine executes.

AMQP is symmetric, so each table applies to both ends: a connection, session or link has one state for the frames that
we have sent, and one for the frames that the peer has sent.

- A step without an arrow is illegal. If the peer takes an illegal step, the engine answers with an error; if our own
  program does, the engine raises `LocalError`.
- A link that has ended is an exception: it ignores calls of the program, because the link may have ended just before.
- After we have sent close, end or detach, the engine drops all frames of the peer until its own close, end or detach
  arrives.
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
The two peers take turns, so they share one state. The server sends mechanisms, challenge and outcome; the client sends
init and response. If a peer takes an illegal step, the engine drops the connection.""",
        states.SASL_TRANSITIONS,
    ),
}


def words(member: Enum) -> str:
    """Return the name of a state or step in lower case."""
    return member.name.lower()


def diagram(table: Mapping[Any, Enum]) -> str:
    """Return a table as a Mermaid diagram, in which steps between the same two states share an arrow."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for (state, step), following in table.items():
        arrows.setdefault((words(state), words(following)), []).append(words(step))
    first = words(next(iter(table))[0])
    lines = [f"    {start} --> {end}: {', '.join(steps)}" for (start, end), steps in arrows.items()]
    return "\n".join(["```mermaid", "stateDiagram-v2", f"    [*] --> {first}", *lines, "```"])


def page() -> str:
    """Return the whole page."""
    parts = [f"\n## {name}\n\n{about}\n\n{diagram(table)}\n" for name, (about, table) in TABLES.items()]
    return INTRODUCTION + "".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page())
