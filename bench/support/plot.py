"""Line charts as small SVG files, without a plotting library.

    text = picture([Panel("sends", "messages/s", {"one process": [(1, 50e3), (16, 48e3)]})], "fragments")

Owns scales, axes and colours. Knows nothing of the data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

WIDTH: Final = 320
HEIGHT: Final = 260
LEFT: Final = 58
RIGHT: Final = 14
TOP: Final = 34
BOTTOM: Final = 44
LEGEND: Final = 28
STEPS: Final = 4
COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""Colours that colour-blind readers can distinguish."""


@dataclass(frozen=True, slots=True)
class Panel:
    """A chart with one pair of axes."""

    title: str
    unit: str
    lines: Mapping[str, Sequence[tuple[float, float]]]
    """Lines by name; all panels of a picture have the same names. Values on the x axis are equally spaced."""


def picture(panels: Sequence[Panel], x_name: str = "") -> str:
    """Return an SVG with all panels in a row, and the legend below."""
    width, height = WIDTH * len(panels), HEIGHT + LEGEND
    size = f'width="{width}" height="{height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {width} {height}" font-family="sans-serif">',
        f'<rect {size} fill="#fff"/>',
    ]
    for number, panel in enumerate(panels):
        parts += [f'<g transform="translate({number * WIDTH} 0)">', *_panel(panel, x_name), "</g>"]
    names = list(dict.fromkeys(name for panel in panels for name in panel.lines))
    for number, name in enumerate(names):
        x, colour = LEFT + number * 130, COLOURS[number % len(COLOURS)]
        parts.append(f'<path d="M{x} {HEIGHT + 8}h18" stroke="{colour}" stroke-width="2"/>')
        parts.append(_text(x + 24, HEIGHT + 12, name))
    return "\n".join([*parts, "</svg>", ""])


def _panel(panel: Panel, x_name: str) -> list[str]:
    places = sorted({x for line in panel.lines.values() for x, _ in line})
    highest = _round_up(max(y for line in panel.lines.values() for _, y in line))
    x_of = {x: LEFT + (WIDTH - LEFT - RIGHT) * index / max(1, len(places) - 1) for index, x in enumerate(places)}
    parts = [_text(LEFT, TOP - 18, panel.title, weight="bold"), _text(LEFT, TOP - 5, panel.unit, colour="#666")]
    for step in range(STEPS + 1):
        value = highest * step / STEPS
        y = _y_of(value, highest)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        parts.append(_text(LEFT - 6, y + 4, f"{value:,.4g}" if value < 1000 else f"{value:,.0f}", anchor="end"))
    for x, at in x_of.items():
        parts.append(_text(at, HEIGHT - BOTTOM + 16, f"{x:g}", anchor="middle"))
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - BOTTOM + 32, x_name, anchor="middle"))
    for number, line in enumerate(panel.lines.values()):
        colour = COLOURS[number % len(COLOURS)]
        points = [(x_of[x], _y_of(y, highest)) for x, y in sorted(line)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points]
    return parts


def _y_of(value: float, highest: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * value / highest


def _round_up(value: float) -> float:
    """Return the next round number, for the end of an axis."""
    power = 1.0
    while power * 10 < value:
        power *= 10
    while power > max(value, 1e-9):
        power /= 10
    return next(power * factor for factor in (1, 1.2, 1.6, 2, 2.4, 3.2, 4, 5, 6, 8, 10, 12) if power * factor >= value)


def _text(x: float, y: float, text: str, *, anchor: str = "start", weight: str = "normal", colour: str = "#222") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}" font-size="11" '
        f'fill="{colour}">'
        f"{escape(text)}</text>"
    )
