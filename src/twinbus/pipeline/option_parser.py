"""Options as a user gives them to a data source: texts, by names whose case does not matter.

Owns: that a name nobody knows is refused, with what it may have been meant for, and how a text becomes a number, a
duration, a choice. What an option means is its reader's affair. Values are never shown where they may be secrets.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Final

from twinbus.client.connection_string import ConnectionString
from twinbus.pipeline.errors import PipelineError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

MAX_DURATION_S: Final = 86_400.0
SPARK_OPTIONS: Final = frozenset({"checkpointlocation", "queryname", "path"})
"""Options that Spark hands over to a data source although they are its own."""


class OptionParser:
    """Some options, as they were given."""

    def __init__(
        self, options: Mapping[str, str], known_names: Sequence[str], *, purpose: str, ignored: Collection[str] = ()
    ) -> None:
        """`purpose` ends the sentence "servicebus has no option x for ..."; what is `ignored` is Spark's own."""
        spelled = {name.lower(): name for name in known_names}
        self._values: dict[str, str] = {}
        for name, text in options.items():
            if name.lower() in spelled:
                self._values[spelled[name.lower()]] = text
            elif name.lower() not in ignored:
                raise PipelineError(
                    f"servicebus has no option {name!r:.60} for {purpose}{_suggestion(name, known_names)}; it has "
                    f"{', '.join(known_names)}"
                )

    def text(self, name: str) -> str | None:
        """None where it is not there, or empty."""
        return self._values.get(name) or None

    def connection_string(self, name: str) -> str:
        """One that can be read."""
        text = self.text(name)
        if text is None:
            raise PipelineError(f"servicebus needs the option {name}: Endpoint=sb://...")
        try:
            ConnectionString.parse(text)
        except ValueError as error:
            raise PipelineError(f"the option {name} cannot be read: {error}") from None
        return text

    def choice(self, name: str, choices: Sequence[str]) -> str:
        """One of some words, the first if it is not said."""
        word = (self.text(name) or choices[0]).lower()
        if word not in choices:
            raise PipelineError(f"the option {name} is {word!r:.60}; it can be {' or '.join(choices)}")
        return word

    def flag(self, name: str, *, default: bool) -> bool:
        """Yes (`true`) or no."""
        return self.choice(name, ("true", "false") if default else ("false", "true")) == "true"

    def count(self, name: str, default: int | None = None, *, max_value: int = 2**62) -> int | None:
        """A whole number from 1 on."""
        text = self.text(name)
        if text is None:
            return default
        if not text.isdecimal() or not 1 <= int(text) <= max_value:
            raise PipelineError(f"the option {name} is {text!r:.60}; it is a whole number from 1 to {max_value:,}")
        return int(text)

    def seconds(self, name: str, default_s: float, *, min_s: float = 0.001) -> float:
        """A duration."""
        text = self.text(name)
        if text is None:
            return default_s
        try:
            found = float(text)
        except ValueError:
            found = -1.0
        if not min_s <= found <= MAX_DURATION_S:
            raise PipelineError(
                f"the option {name} is {text!r:.60}; it is a number of seconds from {min_s:g} to {MAX_DURATION_S:g}"
            )
        return found


def _suggestion(name: str, known_names: Sequence[str]) -> str:
    found = difflib.get_close_matches(name.lower(), [one.lower() for one in known_names], n=1)
    return f" (did you mean {next(one for one in known_names if one.lower() == found[0])}?)" if found else ""
