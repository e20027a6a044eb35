"""The text format of Prometheus.

Owns the escaping of labels, and the form of families: a comment with the help, a comment with the type, and lines. All
lines of a family have to be together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class Family(NamedTuple):
    """A metric, with its meaning."""

    name: str
    kind: Literal["counter", "gauge"]
    help: str

    @property
    def head(self) -> str:
        """The comments before the lines."""
        return f"# HELP {self.name} {self.help}\n# TYPE {self.name} {self.kind}\n"


def line(name: str, labels: Mapping[str, object], value: float) -> str:
    """Return one line."""
    return f"{name}{render_labels(labels)} {value}\n"


def render_labels(labels: Mapping[str, object]) -> str:
    """Return labels in braces."""
    pairs = ",".join(f'{name}="{escape(str(value))}"' for name, value in labels.items())
    return f"{{{pairs}}}" if pairs else ""


def escape(text: str) -> str:
    """Return the text of a label, escaped."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def render(family: Family, samples: Iterable[tuple[Mapping[str, object], float]]) -> str:
    """Return a family with its lines; an empty text if there are none."""
    lines = [line(family.name, labels, value) for labels, value in samples]
    return family.head + "".join(lines) if lines else ""
