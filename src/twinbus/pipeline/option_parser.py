"""Parser for data source options, which are strings with case-insensitive names.

Owns the rejection of unknown names, with a suggestion, and the conversion of option values to numbers, durations and
choices. Knows nothing of what an option means. Error texts never contain values that may be secrets.
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
"""Options of Spark itself, which Spark also passes to the data source."""


class OptionParser:
    """The options given to a data source."""

    def __init__(
        self, options: Mapping[str, str], known_names: Sequence[str], *, purpose: str, ignored: Collection[str] = ()
    ) -> None:
        """Keep the options in `known_names`, skip the options in `ignored`, and reject any other option.

        `purpose` completes the error text "servicebus has no option x for ...".
        """
        names_by_lowercase = {name.lower(): name for name in known_names}
        self._values: dict[str, str] = {}
        for name, text in options.items():
            if name.lower() in names_by_lowercase:
                self._values[names_by_lowercase[name.lower()]] = text
            elif name.lower() not in ignored:
                raise PipelineError(
                    f"servicebus has no option {name!r:.60} for {purpose}{_suggestion(name, known_names)}; it has "
                    f"{', '.join(known_names)}"
                )

    def text(self, name: str) -> str | None:
        """Return the value of an option, or None if the option is missing or empty."""
        return self._values.get(name) or None

    def connection_string(self, name: str) -> str:
        """Return a required connection string. Raise PipelineError if the value cannot be parsed."""
        text = self.text(name)
        if text is None:
            raise PipelineError(f"servicebus needs the option {name}: set it to Endpoint=sb://...")
        try:
            ConnectionString.parse(text)
        except ValueError as error:
            raise PipelineError(f"the option {name} cannot be read: {error}") from None
        return text

    def choice(self, name: str, choices: Sequence[str]) -> str:
        """Return one of `choices` (default: the first choice)."""
        word = (self.text(name) or choices[0]).lower()
        if word not in choices:
            raise PipelineError(f"the option {name} is {word!r:.60}; use {' or '.join(choices)}")
        return word

    def flag(self, name: str, *, default: bool) -> bool:
        """Return a boolean option, given as `true` or `false`."""
        return self.choice(name, ("true", "false") if default else ("false", "true")) == "true"

    def count(self, name: str, default: int | None = None, *, max_value: int = 2**62) -> int | None:
        """Return a whole number from 1 to `max_value`."""
        text = self.text(name)
        if text is None:
            return default
        if not text.isdecimal() or not 1 <= int(text) <= max_value:
            raise PipelineError(f"the option {name} is {text!r:.60}; use a whole number from 1 to {max_value:,}")
        return int(text)

    def seconds(self, name: str, default_s: float, *, min_s: float = 0.001) -> float:
        """Return a duration in seconds, from `min_s` to `MAX_DURATION_S`."""
        text = self.text(name)
        if text is None:
            return default_s
        try:
            seconds = float(text)
        except ValueError:
            seconds = -1.0
        if not min_s <= seconds <= MAX_DURATION_S:
            raise PipelineError(
                f"the option {name} is {text!r:.60}; use a number of seconds from {min_s:g} to {MAX_DURATION_S:g}"
            )
        return seconds


def _suggestion(name: str, known_names: Sequence[str]) -> str:
    matches = difflib.get_close_matches(name.lower(), [known.lower() for known in known_names], n=1)
    return f" (did you mean {next(known for known in known_names if known.lower() == matches[0])}?)" if matches else ""
