"""Rendering of a report as a self-contained HTML page, without scripts, fonts or external images.

Owns the layout, in light and dark mode, for screens, phones and paper. All text is escaped, and a content security
policy forbids fetching anything. Charts are inline SVG with text descriptions for screen readers.
"""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING, Final

from twinbus.pipeline.costs.document import BarChart

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinbus.pipeline.costs.document import Document, Section, StackedChart, Table

_LIGHT_COLOURS: Final = ("#0b6fb8", "#c2540a", "#0a7a55", "#9b4a86", "#8a6a00", "#2f7fa6", "#a33b3b", "#5b5f66")
_DARK_COLOURS: Final = ("#5db0f0", "#f0945a", "#3fc79a", "#d98cc4", "#e0b93a", "#7fc4e6", "#f08080", "#a9afb8")
"""Colours that people with colour blindness can distinguish, with enough contrast against the background."""
_STYLESHEET: Final = """
*{box-sizing:border-box}
body{margin:0 auto;max-width:62rem;padding:1rem;font:16px/1.5 system-ui,sans-serif;
color:var(--ink);background:var(--paper)}
h1{font-size:1.6rem;line-height:1.2;margin:.5rem 0}h2{font-size:1.2rem;margin:2.2rem 0 .4rem}
h3{font-size:1rem;margin:1.2rem 0 .3rem}p{margin:.4rem 0;max-width:46rem}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.1rem 1rem;margin:.8rem 0}dt{color:var(--dim)}dd{margin:0}
dd{overflow-wrap:anywhere}td,th{overflow-wrap:break-word}
.wide{overflow-x:auto;margin:.6rem 0}.wide:focus-visible{outline:2px solid var(--c0)}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;min-width:100%}
caption{text-align:left;color:var(--dim);padding:.2rem 0}
th,td{padding:.3rem .6rem;text-align:left;vertical-align:top;border-bottom:1px solid var(--line)}
th{font-weight:600}td:not(.n),tbody th{min-width:9rem;max-width:26rem}
td:not(.n):last-child{min-width:15rem}.n{text-align:right}td.n{white-space:nowrap}
tr.sum td,tr.sum th{font-weight:600;border-top:2px solid var(--line)}
.warning{border-left:4px solid var(--c1);padding:.2rem .8rem;margin:.6rem 0;background:var(--soft)}
figure{margin:1rem 0}svg{display:block;width:100%;max-width:720px;height:auto;font-size:15px;
fill:var(--ink)}
svg .n{fill:var(--dim)}svg .g{stroke:var(--line)}svg .e{text-anchor:end}svg .m{text-anchor:middle}
.keys{list-style:none;display:flex;flex-wrap:wrap;gap:.2rem 1rem;padding:0;margin:.4rem 0}
.k{display:inline-block;width:.8rem;height:.8rem;border-radius:2px;margin-right:.4rem}
footer{margin:3rem 0 1rem;color:var(--dim);font-size:.9rem}
@media(max-width:40rem){dl{grid-template-columns:1fr}dd{margin-bottom:.4rem}svg{font-size:22px}}
@media print{body{max-width:none}.wide{overflow:visible}}
"""


def render_page(document: Document, footer: str) -> str:
    """Render a document as HTML. `footer` says which program created the page, and when."""
    facts = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in document.facts)
    warnings = "".join(f'<p class="warning">{escape(warning)}</p>' for warning in document.warnings)
    sections = "".join(_section(section, number) for number, section in enumerate(document.sections))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(document.title)}</title>\n<style>{_colour_css()}{_STYLESHEET}</style>\n</head>\n<body>\n"
        f"<main>\n<h1>{escape(document.title)}</h1>\n<dl>{facts}</dl>\n{warnings}\n{sections}</main>\n"
        f"<footer>{escape(footer)}</footer>\n</body>\n</html>\n"
    )


def _section(section: Section, number: int) -> str:
    paragraphs = "".join(f"<p>{escape(text)}</p>\n" for text in section.paragraphs)
    charts = "".join(_figure(chart) for chart in section.charts)
    tables = "".join(_table(table, section.title) for table in section.tables)
    name = f"section-{number}"
    return (
        f'<section aria-labelledby="{name}">\n<h2 id="{name}">{escape(section.title)}</h2>\n'
        f"{paragraphs}{charts}{tables}</section>\n"
    )


def _figure(chart: BarChart | StackedChart) -> str:
    svg = draw_bar_chart(chart) if isinstance(chart, BarChart) else draw_stacked_chart(chart)
    return f"<figure><h3>{escape(chart.title)}</h3>{svg}</figure>\n"


def _table(table: Table, title: str) -> str:
    name = table.caption or title
    caption = f"<caption>{escape(table.caption)}</caption>" if table.caption else ""
    classes = [' class="n"' if table.is_numeric(number) else "" for number in range(len(table.columns))]
    heads = "".join(
        f'<th scope="col"{css}>{escape(head)}</th>' for css, head in zip(classes, table.headers, strict=True)
    )
    kinds = [""] * len(table.rows)
    if table.has_total:
        kinds[-1] = ' class="sum"'
    rows = "".join(f"<tr{kind}>{_cells(row, classes)}</tr>\n" for kind, row in zip(kinds, table.rows, strict=True))
    # A table wider than a phone scrolls. The tabindex makes scrolling possible with a keyboard.
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{escape(name)}"><table>{caption}'
        f"<thead><tr>{heads}</tr></thead>\n<tbody>\n{rows}</tbody></table></div>\n"
    )


def _cells(row: Sequence[str], classes: list[str]) -> str:
    cells = []
    for number, (text, css) in enumerate(zip(row, classes, strict=True)):
        tag, scope = ("th", ' scope="row"') if number == 0 else ("td", "")
        cells.append(f"<{tag}{scope}{css}>{escape(text)}</{tag}>")
    return "".join(cells)


def _colour_css() -> str:
    return (
        f":root{{--ink:#1b1f24;--paper:#fff;--dim:#59616b;--line:#d5dae0;--soft:#fff4ea;{_colour_variables(_LIGHT_COLOURS)}}}"
        "@media(prefers-color-scheme:dark){"
        f":root{{--ink:#e6e9ed;--paper:#14171b;--dim:#a3abb5;--line:#353c44;--soft:#2b2118;{_colour_variables(_DARK_COLOURS)}}}}}"
        + "".join(
            f".s{number}{{fill:var(--c{number})}}.b{number}{{background:var(--c{number})}}"
            for number in range(COLOUR_COUNT)
        )
    )


def _colour_variables(colours: tuple[str, ...]) -> str:
    return "".join(f"--c{number}:{colour};" for number, colour in enumerate(colours))


# --- charts -----------------------------------------------------------------------------------------------------------

COLOUR_COUNT: Final = 8
CHART_WIDTH: Final = 720
_BAR_ROW_HEIGHT: Final = 50
"""Height of a bar with its name above it."""
_BAR_HEIGHT: Final = 14
_STACK_HEIGHT: Final = 260
_MARGIN_LEFT: Final = 64
_MARGIN_RIGHT: Final = 12
_MARGIN_TOP: Final = 12
_MARGIN_BOTTOM: Final = 34
_GRID_STEPS: Final = 4
_MAX_AXIS_LABELS: Final = 4
_MAX_LABEL_LENGTH: Final = 74
"""Maximum length of a name; the chart's table has the full name."""
_LONGEST_BAR_SHARE: Final = 0.78
"""Width of the longest bar as a share of the chart; the label at its end needs the remaining width."""


def draw_bar_chart(chart: BarChart) -> str:
    """Draw a bar chart as SVG, with a text description of its values."""
    longest = max((value for _, value, _ in chart.bars), default=0.0)
    height = _BAR_ROW_HEIGHT * len(chart.bars) + 4
    description = "; ".join(f"{name}: {text}" for name, _, text in chart.bars)
    parts = [_svg_start(chart.title, description, height)]
    for number, (name, value, text) in enumerate(chart.bars):
        top = _BAR_ROW_HEIGHT * number
        length = max(1.0, CHART_WIDTH * _LONGEST_BAR_SHARE * value / longest) if longest > 0 else 1.0
        parts.append(f'<text x="0" y="{top + 18}">{_truncate(name)}</text>')
        parts.append(f'<path d="M0 {top + 27}h{length:.1f}v{_BAR_HEIGHT}H0z" class="s{number % COLOUR_COUNT}"/>')
        parts.append(f'<text x="{length + 8:.1f}" y="{top + 39}" class="n">{_truncate(text)}</text>')
    return "".join([*parts, "</svg>"])


def draw_stacked_chart(chart: StackedChart) -> str:
    """Draw a stacked chart over time as SVG, with a legend below it."""
    count = len(chart.labels)
    sums = [sum(values[index] for _, values in chart.series) for index in range(count)]
    highest = _round_up(max(sums, default=0.0))
    description = (
        f"from {chart.labels[0]} to {chart.labels[-1]}, at most {max(sums):,.0f} {chart.unit}" if count else "empty"
    )
    parts = [_svg_start(chart.title, description, _STACK_HEIGHT)]
    for step in range(_GRID_STEPS + 1):
        y = _y_of(highest * step / _GRID_STEPS, highest)
        parts.append(f'<path d="M{_MARGIN_LEFT} {y:.1f}H{CHART_WIDTH - _MARGIN_RIGHT}" class="g"/>')
        parts.append(
            f'<text x="{_MARGIN_LEFT - 6}" y="{y + 4:.1f}" class="e '
            f'n">{_format_short(highest * step / _GRID_STEPS)}</text>'
        )
    width = (CHART_WIDTH - _MARGIN_LEFT - _MARGIN_RIGHT) / max(1, count)
    below = [0.0] * count
    for number, (_, values) in enumerate(chart.series):
        path = []
        for index, value in enumerate(values):
            if value > 0:
                top, bottom = _y_of(below[index] + value, highest), _y_of(below[index], highest)
                x = _MARGIN_LEFT + index * width
                path.append(f"M{x:.1f} {bottom:.1f}V{top:.1f}h{max(0.6, width * 0.9):.1f}V{bottom:.1f}z")
                below[index] += value
        parts.append(f'<path d="{"".join(path)}" class="s{number % COLOUR_COUNT}"/>')
    for index in _label_positions(count):
        x = _MARGIN_LEFT + (index + 0.45) * width
        anchor = "e" if count > 1 and index == count - 1 else "m" if index else "b"
        parts.append(
            f'<text x="{x:.1f}" y="{_STACK_HEIGHT - 12}" class="{anchor}">{escape(chart.labels[index])}</text>'
        )
    keys = "".join(
        f'<li><span class="k b{number % COLOUR_COUNT}"></span>{escape(name)}</li>'
        for number, (name, _) in enumerate(chart.series)
    )
    return "".join([*parts, "</svg>", f'<ul class="keys">{keys}</ul>'])


def _svg_start(title: str, description: str, height: float) -> str:
    return (
        f'<svg viewBox="0 0 {CHART_WIDTH} {height:.0f}" role="img" xmlns="http://www.w3.org/2000/svg">'
        f"<title>{escape(title)}</title><desc>{escape(description)}</desc>"
    )


def _y_of(value: float, highest: float) -> float:
    return _STACK_HEIGHT - _MARGIN_BOTTOM - (_STACK_HEIGHT - _MARGIN_BOTTOM - _MARGIN_TOP) * value / highest


def _label_positions(count: int) -> list[int]:
    """Return the indices of the labels that are drawn: the first, the last, and some in between."""
    if count <= _MAX_AXIS_LABELS:
        return list(range(count))
    return sorted({round(step * (count - 1) / (_MAX_AXIS_LABELS - 1)) for step in range(_MAX_AXIS_LABELS)})


def _round_up(value: float) -> float:
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 4, 5, 8, 10) if step * power >= value)


def _format_short(value: float) -> str:
    for limit, sign in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:.3g} {sign}"
    return f"{value:.3g}"


def _truncate(text: str) -> str:
    return escape(text if len(text) <= _MAX_LABEL_LENGTH else text[: _MAX_LABEL_LENGTH - 1] + "…")
