"""Charts as SVG inside a page: bars, and parts on top of each other over time.

Owns: scales, axes, and that a chart can be read without seeing it, in the dark, and on a phone. Colours are the page's
(`--c0` ...); everything written is escaped. Nothing in it moves, and nothing is fetched.
"""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from twinbus.pipeline.costs.document import Bars, Stack

COLOURS: Final = 8
WIDTH: Final = 720
_LINE: Final = 50
"""Of a bar, with what it is written above it."""
_BAR: Final = 14
_HEIGHT: Final = 260
_LEFT: Final = 64
_RIGHT: Final = 12
_TOP: Final = 12
_BOTTOM: Final = 34
_STEPS: Final = 4
_LABELS: Final = 4
_CHARACTERS: Final = 74
"""Of a name; a longer one is cut, and whole in the chart's table."""
_ROOM: Final = 0.78
"""How much of the width the longest bar has: what is written at its end needs the rest."""


def draw_bars(chart: Bars) -> str:
    """As a picture that tells its numbers to who cannot see it."""
    longest = max((value for _, value, _ in chart.bars), default=0.0)
    height = _LINE * len(chart.bars) + 4
    told = "; ".join(f"{name}: {text}" for name, _, text in chart.bars)
    parts = [_open(chart.title, told, height)]
    for number, (name, value, text) in enumerate(chart.bars):
        top = _LINE * number
        length = max(1.0, WIDTH * _ROOM * value / longest) if longest > 0 else 1.0
        parts.append(f'<text x="0" y="{top + 18}">{_cut(name)}</text>')
        parts.append(f'<path d="M0 {top + 27}h{length:.1f}v{_BAR}H0z" class="s{number % COLOURS}"/>')
        parts.append(f'<text x="{length + 8:.1f}" y="{top + 39}" class="n">{_cut(text)}</text>')
    return "".join([*parts, "</svg>"])


def draw_stack(chart: Stack) -> str:
    """The same, over time; what the colours mean is below it."""
    count = len(chart.places)
    sums = [sum(values[place] for _, values in chart.series) for place in range(count)]
    highest = _round_up(max(sums, default=0.0))
    told = f"from {chart.places[0]} to {chart.places[-1]}, at most {max(sums):,.0f} {chart.unit}" if count else "empty"
    parts = [_open(chart.title, told, _HEIGHT)]
    for step in range(_STEPS + 1):
        y = _y(highest * step / _STEPS, highest)
        parts.append(f'<path d="M{_LEFT} {y:.1f}H{WIDTH - _RIGHT}" class="g"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" class="e n">{_short(highest * step / _STEPS)}</text>')
    width = (WIDTH - _LEFT - _RIGHT) / max(1, count)
    below = [0.0] * count
    for number, (_, values) in enumerate(chart.series):
        path = []
        for place, value in enumerate(values):
            if value > 0:
                top, bottom = _y(below[place] + value, highest), _y(below[place], highest)
                x = _LEFT + place * width
                path.append(f"M{x:.1f} {bottom:.1f}V{top:.1f}h{max(0.6, width * 0.9):.1f}V{bottom:.1f}z")
                below[place] += value
        parts.append(f'<path d="{"".join(path)}" class="s{number % COLOURS}"/>')
    for place in _labelled(count):
        x = _LEFT + (place + 0.45) * width
        anchor = "e" if count > 1 and place == count - 1 else "m" if place else "b"
        parts.append(f'<text x="{x:.1f}" y="{_HEIGHT - 12}" class="{anchor}">{escape(chart.places[place])}</text>')
    keys = "".join(
        f'<li><span class="k b{number % COLOURS}"></span>{escape(name)}</li>'
        for number, (name, _) in enumerate(chart.series)
    )
    return "".join([*parts, "</svg>", f'<ul class="keys">{keys}</ul>'])


def _open(title: str, told: str, height: float) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" xmlns="http://www.w3.org/2000/svg">'
        f"<title>{escape(title)}</title><desc>{escape(told)}</desc>"
    )


def _y(value: float, highest: float) -> float:
    return _HEIGHT - _BOTTOM - (_HEIGHT - _BOTTOM - _TOP) * value / highest


def _labelled(count: int) -> list[int]:
    """Places that are written: the first, the last, and some between."""
    if count <= _LABELS:
        return list(range(count))
    return sorted({round(step * (count - 1) / (_LABELS - 1)) for step in range(_LABELS)})


def _round_up(value: float) -> float:
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 4, 5, 8, 10) if step * power >= value)


def _short(value: float) -> str:
    for limit, sign in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:.3g} {sign}"
    return f"{value:.3g}"


def _cut(text: str) -> str:
    return escape(text if len(text) <= _CHARACTERS else text[: _CHARACTERS - 1] + "…")
